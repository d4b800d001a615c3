//! What the captures ought to give, by the slow reader that wrote the `.json` beside each; see `tests/traces/README.md`.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use kmod_bpf::{FlowKey, FragmentKey};
use netamsd::packet::{Fragment, Gso, Packet, Parsed, parse_ethernet, parse_ip};
use serde_json::Value;

use crate::captures::{self, ETHERNET, Frame};

/// Captures with PPPoE or MPLS, whose headers the truth looks through and the daemon does not.
const NOT_LOOKED_THROUGH: [&str; 6] = [
    "exthdr--pppoe.pcap",
    "malformed--trunc-mpls-6in6-broken.pcap",
    "mpls--mpls-in-vlan.pcap",
    "mpls--tunnels-mpls-6in6-6in6-invalid-version-6.pcap",
    "pppoe--pppoe-over-qinq.pcap",
    "tunnel-6in6--tunnels-mpls-6in6-6in6-4in6-invalid-version-4.pcap",
];

/// Version, source, destination, protocol, source port, destination port.
type Flow = (u8, IpAddr, IpAddr, u8, u16, u16);

/// What one capture gives.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    frames: u64,
    non_ip: u64,
    malformed: u64,
    /// Packets and bytes.
    flows: BTreeMap<Flow, (u64, u64)>,
}

fn account(frames: &[Frame]) -> Account {
    let mut account = Account::default();
    let mut first_fragments = Vec::new();
    for frame in frames {
        account.frames += 1;
        let parsed = match frame.ethertype() {
            Some(ethertype) => parse_ip(&frame.data, frame.len, ethertype, Gso::NONE),
            None => parse_ethernet(&frame.data, frame.len, Gso::NONE),
        };
        match parsed {
            Parsed::Ip(packet) => {
                let counts = account.flows.entry(flow(&join(&packet, &mut first_fragments))).or_default();
                counts.0 += u64::from(packet.packets);
                counts.1 += packet.bytes;
            }
            Parsed::NonIp => account.non_ip += 1,
            Parsed::Malformed => account.malformed += 1,
        }
    }
    account
}

/// The flow of a packet: of a later fragment that of the latest first one.
fn join(packet: &Packet, first_fragments: &mut Vec<(FragmentKey, FlowKey)>) -> FlowKey {
    let FlowKey { src, dst, version, .. } = packet.key;
    let common = |id, proto| FragmentKey { src, dst, id, proto, version, layer: 0 };
    match packet.fragment {
        Fragment::Whole => packet.key,
        Fragment::First { id, proto } => {
            first_fragments.push((common(id, proto), packet.key));
            packet.key
        }
        Fragment::Later { id, proto } => {
            let common = common(id, proto);
            let first = first_fragments.iter().rev().find(|(key, _)| *key == common);
            first.map_or(packet.key, |(_, flow)| *flow)
        }
    }
}

fn flow(key: &FlowKey) -> Flow {
    let address = |bytes| match Ipv6Addr::from(bytes) {
        v6 if key.version == 6 => v6.into(),
        mapped => mapped.to_ipv4_mapped().expect("IPv4 is held v4-mapped").into(),
    };
    let (sport, dport) = (u16::from_be_bytes(key.sport), u16::from_be_bytes(key.dport));
    (key.version, address(key.src), address(key.dst), key.proto, sport, dport)
}

fn truth(capture: &str) -> Account {
    let file = captures::folder().join(capture).with_extension("json");
    let text = fs::read_to_string(&file).expect("the truth of a capture");
    let truth: Value = serde_json::from_str(&text).expect("JSON");
    let mut account = Account {
        frames: number(&truth["frames"]),
        non_ip: number(&truth["non_ip"]),
        malformed: number(&truth["malformed"]),
        flows: BTreeMap::new(),
    };
    for flow in truth["outer"].as_array().expect("an array of flows") {
        let key = (
            number(&flow["ver"]),
            address(&flow["src"]),
            address(&flow["dst"]),
            number(&flow["proto"]),
            number(&flow["sport"]),
            number(&flow["dport"]),
        );
        account.flows.insert(key, (number(&flow["packets"]), number(&flow["bytes"])));
    }
    account
}

fn number<T: TryFrom<u64>>(value: &Value) -> T {
    value.as_u64().and_then(|n| n.try_into().ok()).unwrap_or_else(|| panic!("{value} is no such number"))
}

fn address(value: &Value) -> IpAddr {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value} is no address"))
}

#[test]
fn captures_give_what_the_truth_says() {
    let mut compared = 0;
    for (name, frames) in captures::all() {
        if frames.iter().any(|frame| frame.link != ETHERNET && frame.ethertype().is_none()) {
            continue;
        }
        let (account, truth) = (account(&frames), truth(&name));
        if NOT_LOOKED_THROUGH.contains(&name.as_str()) {
            assert!(account.non_ip > truth.non_ip, "{name} has neither PPPoE nor MPLS");
            continue;
        }
        assert_eq!(account, truth, "user space, truth: {name}");
        compared += 1;
    }
    assert!(compared > 100, "{compared} captures compared");
}
