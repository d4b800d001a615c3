//! The two header parsers, that of the kernel program and that of user space, give equal answers.
//!
//! Frames of the captures in `tests/traces`, as they are and mutated, are given to the very `parse()` of the meter by
//! BPF_PROG_TEST_RUN, and to [`netamsd::packet`]. Compared are verdict, flow key, wire packets, layer-3 bytes, and which
//! fragment of what a packet is; later fragments are compared before they join the flow of their first one. Each frame is
//! parsed twice, as one of an Ethernet device, and without its Ethernet header as a packet of a device that has none: so
//! raw IP captures take part. What the captures ought to give is told in [`truth`], which needs no root.
//!
//! BPF_PROG_TEST_RUN takes no more than a page: longer frames are cut, for both sides alike. It takes no frame whose EtherType
//! is that of IP and that is shorter than an IP header: such a one gets a VLAN tag. And it takes no VLAN tag in the packet's
//! metadata, and makes no packet that is not in one piece.

mod captures;
mod kernel;
mod mutate;
mod truth;
mod wrap;

use std::collections::BTreeMap;

use kmod_bpf::{FlowKey, key_flag, tunnel};
use netamsd::packet::{self, Fragment, Gso, Link, Packet, Parsed};

use captures::Frame;
use kernel::{Answers, Kernel, Layer, Said};
use mutate::{Random, mutate};

const ETHERNET_HEADER: usize = 14;
/// 802.1Q, VLAN 1.
const TAG: [u8; 4] = [0x81, 0, 0, 1];
/// Frames of one capture that are mutated; some captures have very many alike.
const POOL: usize = 48;
const MUTATED: usize = 100_000;
/// Sets another number of mutated frames; of fewer than [`LEAST`] some kinds of packets may be missing.
const MUTATED_VARIABLE: &str = "NETAMS_MUTATED";
const LEAST: usize = 1000;
const SEED: u64 = 0x6e65_7461_6d73;

/// What user space says of a frame.
fn user_space(layer: Layer, frame: &[u8], gso: Gso) -> Answers {
    let (data, parsed) = match layer {
        Layer::Ethernet => (frame, packet::parse_ethernet(frame, frame.len() as u32, gso)),
        Layer::Ip => {
            let (header, ip) = frame.split_at(ETHERNET_HEADER);
            let ethertype = u16::from_be_bytes([header[12], header[13]]);
            (ip, packet::parse_ip(ip, ip.len() as u32, ethertype, gso))
        }
    };
    let said = |p: &Packet| Said::Ip {
        key: p.key,
        fragment: p.fragment,
        packets: p.packets,
        bytes: p.bytes,
        headers_unknown: p.headers_unknown,
    };
    match parsed {
        Parsed::Ip(p) => {
            let inner = packet::inner(data, data.len() as u32, gso, &p);
            Answers { outer: said(&p), inner: inner.as_ref().map(said) }
        }
        Parsed::NonIp => Answers { outer: Said::NonIp { packets: gso.packets() }, inner: None },
        Parsed::Malformed => Answers { outer: Said::Malformed { packets: gso.packets() }, inner: None },
    }
}

/// Compares the answers to one frame, and returns them.
fn compare(kernel: &Kernel, frame: &[u8], gso: Gso, name: &str) -> Vec<Answers> {
    let mut frame = frame[..frame.len().min(kernel::MAX_FRAME)].to_vec();
    if frame.len() < ETHERNET_HEADER {
        return Vec::new();
    }
    let mut layers = &[Layer::Ethernet, Layer::Ip][..];
    if !kernel::takes(&frame) {
        frame.splice(12..12, TAG);
        layers = &[Layer::Ethernet];
    }
    let both = layers.iter().map(|layer| {
        let (said, expected) = (user_space(*layer, &frame, gso), kernel.ask(*layer, &frame, gso));
        assert_eq!(said, expected, "user space, kernel: {name}, {layer:?}, {gso:?}, {frame:02x?}");
        said
    });
    both.collect()
}

/// A frame of an Ethernet device: of a raw IP packet, one with an Ethernet header put in front.
fn with_ethernet_header(frame: &Frame) -> Option<Vec<u8>> {
    match (frame.link, frame.ethertype()) {
        (Link::Ethernet, _) => Some(frame.data.clone()),
        (_, Some(ethertype)) => Some([&[0; 12][..], &ethertype.to_be_bytes(), &frame.data].concat()),
        _ => None,
    }
}

/// Every capture by name, with those of its frames that are or can be made Ethernet frames.
fn ethernet_captures() -> Vec<(String, Vec<Vec<u8>>)> {
    let captures = captures::all().into_iter();
    captures.map(|(name, frames)| (name, frames.iter().filter_map(with_ethernet_header).collect())).collect()
}

#[test]
fn every_captured_packet_is_parsed_alike() {
    let Some(kernel) = Kernel::load() else { return };
    let mut compared = 0;
    for (name, frames) in ethernet_captures() {
        for frame in &frames {
            compared += compare(&kernel, frame, Gso::NONE, &name).len();
        }
    }
    assert!(compared > 2 * 95_000, "{compared} compared");
    println!("{compared} answers compared");
}

#[test]
fn mutated_packets_are_parsed_alike() {
    let Some(kernel) = Kernel::load() else { return };
    // IPv6 and what is no IP are rarer in the captures than they are to be here.
    let [mut ipv4, mut ipv6, mut other] = [const { Vec::new() }; 3];
    for (_, frames) in ethernet_captures() {
        let step = frames.len().div_ceil(POOL).max(1);
        for frame in frames.into_iter().step_by(step) {
            match user_space(Layer::Ethernet, &frame, Gso::NONE).outer {
                Said::Ip { key, .. } if key.version == 4 => ipv4.push(frame),
                Said::Ip { .. } => ipv6.push(frame),
                _ => other.push(frame),
            }
        }
    }
    let pools = [&ipv4, &ipv4, &ipv4, &ipv4, &ipv6, &ipv6, &ipv6, &other];
    let mut random = Random(SEED);
    let mut met = BTreeMap::<_, usize>::new();
    let count = mutated();
    for number in 0..count {
        let pool = *random.pick(&pools);
        let mut frame = random.pick(pool).clone();
        let gso = mutate(&mut random, &mut frame);
        for said in compare(&kernel, &frame, gso, &format!("number {number}")) {
            for (kind, is) in kinds(&said.outer).into_iter().chain(inner_kinds(&said.inner)) {
                *met.entry(kind).or_default() += usize::from(is);
            }
        }
    }
    println!("{met:?}");
    assert!(met.values().all(|met| *met > count / 250), "{met:?}");
}

fn mutated() -> usize {
    let asked = std::env::var(MUTATED_VARIABLE).ok();
    let count = asked.map_or(Some(MUTATED), |count| count.parse().ok());
    let enough = count.filter(|count| *count >= LEAST);
    enough.unwrap_or_else(|| panic!("{MUTATED_VARIABLE} is a number of at least {LEAST}"))
}

/// Kinds of tunnels, and whether a frame is one of each.
fn inner_kinds(said: &Option<Said>) -> [(&'static str, bool); 8] {
    let (key, unknown) = match said {
        Some(Said::Ip { key, headers_unknown, .. }) => (*key, *headers_unknown),
        _ => (FlowKey::default(), false),
    };
    let kind = key.flags >> key_flag::TUNNEL_SHIFT & tunnel::MASK;
    [
        ("IP in IP", kind == tunnel::IP),
        ("GRE", kind == tunnel::GRE),
        ("VXLAN", kind == tunnel::VXLAN),
        ("Geneve", kind == tunnel::GENEVE),
        ("Teredo", kind == tunnel::TEREDO),
        ("GTP-U", kind == tunnel::GTPU),
        ("tag in a tunnel", kind != tunnel::NONE && key.vlan != 0),
        ("inner headers unknown", unknown),
    ]
}

/// Kinds of answers, and whether one is of each: a comparison of packets that are all alike would say little.
fn kinds(said: &Said) -> [(&'static str, bool); 12] {
    let (key, fragment, packets, headers_unknown) = match *said {
        Said::Ip { key, fragment, packets, headers_unknown, .. } => (key, fragment, packets, headers_unknown),
        _ => (FlowKey::default(), Fragment::Whole, 0, false),
    };
    [
        ("not IP", matches!(said, Said::NonIp { .. })),
        ("malformed", matches!(said, Said::Malformed { .. })),
        ("IPv4", key.version == 4),
        ("IPv6", key.version == 6),
        ("ports", key.sport != [0; 2]),
        ("one tag", key.vlan != 0 && key.vlan_inner == 0),
        ("two tags", key.vlan_inner != 0),
        ("chain too long or cut", key.version == 6 && mutate::EXTENSIONS.contains(&key.proto)),
        ("first fragment", matches!(fragment, Fragment::First { .. })),
        ("later fragment", matches!(fragment, Fragment::Later { .. })),
        ("several packets", packets > 1),
        ("headers unknown", headers_unknown),
    ]
}
