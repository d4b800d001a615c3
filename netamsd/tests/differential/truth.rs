//! What the captures ought to give, by the slow reader that wrote the `.json` beside each; see `tests/traces/README.md`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use kmod_bpf::{FlowKey, FragmentKey};
use netamsd::packet::{Fragment, Gso, Packet, Parsed, inner, parse_link};
use serde_json::Value;

use crate::captures::{self, Frame};

/// Version, source, destination, protocol, source port, destination port.
type Flow = (u8, IpAddr, IpAddr, u8, u16, u16);
/// With packets and bytes.
type Flows = BTreeMap<Flow, (u64, u64)>;

/// What one capture gives.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    frames: u64,
    non_ip: u64,
    malformed: u64,
    outer: Flows,
    inner: Flows,
}

/// What one layer of a capture gives.
#[derive(Default)]
struct View {
    layer: u16,
    flows: Flows,
    first_fragments: HashMap<FragmentKey, FlowKey>,
}

impl View {
    fn add(&mut self, packet: &Packet) {
        let flow = flow(&self.join(packet));
        let counts = self.flows.entry(flow).or_default();
        counts.0 += u64::from(packet.packets);
        counts.1 += packet.bytes;
    }

    /// The flow of a packet: of a later fragment that of the latest first one.
    fn join(&mut self, packet: &Packet) -> FlowKey {
        let FlowKey { src, dst, version, .. } = packet.key;
        let common = |id, proto| FragmentKey { src, dst, id, proto, version, layer: self.layer };
        match packet.fragment {
            Fragment::Whole => packet.key,
            Fragment::First { id, proto } => {
                self.first_fragments.insert(common(id, proto), packet.key);
                packet.key
            }
            Fragment::Later { id, proto } => {
                self.first_fragments.get(&common(id, proto)).copied().unwrap_or(packet.key)
            }
        }
    }
}

fn account(frames: &[Frame]) -> Account {
    let mut account = Account { frames: frames.len() as u64, ..Account::default() };
    let [mut outer_view, mut inner_view] = [0, 1].map(|layer| View { layer, ..View::default() });
    for Frame { link, data, len } in frames {
        match parse_link(*link, data, *len, Gso::NONE) {
            Parsed::Ip(packet) => {
                outer_view.add(&packet);
                if let Some(packet) = inner(data, *len, Gso::NONE, &packet) {
                    inner_view.add(&packet);
                }
            }
            Parsed::NonIp => account.non_ip += 1,
            Parsed::Malformed => account.malformed += 1,
        }
    }
    Account { outer: outer_view.flows, inner: inner_view.flows, ..account }
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
    Account {
        frames: number(&truth["frames"]),
        non_ip: number(&truth["non_ip"]),
        malformed: number(&truth["malformed"]),
        outer: flows(&truth["outer"]),
        inner: flows(&truth["inner"]),
    }
}

fn flows(value: &Value) -> Flows {
    let flow = |flow: &Value| {
        let key = (
            number(&flow["ver"]),
            address(&flow["src"]),
            address(&flow["dst"]),
            number(&flow["proto"]),
            number(&flow["sport"]),
            number(&flow["dport"]),
        );
        (key, (number(&flow["packets"]), number(&flow["bytes"])))
    };
    value.as_array().expect("an array of flows").iter().map(flow).collect()
}

fn number<T: TryFrom<u64>>(value: &Value) -> T {
    value.as_u64().and_then(|n| n.try_into().ok()).unwrap_or_else(|| panic!("{value} is no such number"))
}

fn address(value: &Value) -> IpAddr {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value} is no address"))
}

#[test]
fn captures_give_what_the_truth_says() {
    let captures = captures::all();
    assert_eq!(captures.len(), 127);
    let mut inner_packets = 0;
    for (name, frames) in captures {
        let account = account(&frames);
        assert_eq!(account, truth(&name), "user space, truth: {name}");
        inner_packets += account.inner.values().map(|(packets, _)| packets).sum::<u64>();
    }
    assert_eq!(inner_packets, 800, "packets in tunnels");
}
