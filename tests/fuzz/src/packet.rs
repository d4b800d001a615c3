//! [`netamsd::packet`]: headers of packets that anyone on the network can send.
//!
//! An input is what the parser is told, [`TOLD`] bytes, and the captured bytes.

use netamsd::packet::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, Gso, Packet, Parsed, parse_ethernet, parse_ip,
};

use crate::capture_file;

/// Index in [`LINKS`], bytes that were not captured, size and number of segments; little-endian.
const TOLD: usize = 1 + 4 + 4 + 4;
/// Link types by their numbers at tcpdump.org: Ethernet, IPv4, IPv6.
const LINKS: [u32; 3] = [1, 228, 229];
/// LINKTYPE_RAW: the version is in the packet.
const RAW: [u32; 3] = [101, 12, 14];
/// Frames of each capture, and bytes of each frame.
const SEEDS: (usize, usize) = (8, 256);

/// Frames of the captures in `tests/traces`, as they are and as super-packets.
pub fn seeds() -> Vec<Vec<u8>> {
    let (most, captured) = SEEDS;
    let frames = capture_file::frames(most, captured).into_iter();
    let known = frames.filter_map(|(link, frame)| Some((index(link, &frame)?, frame)));
    known.flat_map(|(index, frame)| [(0, 0), (9000, 1448)].map(|told| input(index, told, &frame))).collect()
}

/// Index in [`LINKS`] of a frame's link type.
fn index(link: u32, frame: &[u8]) -> Option<u8> {
    let six = frame.first().is_some_and(|first| first >> 4 == 6);
    let link = if RAW.contains(&link) { 228 + u32::from(six) } else { link };
    LINKS.iter().position(|known| *known == link).map(|index| index as u8)
}

fn input(index: u8, (beyond, size): (u32, u32), frame: &[u8]) -> Vec<u8> {
    [&[index][..], &beyond.to_le_bytes(), &size.to_le_bytes(), &[0; 4], frame].concat()
}

/// Any bytes have exactly one answer, which says no more than what is there.
pub fn check(data: &[u8]) {
    let Some((told, frame)) = data.split_first_chunk::<TOLD>() else { return };
    let word = |at: usize| u32::from_le_bytes([told[at], told[at + 1], told[at + 2], told[at + 3]]);
    let link = LINKS[usize::from(told[0]) % LINKS.len()];
    let (beyond, gso) = (word(1), Gso { size: word(5), segs: word(9) });
    let captured = frame.len() as u32;
    let len = captured.saturating_add(beyond);

    let one = parse(link, frame, len, Gso::NONE);
    let super_packet = parse(link, frame, len, gso);
    assert!(gso.packets() >= 1);
    assert_eq!(
        parse(link, frame, 0, gso),
        parse(link, frame, captured, gso),
        "shorter than what was captured"
    );
    match (one, super_packet) {
        (Parsed::Ip(one), Parsed::Ip(super_packet)) => {
            headers(frame, &one);
            single(len, &one);
            segments(len, gso, &one, &super_packet);
            alone(frame, len, gso, &super_packet);
        }
        (one, super_packet) => assert_eq!(one, super_packet, "headers do not depend on segments"),
    }
}

fn parse(link: u32, frame: &[u8], len: u32, gso: Gso) -> Parsed {
    match link {
        228 => parse_ip(frame, len, ETHERTYPE_IPV4, gso),
        229 => parse_ip(frame, len, ETHERTYPE_IPV6, gso),
        _ => parse_ethernet(frame, len, gso),
    }
}

/// The answer is about headers that are there.
fn headers(frame: &[u8], packet: &Packet) {
    let Packet { key, fragment, l3, l4, .. } = *packet;
    let least = match key.version {
        4 => 20,
        6 => 40,
        version => panic!("IP version {version}"),
    };
    assert!(l3 + least <= frame.len(), "an IP header that was not captured");
    assert_eq!(frame[l3] >> 4, key.version);
    assert_eq!((key.flags, key.used, key.tunnel), (0, 0, 0));
    assert!(key.vlan < 4096 && key.vlan_inner < 4096);
    assert!(l4.is_none_or(|l4| l4 >= l3 + least));
    let ported = l4.is_some_and(|l4| l4 < frame.len());
    assert!(ported || (key.sport, key.dport) == ([0; 2], [0; 2]), "ports that were not captured");
    if key.version == 4 {
        let later = matches!(fragment, Fragment::Later { .. });
        assert_eq!(l4.is_none(), later);
        assert!(
            [key.src, key.dst]
                .iter()
                .all(|address| address[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255])
        );
    }
}

/// One packet has at least one byte, and none more than there are behind the link layer.
fn single(len: u32, packet: &Packet) {
    let least = if packet.key.version == 4 { 1 } else { 40 };
    assert!((least..=u64::from(len) - packet.l3 as u64).contains(&packet.bytes), "{} bytes", packet.bytes);
    assert_eq!((packet.packets, packet.headers_unknown), (1, false));
}

/// A super-packet differs from one packet in counts alone, and they are within what its headers allow.
fn segments(len: u32, gso: Gso, one: &Packet, packet: &Packet) {
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
    // The longest TCP header has 60 bytes; eight of a jumbo header are not on the wire.
    let most = packet.l4.map_or(0, |l4| l4 - packet.l3 + 60) as u64;
    let (first, rest) = (u64::from(room), u64::from(packets - 1));
    assert!((first - 8..=first + rest * most).contains(&bytes), "{bytes} bytes");
}

/// What is in front of the IP header changes nothing but the offsets and the VLAN ids.
fn alone(frame: &[u8], len: u32, gso: Gso, packet: &Packet) {
    let ethertype = if packet.key.version == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    let mut expected = *packet;
    (expected.key.vlan, expected.key.vlan_inner, expected.l3) = (0, 0, 0);
    expected.l4 = packet.l4.map(|l4| l4 - packet.l3);
    let parsed = parse_ip(&frame[packet.l3..], len - packet.l3 as u32, ethertype, gso);
    assert_eq!(parsed, Parsed::Ip(expected));
}
