//! [`netamsd::packet`]: headers of packets that anyone on the network can send.
//!
//! An input is what the parser is told, [`TOLD`] bytes, and the captured bytes.

use kmod_bpf::{key_flag, tunnel};
use netamsd::packet::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, Gso, Link, Packet, Parsed, inner, parse_ethernet, parse_ip,
    parse_link,
};

use crate::capture_file;

/// Index in [`LINKS`], bytes that were not captured, size and number of segments; little-endian.
const TOLD: usize = 1 + 4 + 4 + 4;
/// Numbers of link types at tcpdump.org, all that are read.
const LINKS: [u16; 12] = [1, 113, 276, 101, 228, 229, 0, 108, 9, 50, 12, 14];
/// Frames of each capture, and bytes of each frame.
const SEEDS: (usize, usize) = (8, 256);
/// Longest TCP header.
const TCP_HEADER: usize = 60;
/// Bytes of jumbo headers, which are not on the wire, in four IP packets around each other.
const JUMBO_HEADERS: u64 = 4 * 8;

/// Frames of the captures in `tests/traces`, as they are and as super-packets.
pub fn seeds() -> Vec<Vec<u8>> {
    let (most, captured) = SEEDS;
    let frames = capture_file::frames(most, captured).into_iter();
    let known = frames.filter_map(|(link, frame)| Some((index(link)?, frame)));
    known.flat_map(|(index, frame)| [(0, 0), (9000, 1448)].map(|told| input(index, told, &frame))).collect()
}

/// Index in [`LINKS`].
fn index(link: u32) -> Option<u8> {
    LINKS.iter().position(|known| u32::from(*known) == link).map(|index| index as u8)
}

fn input(index: u8, (beyond, size): (u32, u32), frame: &[u8]) -> Vec<u8> {
    [&[index][..], &beyond.to_le_bytes(), &size.to_le_bytes(), &[0; 4], frame].concat()
}

/// Any bytes have exactly one answer in each layer, which says no more than what is there.
pub fn check(data: &[u8]) {
    let Some((told, frame)) = data.split_first_chunk::<TOLD>() else { return };
    let word = |at: usize| u32::from_le_bytes([told[at], told[at + 1], told[at + 2], told[at + 3]]);
    let link = Link::new(LINKS[usize::from(told[0]) % LINKS.len()]).expect("a link type that is read");
    let (beyond, gso) = (word(1), Gso { size: word(5), segs: word(9) });
    let captured = frame.len() as u32;
    let len = captured.saturating_add(beyond);

    let parsed = parse_link(link, frame, len, gso);
    assert!(gso.packets() >= 1);
    let (short, whole) = (parse_link(link, frame, 0, gso), parse_link(link, frame, captured, gso));
    assert_eq!(short, whole, "shorter than what was captured");
    if link == Link::Ethernet {
        assert_eq!(parse_ethernet(frame, len, gso), parsed);
    }
    match (parse_link(link, frame, len, Gso::NONE), parsed) {
        (Parsed::Ip(one), Parsed::Ip(outer)) => {
            assert_eq!((one.key.flags, one.key.tunnel), (0, 0));
            let inside = inner(frame, len, Gso::NONE, &one);
            single(frame, len, &one);
            alone(frame, len, gso, &outer);
            segments(len, gso, (&one, &outer), inside.as_ref());
            match (inside, inner(frame, len, gso, &outer)) {
                (Some(one), Some(packet)) => {
                    single(frame, len, &one);
                    carried(&outer, &packet);
                    alone(frame, len, Gso::NONE, &one);
                    segments(len, Gso { segs: outer.packets, ..gso }, (&one, &packet), None);
                }
                (one, packet) => assert_eq!(one, packet, "headers do not depend on segments"),
            }
        }
        (one, parsed) => assert_eq!(one, parsed, "headers do not depend on segments"),
    }
}

/// What is said of one packet is about headers that are there, and its bytes are behind what is around it.
fn single(frame: &[u8], len: u32, packet: &Packet) {
    let Packet { key, fragment, l3, l4, .. } = *packet;
    let least = match key.version {
        4 => 20,
        6 => 40,
        version => panic!("IP version {version}"),
    };
    assert!(l3 + least <= frame.len(), "an IP header that was not captured");
    assert_eq!(frame[l3] >> 4, key.version);
    assert_eq!(key.used, 0);
    assert!(key.vlan < 4096 && key.vlan_inner < 4096);
    assert!(l4.is_none_or(|l4| l4 >= l3 + least));
    let ported = l4.is_some_and(|l4| l4 < frame.len());
    assert!(ported || (key.sport, key.dport) == ([0; 2], [0; 2]), "ports that were not captured");
    if key.version == 4 {
        let later = matches!(fragment, Fragment::Later { .. });
        assert_eq!(l4.is_none(), later);
        let mapped = |address: [u8; 16]| address.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]);
        assert!(mapped(key.src) && mapped(key.dst));
    }
    let fewest = if key.version == 4 { 1 } else { 40 };
    assert!((fewest..=u64::from(len) - l3 as u64).contains(&packet.bytes), "{} bytes", packet.bytes);
    assert_eq!((packet.packets, packet.headers_unknown), (1, false));
}

/// A packet in a tunnel lies behind the headers of the outer one, and is as many on the wire.
fn carried(outer: &Packet, packet: &Packet) {
    assert!(Some(packet.l3) >= outer.l4);
    assert_eq!(packet.packets, outer.packets);
    let kind = packet.key.flags >> key_flag::TUNNEL_SHIFT;
    assert_eq!(kind << key_flag::TUNNEL_SHIFT, packet.key.flags);
    assert!((tunnel::IP..=tunnel::GTPU).contains(&kind), "a tunnel of kind {kind}");
    assert!(
        packet.key.tunnel == 0 || ![tunnel::IP, tunnel::TEREDO].contains(&kind),
        "a key that it cannot have"
    );
}

/// A super-packet differs from `one` packet in counts alone, and they are within what its headers, and those of a packet
/// `inside`, allow.
fn segments(len: u32, gso: Gso, (one, packet): (&Packet, &Packet), inside: Option<&Packet>) {
    let Packet { packets, bytes, headers_unknown, .. } = *packet;
    assert_eq!(Packet { packets, bytes, headers_unknown, ..*one }, *packet);
    if gso.size == 0 {
        return assert_eq!(one, packet);
    }
    let room = len - packet.l3 as u32;
    match gso.segs {
        0 => assert!((1..=room.div_ceil(gso.size).max(1)).contains(&packets), "{packets} packets"),
        segs => assert_eq!(packets, segs),
    }
    let ends = [Some(one), inside].into_iter().flatten().filter_map(|packet| packet.l4);
    let most = ends.max().map_or(0, |end| end - packet.l3 + TCP_HEADER) as u64;
    let (first, rest) = (u64::from(room), u64::from(packets - 1));
    assert!((first.saturating_sub(JUMBO_HEADERS)..=first + rest * most).contains(&bytes), "{bytes} bytes");
}

/// What is in front of the IP header changes nothing but the offsets, the VLAN ids, and the tunnel it is in.
fn alone(frame: &[u8], len: u32, gso: Gso, packet: &Packet) {
    let ethertype = if packet.key.version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    let mut expected = *packet;
    (expected.key.vlan, expected.key.vlan_inner, expected.l3) = (0, 0, 0);
    (expected.key.flags, expected.key.tunnel) = (0, 0);
    expected.l4 = packet.l4.map(|l4| l4 - packet.l3);
    let parsed = parse_ip(&frame[packet.l3..], len - packet.l3 as u32, ethertype, gso);
    assert_eq!(parsed, Parsed::Ip(expected));
}
