//! The lab: client - router - server, each in a namespace, joined by veth pairs.
//!
//! ```text
//! client eth0 ---------- cl0 router sv0 ---------- eth0 server ---> sink prefixes (discarded)
//! 192.0.2.2          192.0.2.1   198.51.100.1   198.51.100.2        203.0.113.0/24
//! 2001:db8:1::2   2001:db8:1::1  2001:db8:2::1  2001:db8:2::2       2001:db8:ff::/48
//! ```
//!
//! Neighbours are static, and nothing sends on its own: what moves is what a test sends. The two ends have a pfifo at
//! eth0, whose counters are one of the truths (see [`crate::truth`]). The router alone, with the client as its peer, is
//! the lone-host lab: send to [`ROUTER4`].

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ns::{Namespace, unique_name};

/// The client's IPv4 address.
pub const CLIENT4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The router's IPv4 address at `cl0`.
pub const ROUTER4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The server's IPv4 address.
pub const SERVER4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// First address of the IPv4 prefix (/24) that the server discards without an answer.
pub const SINK4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
/// The client's IPv6 address.
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
/// The router's IPv6 address at `cl0`.
pub const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
/// The server's IPv6 address.
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 2);
/// First address of the IPv6 prefix (/48) that the server discards without an answer.
pub const SINK6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 0);

/// Ethernet address of the client's `eth0`.
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 1, 2];
/// Ethernet address of the router's `cl0`.
pub const CL0_MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
/// Ethernet address of the router's `sv0`.
pub const SV0_MAC: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// Ethernet address of the server's `eth0`.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];

/// Whether segmentation is left to the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offloads {
    /// TSO, GSO and GRO on at every interface: the router sees super-packets.
    On,
    /// All off: the router sees wire packets.
    Off,
}

/// Three namespaces and their wires; everything is removed when it is dropped.
pub struct Lab {
    /// Sends, usually.
    pub client: Namespace,
    /// Forwards; where the daemon runs.
    pub router: Namespace,
    /// Receives, usually.
    pub server: Namespace,
}

impl Lab {
    /// A lab with an MTU of 1500 and offloads on.
    pub fn new() -> Self {
        Self::with(Offloads::On, 1500)
    }

    /// A lab with the given offloads and MTU on all wires.
    pub fn with(offloads: Offloads, mtu: u32) -> Self {
        let name = unique_name();
        let [client, router, server] = ["c", "r", "s"].map(|role| Namespace::new(&format!("{name}-{role}")));
        let lab = Self { client, router, server };
        for end in [&lab.router, &lab.server] {
            end.sysctl("ipv4/ip_forward=1");
            end.sysctl("ipv6/conf/all/forwarding=1");
        }
        lab.wire(&lab.client, "cl0", CLIENT_MAC, CL0_MAC, mtu);
        lab.wire(&lab.server, "sv0", SERVER_MAC, SV0_MAC, mtu);
        lab.addresses();
        lab.set_offloads(offloads);
        for end in [&lab.client, &lab.server] {
            end.run("tc qdisc add dev eth0 root pfifo limit 100000");
        }
        lab
    }

    /// Turns segmentation offloads on or off at both ends of both wires.
    pub fn set_offloads(&self, offloads: Offloads) {
        let state = if offloads == Offloads::On { "on" } else { "off" };
        let ends =
            [(&self.client, "eth0"), (&self.router, "cl0"), (&self.router, "sv0"), (&self.server, "eth0")];
        for (namespace, device) in ends {
            namespace.run(&format!(
                "ethtool -K {device} tso {state} gso {state} gro {state} tx-udp-segmentation {state}"
            ));
        }
    }

    /// Adds a wire from `device` in the router to `peer` in the client, without addresses, both ends up. Frames for it
    /// go to the Ethernet address of `cl0`; the router forwards them like any other.
    pub fn add_wire(&self, device: &str, peer: &str) {
        self.router.run(&format!(
            "ip link add {device} address {} type veth peer name {peer} netns {}",
            mac_text(CL0_MAC),
            self.client.name()
        ));
        self.client.run(&format!("ip link set {peer} up"));
        self.router.run(&format!("ip link set {device} up"));
    }

    /// Makes `cl0` the port of a bridge `br0`, which takes over its addresses.
    pub fn bridge_client(&self) {
        let mac = mac_text(CL0_MAC);
        self.router.run(&format!("ip link add br0 address {mac} type bridge"));
        self.router.run("ip link set br0 up");
        self.router.run("ip addr flush dev cl0");
        self.router.run("ip link set cl0 master br0");
        let client = mac_text(CLIENT_MAC);
        for (address, neighbour) in
            [("192.0.2.1/24", "192.0.2.2"), ("2001:db8:1::1/64 nodad", "2001:db8:1::2")]
        {
            self.router.run(&format!("ip addr add {address} dev br0"));
            self.router.run(&format!("ip neigh replace {neighbour} lladdr {client} dev br0 nud permanent"));
        }
    }

    fn wire(&self, end: &Namespace, device: &str, end_mac: [u8; 6], router_mac: [u8; 6], mtu: u32) {
        // Four queues: senders on different CPUs do not wait for each other.
        self.router.run(&format!(
            "ip link add {device} address {} mtu {mtu} numtxqueues 4 numrxqueues 4 type veth peer name eth0 \
             address {} mtu {mtu} numtxqueues 4 numrxqueues 4 netns {}",
            mac_text(router_mac),
            mac_text(end_mac),
            end.name()
        ));
        self.router.run(&format!("ip link set {device} up"));
        end.run("ip link set eth0 up");
    }

    fn addresses(&self) {
        // Namespace, device, its addresses, its only neighbour.
        let rows = [
            (
                &self.router,
                "cl0",
                "192.0.2.1/24",
                "2001:db8:1::1/64",
                ["192.0.2.2", "2001:db8:1::2"],
                CLIENT_MAC,
            ),
            (
                &self.router,
                "sv0",
                "198.51.100.1/24",
                "2001:db8:2::1/64",
                ["198.51.100.2", "2001:db8:2::2"],
                SERVER_MAC,
            ),
            (
                &self.client,
                "eth0",
                "192.0.2.2/24",
                "2001:db8:1::2/64",
                ["192.0.2.1", "2001:db8:1::1"],
                CL0_MAC,
            ),
            (
                &self.server,
                "eth0",
                "198.51.100.2/24",
                "2001:db8:2::2/64",
                ["198.51.100.1", "2001:db8:2::1"],
                SV0_MAC,
            ),
        ];
        for (namespace, device, v4, v6, neighbours, mac) in rows {
            namespace.run(&format!("ip addr add {v4} dev {device}"));
            namespace.run(&format!("ip addr add {v6} dev {device} nodad"));
            for neighbour in neighbours {
                let mac = mac_text(mac);
                namespace
                    .run(&format!("ip neigh replace {neighbour} lladdr {mac} dev {device} nud permanent"));
                if device == "eth0" {
                    namespace.run(&format!("ip route add default via {neighbour}"));
                }
            }
        }
        self.router.run(&format!("ip route add {SINK4}/24 via {SERVER4}"));
        self.router.run(&format!("ip route add {SINK6}/48 via {SERVER6}"));
        self.server.run(&format!("ip route add blackhole {SINK4}/24"));
        self.server.run(&format!("ip route add blackhole {SINK6}/48"));
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
