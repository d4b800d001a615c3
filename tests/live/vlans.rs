//! TCP over VLANs to the router: the tag is known whether the device has taken it off the frame or not.

use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{Lab, Offloads, SERVER4};
use netams_tests::ledger::assert_ledger;
use netams_tests::overlay::has_device;
use netams_tests::tcp::{self, Transfer};
use netams_tests::truth::{ETHERNET, Traffic, qdisc_of};
use netams_tests::{amount, require_live};

/// Tags on the wire, outer one first, as protocol and id.
type Tags = &'static [(&'static str, u16)];

/// The devices of the tags on top of `device`; the name of the uppermost one.
fn tagged(end: &netams_tests::ns::Namespace, device: &str, tags: Tags) -> String {
    // A second tag in the frame takes its room from the packet.
    let mtu = 1500 - 4 * (tags.len() - 1);
    tags.iter().fold(device.to_owned(), |below, (proto, id)| {
        let name = format!("{below}.{id}");
        end.run(&format!("ip link add link {below} name {name} type vlan proto {proto} id {id}"));
        end.run(&format!("ip link set {name} mtu {mtu} up"));
        name
    })
}

fn counts_exactly(tags: Tags, offloads: Offloads, tag_offload: &str) {
    let lab = Lab::with(offloads, 1500);
    for (end, device) in [(&lab.client, "eth0"), (&lab.router, "cl0")] {
        for feature in ["txvlan", "rxvlan", "tx-vlan-stag-hw-insert", "rx-vlan-stag-hw-parse"] {
            end.run(&format!("ethtool -K {device} {feature} {tag_offload}"));
        }
    }
    let (client, router) = (tagged(&lab.client, "eth0", tags), tagged(&lab.router, "cl0", tags));
    lab.client.run(&format!("ip addr add 10.88.0.2/24 dev {client}"));
    lab.router.run(&format!("ip addr add 10.88.0.1/24 dev {router}"));
    lab.client.run(&format!("tc qdisc add dev {client} root pfifo limit 100000"));
    lab.router.run(&format!("tc qdisc add dev {router} root pfifo limit 100000"));
    lab.client.run(&format!("ip route replace {SERVER4}/32 via 10.88.0.1 dev {client} src 10.88.0.2"));
    let neighbour = |end: &netams_tests::ns::Namespace, device: &str, address: &str, mac: &str| {
        end.run(&format!("ip neigh replace {address} lladdr {mac} dev {device} nud permanent"));
    };
    neighbour(&lab.client, &client, "10.88.0.1", "02:00:00:00:01:01");
    neighbour(&lab.router, &router, "10.88.0.2", "02:00:00:00:01:02");
    let daemon = Daemon::start(&lab.router, &Config { interfaces: vec!["cl0"], ..Config::default() });
    let sent = || [qdisc_of(&lab.client, &client, ETHERNET), qdisc_of(&lab.router, &router, ETHERNET)];
    let before = sent();
    for (port, reverse) in [(5500, false), (5501, true)] {
        tcp::run(&lab, Transfer { port, bytes: amount(20_000_000), version: 4, reverse });
    }
    let after = sent();
    let what = format!("{tags:?}, offloads {offloads:?}, tags by the device: {tag_offload}");
    let ids = (tags[0].1, tags.get(1).map_or(0, |(_, id)| *id));
    for (way, sent) in [("--src", after[0] - before[0]), ("--dst", after[1] - before[1])] {
        let flows = daemon.flows(&[way, "10.88.0.2/32"]);
        assert_eq!(Traffic { packets: flows.packets, bytes: flows.bytes }, sent, "{way}, {what}");
        assert!(!flows.flows.is_empty());
        for flow in &flows.flows {
            assert_eq!((flow.vlan, flow.vlan_inner), ids, "{way}, {what}");
        }
    }
    assert_ledger(&daemon.ledger());
}

fn with_and_without_offloads(tags: Tags) {
    if !require_live() || !has_device("vlan") {
        return;
    }
    for offloads in [Offloads::On, Offloads::Off] {
        for tag_offload in ["on", "off"] {
            counts_exactly(tags, offloads, tag_offload);
        }
    }
}

#[test]
fn one_tag() {
    with_and_without_offloads(&[("802.1Q", 7)]);
}

#[test]
fn qinq() {
    with_and_without_offloads(&[("802.1ad", 7), ("802.1Q", 20)]);
}

#[test]
fn two_tags_of_the_customers_kind() {
    with_and_without_offloads(&[("802.1Q", 7), ("802.1Q", 20)]);
}
