//! Networks on top of a lab's wires: tunnels and VLANs between client and server, or client and router.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use crate::lab::{CLIENT4, CLIENT6, Lab, SERVER4, SERVER6};
use crate::ns::{Namespace, unique_name};
use crate::truth::ETHERNET;

/// The client's addresses inside a tunnel.
pub const CLIENT: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 77, 0, 1), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
/// The server's addresses inside a tunnel.
pub const SERVER: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 77, 0, 2), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));
/// The tunnel's device at both ends.
pub const DEVICE: &str = "t0";

/// A kind of tunnel between client and server, as `ip link` makes it, and as it is on the wire.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// `type` of the device.
    pub device: &'static str,
    /// Further words for `ip link add`.
    pub more: &'static str,
    /// IP version of the outer packets.
    pub outer: u8,
    /// Protocol of the outer packets.
    pub proto: u8,
    /// IP versions that it carries.
    pub carries: &'static [u8],
    /// Bytes of an outer packet beside the inner one.
    pub overhead: u64,
    /// Bytes of the device's link-layer header.
    pub header: u64,
    /// `tunnel` and `tunnel_key` of inner flows.
    pub shown: (&'static str, u32),
}

const BOTH: &[u8] = &[4, 6];

/// Every kind that the accounting contract names and Linux has a device for.
#[rustfmt::skip]
pub const KINDS: [Kind; 11] = [
    Kind { device: "vxlan", more: "id 42 dstport 4789", outer: 4, proto: 17, carries: BOTH, overhead: 20 + 8 + 8 + 14, header: ETHERNET, shown: ("vxlan", 42) },
    Kind { device: "vxlan", more: "id 43 dstport 4789 udp6zerocsumrx udp6zerocsumtx", outer: 6, proto: 17, carries: BOTH, overhead: 40 + 8 + 8 + 14, header: ETHERNET, shown: ("vxlan", 43) },
    Kind { device: "geneve", more: "id 44", outer: 4, proto: 17, carries: BOTH, overhead: 20 + 8 + 8 + 14, header: ETHERNET, shown: ("geneve", 44) },
    Kind { device: "gre", more: "", outer: 4, proto: 47, carries: BOTH, overhead: 20 + 4, header: 0, shown: ("gre", 0) },
    Kind { device: "gre", more: "key 45", outer: 4, proto: 47, carries: BOTH, overhead: 20 + 8, header: 0, shown: ("gre", 45) },
    Kind { device: "gretap", more: "key 46", outer: 4, proto: 47, carries: BOTH, overhead: 20 + 8 + 14, header: ETHERNET, shown: ("gre", 46) },
    Kind { device: "ip6gre", more: "encaplimit none", outer: 6, proto: 47, carries: BOTH, overhead: 40 + 4, header: 0, shown: ("gre", 0) },
    Kind { device: "ipip", more: "", outer: 4, proto: 4, carries: &[4], overhead: 20, header: 0, shown: ("ip", 0) },
    Kind { device: "sit", more: "", outer: 4, proto: 41, carries: &[6], overhead: 20, header: 0, shown: ("ip", 0) },
    Kind { device: "ip6tnl", more: "mode ip6ip6 encaplimit none", outer: 6, proto: 41, carries: &[6], overhead: 40, header: 0, shown: ("ip", 0) },
    Kind { device: "ip6tnl", more: "mode ipip6 encaplimit none", outer: 6, proto: 4, carries: &[4], overhead: 40, header: 0, shown: ("ip", 0) },
];

impl Kind {
    /// Lays the tunnel between client and server, with offloads as its wires have them.
    pub fn lay(&self, lab: &Lab, offloads: bool) {
        let state = if offloads { "on" } else { "off" };
        let (client, server): (IpAddr, IpAddr) = match self.outer {
            4 => (CLIENT4.into(), SERVER4.into()),
            _ => (CLIENT6.into(), SERVER6.into()),
        };
        let ends = [
            (&lab.client, client, server, 1, CLIENT, SERVER, 2),
            (&lab.server, server, client, 2, SERVER, CLIENT, 1),
        ];
        for (end, local, remote, mac, own, other, other_mac) in ends {
            let mac_words =
                if self.header > 0 { format!("address 02:00:00:00:77:0{mac}") } else { String::new() };
            let local = if self.device == "geneve" { String::new() } else { format!("local {local}") };
            let (device, more) = (self.device, self.more);
            end.run(&format!(
                "ip link add {DEVICE} {mac_words} type {device} {local} remote {remote} {more}"
            ));
            end.run(&format!("ethtool -K {DEVICE} tso {state} gso {state} gro {state}"));
            // Before anything is sent.
            end.run(&format!("tc qdisc add dev {DEVICE} root pfifo limit 100000"));
            end.run(&format!("ip link set {DEVICE} mtu {}", 1500 - self.overhead));
            end.run(&format!("ip addr add {}/24 dev {DEVICE}", own.0));
            end.run(&format!("ip addr add {}/64 dev {DEVICE} nodad", own.1));
            if self.header > 0 {
                for address in [IpAddr::from(other.0), other.1.into()] {
                    end.run(&format!(
                        "ip neigh replace {address} lladdr 02:00:00:00:77:0{other_mac} dev {DEVICE} nud permanent"
                    ));
                }
            }
        }
        // Only now that both are there: to what comes too early the other end would answer.
        for end in [&lab.client, &lab.server] {
            end.run(&format!("ip link set {DEVICE} up"));
        }
    }

    /// The client's address outside of it, as a prefix.
    pub fn client(&self) -> String {
        if self.outer == 4 { format!("{CLIENT4}/32") } else { format!("{CLIENT6}/128") }
    }
}

/// Whether this kernel has a kind of device. Where `NETAMS_REQUIRE_DEVICES=1` it must.
pub fn has_device(kind: &str) -> bool {
    let scratch = Namespace::new(&unique_name());
    scratch.run("ip link add base type veth peer name other");
    let words = match kind {
        "vlan" => "link base name probe type vlan id 7".to_owned(),
        "vxlan" => "probe type vxlan id 7 remote 192.0.2.1 dstport 4789".to_owned(),
        "geneve" => "probe type geneve id 7 remote 192.0.2.1".to_owned(),
        "ip6gre" | "ip6tnl" => format!("probe type {kind} remote 2001:db8::1 local 2001:db8::2"),
        _ => format!("probe type {kind} remote 192.0.2.1 local 192.0.2.2"),
    };
    let mut add = scratch.command("ip");
    add.args(["link", "add"]).args(words.split_whitespace());
    let there = Command::output(&mut add).expect("ip runs").status.success();
    assert!(
        there || std::env::var_os("NETAMS_REQUIRE_DEVICES").is_none_or(|v| v != "1"),
        "this kernel has no {kind} devices"
    );
    if !there {
        println!("skipped: this kernel has no {kind} devices");
    }
    there
}
