//! Tunnels.

use kmod_bpf::{key_flag, tunnel};

use super::*;

const ETHERNET: u16 = 0x6558;
const TAG: [u8; 4] = [0x81, 0x00, 0x00, 0x07];

fn gre(flags: u16, kind: u16, optional: &[u8], payload: &[u8]) -> Vec<u8> {
    [&flags.to_be_bytes()[..], &kind.to_be_bytes(), optional, payload].concat()
}

/// VNI 0x123456.
fn vxlan(payload: &[u8]) -> Vec<u8> {
    udp(50_000, 4789, &[&[8, 0, 0, 0, 0x12, 0x34, 0x56, 0xff], payload].concat())
}

/// VNI 0x123456; `words` of options.
fn geneve(words: u8, kind: u16, payload: &[u8]) -> Vec<u8> {
    let [a, b] = kind.to_be_bytes();
    let options = vec![0xee; usize::from(words) * 4];
    udp(50_000, 6081, &[&[words, 0xff, a, b, 0x12, 0x34, 0x56, 0xff], &options[..], payload].concat())
}

/// TEID 0x12345678.
fn gtpu(flags: u8, optional: &[u8], payload: &[u8]) -> Vec<u8> {
    udp(2152, 2152, &[&[0x30 | flags, 255, 0xff, 0xff, 0x12, 0x34, 0x56, 0x78], optional, payload].concat())
}

fn teredo(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    udp(3544, 50_000, &[headers, payload].concat())
}

/// A frame with an IPv4 packet.
fn carrier(proto: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(&[&IPV4, &ipv4(proto, 0, payload)])
}

/// Where the innermost IP header of a frame is.
fn found(frame: &[u8]) -> Option<usize> {
    innermost(frame).map(|packet| packet.l3)
}

#[test]
fn an_inner_packet_has_a_key_of_its_own_and_that_of_the_tunnel() {
    let (four, six) = (ipv4(TCP, 0, &UPPER), ipv6(TCP, &UPPER));
    let frame = |ethertype: &[u8], packet: &[u8]| ethernet(&[ethertype, packet]);
    // The frame is in VLAN 7; Ethernet inside has no tag.
    let cases = [
        (4, four.clone(), 7, tunnel::IP, 0, 4),
        (41, six.clone(), 7, tunnel::IP, 0, 6),
        (GRE, gre(0, 0x0800, &[], &four), 7, tunnel::GRE, 0, 4),
        (GRE, gre(0, 0x86dd, &[], &six), 7, tunnel::GRE, 0, 6),
        (GRE, gre(0x2000, ETHERNET, &[1, 2, 3, 4], &frame(&IPV4, &four)), 0, tunnel::GRE, 0x0102_0304, 4),
        (UDP, vxlan(&frame(&IPV6, &six)), 0, tunnel::VXLAN, 0x12_3456, 6),
        (UDP, geneve(0, ETHERNET, &frame(&IPV4, &four)), 0, tunnel::GENEVE, 0x12_3456, 4),
        (UDP, geneve(3, 0x0800, &four), 7, tunnel::GENEVE, 0x12_3456, 4),
        (UDP, geneve(63, 0x86dd, &six), 7, tunnel::GENEVE, 0x12_3456, 6),
        (UDP, teredo(&[], &six), 7, tunnel::TEREDO, 0, 6),
        (UDP, gtpu(0, &[], &four), 7, tunnel::GTPU, 0x1234_5678, 4),
        (UDP, gtpu(0, &[], &six), 7, tunnel::GTPU, 0x1234_5678, 6),
    ];
    for (proto, payload, vlan, kind, key, version) in cases {
        let packet = if version == 4 { &four } else { &six };
        let parsed = if version == 4 { ip(parse4(packet)) } else { ip(parse6(packet)) };
        for around in [ipv4(proto, 3, &payload), chain(&[60], proto, &payload)] {
            let kind_of_ip = if around[0] >> 4 == 4 { IPV4 } else { IPV6 };
            let frame = ethernet(&[&TAG, &kind_of_ip, &around]);
            let outer = ip(parse_frame(&frame));
            assert_eq!((outer.key.proto, outer.key.flags, outer.key.tunnel), (proto, 0, 0));
            assert_eq!(outer.bytes, around.len() as u64);
            let inner = innermost(&frame).expect("an inner packet");
            let l3 = frame.len() - packet.len();
            let flags = kind << key_flag::TUNNEL_SHIFT;
            let expected = Packet {
                key: FlowKey { vlan, flags, tunnel: key, ..parsed.key },
                l3,
                l4: parsed.l4.map(|l4| l3 + l4),
                ..parsed
            };
            assert_eq!(inner, expected, "{kind} in {around:x?}");
        }
    }
    for proto in (0..=255).filter(|proto| ![4, 41, GRE].contains(proto)) {
        assert_eq!(innermost(&carrier(proto, &four)), None, "{proto}");
    }
}

#[test]
fn gre_has_optional_words_and_is_of_version_0() {
    let packet = ipv4(UDP, 0, &UPPER);
    // Checksum, key, sequence number; with the place of the key.
    let cases = [
        (0x0000, 0, None),
        (0x8000, 1, None),
        (0x1000, 1, None),
        (0x9000, 2, None),
        (0x2000, 1, Some(0)),
        (0xa000, 2, Some(1)),
        (0x3000, 2, Some(0)),
        (0xb000, 3, Some(1)),
    ];
    for (flags, words, key) in cases {
        // Strict source route, recursion and reserved bits have no meaning without a route.
        for flags in [flags, flags | 0x0ff8] {
            let mut optional = vec![0xee; words * 4];
            if let Some(word) = key {
                optional[word * 4..][..4].copy_from_slice(&[1, 2, 3, 4]);
            }
            let inner = innermost(&carrier(GRE, &gre(flags, 0x0800, &optional, &packet))).expect("a packet");
            let expected = (38 + 4 * words, if key.is_some() { 0x0102_0304 } else { 0 });
            assert_eq!((inner.l3, inner.key.tunnel), expected, "{flags:x}");
            assert_ports(&inner, UDP, 258, 772);
        }
    }
    // Source routing, and other versions.
    for flags in [0x4000, 0x0001, 0x2001, 0x0002, 0x0004] {
        assert_eq!(found(&carrier(GRE, &gre(flags, 0x0800, &[0; 4], &packet))), None, "{flags:x}");
    }
    // MPLS, a VLAN tag, PPP, WCCP: neither IP nor Ethernet.
    for kind in [0x8847, 0x8100, 0x880b, 0x883e] {
        assert_eq!(found(&carrier(GRE, &gre(0, kind, &[], &packet))), None, "{kind:x}");
    }
}

#[test]
fn the_first_udp_port_of_a_tunnel_decides() {
    let (four, six) = (ipv4(UDP, 0, &UPPER), ipv6(UDP, &UPPER));
    let kind = |sport, dport, payload: &[u8]| {
        let ports = [u16::to_be_bytes(sport), u16::to_be_bytes(dport)].concat();
        let inner = innermost(&carrier(UDP, &[&ports, &payload[4..]].concat()));
        inner.map_or(tunnel::NONE, |inner| inner.key.flags >> key_flag::TUNNEL_SHIFT)
    };
    let vxlan = vxlan(&ethernet(&[&IPV4, &four]));
    let (geneve, teredo, gtpu) = (geneve(0, 0x0800, &four), teredo(&[], &six), gtpu(0, &[], &four));
    assert_eq!(kind(2152, 4789, &vxlan), tunnel::VXLAN);
    assert_eq!(kind(3544, 6081, &geneve), tunnel::GENEVE);
    assert_eq!((kind(3544, 1, &teredo), kind(1, 3544, &teredo)), (tunnel::TEREDO, tunnel::TEREDO));
    assert_eq!(kind(2152, 3544, &teredo), tunnel::TEREDO);
    assert_eq!((kind(2152, 1, &gtpu), kind(1, 2152, &gtpu)), (tunnel::GTPU, tunnel::GTPU));
    // Not as a source port, not by another number, and not one after the other.
    assert_eq!((kind(4789, 1, &vxlan), kind(6081, 1, &geneve)), (tunnel::NONE, tunnel::NONE));
    assert_eq!((kind(1, 8472, &vxlan), kind(1, 4790, &vxlan)), (tunnel::NONE, tunnel::NONE));
    assert_eq!((kind(3544, 4789, &teredo), kind(2152, 3544, &gtpu)), (tunnel::NONE, tunnel::NONE));
    // UDP-Lite has ports, and is no UDP.
    assert_eq!(innermost(&carrier(UDP_LITE, &vxlan)), None);
}

#[test]
fn headers_of_tunnels_that_are_not_understood_end_the_search() {
    let (four, six) = (ipv4(UDP, 0, &UPPER), ipv6(UDP, &UPPER));
    let frame = ethernet(&[&IPV4, &four]);
    let altered = |mut payload: Vec<u8>, at: usize, value: u8| {
        payload[8 + at] = value;
        found(&carrier(UDP, &payload))
    };
    // VXLAN: the flag of the VNI, whatever the others are.
    assert_eq!(altered(vxlan(&frame), 0, 0xff), Some(64));
    assert_eq!(altered(vxlan(&frame), 0, 0xf7), None);
    // Geneve: version 0; critical and control bits do not matter, other payloads do.
    assert_eq!(altered(geneve(0, 0x0800, &four), 1, 0xc0), Some(50));
    for version in [0x40, 0x80, 0xc0] {
        assert_eq!(altered(geneve(0, 0x0800, &four), 0, version), None);
    }
    assert_eq!(found(&carrier(UDP, &geneve(0, 0x8847, &four))), None);
    // GTP: version 1, not GTP', a user's packet; a spare bit does not matter.
    assert_eq!(altered(gtpu(0, &[], &four), 0, 0x38), Some(50));
    for first in [0x10, 0x20, 0x50, 0x70] {
        assert_eq!(altered(gtpu(0, &[], &four), 0, first), None, "{first:x}");
    }
    for message in [1, 26, 254] {
        assert_eq!(altered(gtpu(0, &[], &four), 1, message), None, "{message}");
    }
    // Teredo is IPv6, GTP-U is either and nothing else.
    assert_eq!(found(&carrier(UDP, &teredo(&[], &four))), None);
    assert_eq!(found(&carrier(UDP, &teredo(&[], &six))), Some(42));
    assert_eq!(found(&carrier(UDP, &gtpu(0, &[], &[0x55; 60]))), None);
}

#[test]
fn teredo_may_authenticate_and_tell_the_origin() {
    let six = ipv6(UDP, &UPPER);
    // Client identifier of 3 bytes, value of 5, nonce and confirmation.
    let authentication = [&[0, 1, 3, 5][..], &[0xee; 3 + 5 + 9]].concat();
    let origin = [0, 0, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee];
    let both = [&authentication[..], &origin].concat();
    for headers in [&[][..], &authentication, &[&[0, 1, 0, 0][..], &[0xee; 9]].concat(), &origin, &both] {
        let inner = innermost(&carrier(UDP, &teredo(headers, &six))).expect("an inner packet");
        assert_eq!((inner.l3, inner.bytes), (42 + headers.len(), 104), "{headers:x?}");
    }
    let wrong_order = [&origin[..], &authentication].concat();
    for headers in [&wrong_order[..], &[&origin[..], &origin].concat(), &[0, 2]] {
        assert_eq!(found(&carrier(UDP, &teredo(headers, &six))), None, "{headers:x?}");
    }
}

#[test]
fn gtp_has_four_optional_bytes_and_extension_headers() {
    let packet = ipv4(UDP, 0, &UPPER);
    // Extension headers of 4, 8 and 4 bytes, each with the type of the next one at its end.
    let extensions = [1, 0, 0, 0x85, 2, 0, 0, 0, 0, 0, 0, 0xc0, 1, 0, 0, 0];
    let cases: [(u8, &[u8], Option<usize>); 12] = [
        (0, &[], Some(0)),
        (1, &[0, 0, 0, 0], Some(4)),
        (2, &[0, 0, 0, 0], Some(4)),
        (3, &[0, 0, 0, 0x85], Some(4)),
        (4, &[0, 0, 0, 0], Some(4)),
        (4, &[&[0, 0, 0, 0x85][..], &extensions].concat(), Some(20)),
        (7, &[&[0, 0, 0, 0x85][..], &extensions].concat(), Some(20)),
        // Without the flag there are none, and its number is what another field is.
        (3, &[&[0, 0, 0, 0x85][..], &extensions].concat(), None),
        (4, &[0, 0, 0, 0x85, 1, 0, 0, 0], Some(8)),
        (4, &[0, 0, 0, 0x85, 0, 0, 0, 0], None),
        (4, &[&[0, 0, 0, 0x85, 255][..], &[0; 1019]].concat(), Some(1024)),
        (4, &[&[0, 0, 0, 0x85][..], &[1, 0, 0, 1].repeat(70), &[1, 0, 0, 0]].concat(), Some(288)),
    ];
    for (flags, optional, l3) in cases {
        let frame = carrier(UDP, &gtpu(flags, optional, &packet));
        assert_eq!(found(&frame), l3.map(|l3| 50 + l3), "{flags}: {optional:x?}");
    }
    // Reaching past the end.
    let frame = carrier(UDP, &gtpu(4, &[0, 0, 0, 0x85, 255], &packet));
    assert_eq!(found(&frame), None);
}

#[test]
fn ethernet_in_a_tunnel_is_looked_through_like_the_frame_itself() {
    let packet = ipv4(UDP, 0, &UPPER);
    let label: &[u8] = &[0x88, 0x47, 0, 1, 0x11, 64];
    let session: &[u8] = &[0x88, 0x64, 0x11, 0, 0, 1, 0, 0, 0x21];
    let service: &[u8] = &[0x88, 0xa8, 0x00, 0x09];
    // Link-layer headers inside, and VLAN ids of the inner packet; the outer ones are 7 and 7.
    type Headers<'a> = &'a [&'a [u8]];
    let cases: [(Headers, Option<(u16, u16)>); 7] = [
        (&[&IPV4], Some((0, 0))),
        (&[service, &IPV4], Some((9, 0))),
        (&[service, &TAG, &IPV4], Some((9, 7))),
        (&[service, &TAG, label], Some((9, 7))),
        (&[&TAG, session], Some((7, 0))),
        (&[service, &TAG, &TAG, &IPV4], None),
        (&[&[0x08, 0x06]], None),
    ];
    for (headers, vlans) in cases {
        let payload = ethernet(&[&headers.concat(), &packet]);
        let cases = [(UDP, vxlan(&payload)), (GRE, gre(0, ETHERNET, &[], &payload))];
        for (proto, payload) in cases {
            let around = ipv4(proto, 0, &payload);
            let frame = ethernet(&[&TAG, &TAG, &IPV4, &around]);
            let inner = innermost(&frame);
            assert_eq!(inner.map(|inner| (inner.key.vlan, inner.key.vlan_inner)), vlans, "{headers:x?}");
            assert_eq!(inner.map(|inner| inner.l3), vlans.map(|_| frame.len() - packet.len()));
        }
    }
    // Where no Ethernet is nearer, the ids are those of the packet around.
    let nested = vxlan(&ethernet(&[service, &IPV4, &ipv4(4, 0, &ipv4(41, 0, &ipv6(UDP, &UPPER)))]));
    let key = innermost(&ethernet(&[&TAG, &IPV4, &ipv4(UDP, 0, &nested)])).expect("a packet").key;
    assert_eq!((key.vlan, key.vlan_inner, key.version), (9, 0, 6));
}

#[test]
fn the_third_packet_inside_is_the_last_one() {
    let nested = |levels: u32| {
        (0..levels).fold(ipv4(UDP, 0, &UPPER), |packet, level| match level % 2 {
            0 => ipv4(4, 0, &packet),
            _ => ipv4(GRE, 0, &gre(0x2000, 0x0800, &level.to_be_bytes(), &packet)),
        })
    };
    // Bytes between the outermost IP header and that of the innermost packet; kind and key of the tunnel around it.
    let cases = [
        (0, None),
        (1, Some((20, tunnel::IP, 0))),
        (2, Some((28 + 20, tunnel::IP, 0))),
        (3, Some((20 + 28 + 20, tunnel::IP, 0))),
        // Of four and five levels only three are taken off.
        (4, Some((28 + 20 + 28, tunnel::GRE, 1))),
        (5, Some((20 + 28 + 20, tunnel::IP, 0))),
    ];
    for (levels, expected) in cases {
        let frame = ethernet(&[&IPV4, &nested(levels)]);
        let got = innermost(&frame)
            .map(|inner| (inner.l3 - 14, inner.key.flags >> key_flag::TUNNEL_SHIFT, inner.key.tunnel));
        assert_eq!(got, expected, "{levels}");
    }
    assert_eq!(innermost(&ethernet(&[&IPV4, &nested(5)])).expect("a packet").key.proto, GRE);
}

#[test]
fn what_is_malformed_inside_ends_the_search_there() {
    let mut packet = ipv4(UDP, 0, &UPPER);
    for first in [0x44, 0x55, 0x65, 0x4f] {
        packet[0] = first;
        let frame = carrier(4, &packet[..40]);
        assert_eq!(found(&frame), None, "{first:x}");
        let two = carrier(4, &ipv4(4, 0, &packet[..40]));
        assert_eq!(found(&two), Some(34), "{first:x}");
    }
    // The protocol says which version it is.
    assert_eq!(found(&carrier(41, &ipv4(UDP, 0, &UPPER))), None);
    assert_eq!(found(&carrier(4, &ipv6(UDP, &UPPER))), None);
}

#[test]
fn inner_bytes_are_the_inner_length_unless_it_cannot_be_right() {
    // Padding, the whole, too much, and 0.
    for (field, bytes) in [(40, 40), (84, 84), (85, 84), (0, 84), (10, 10)] {
        let mut packet = ipv4(UDP, 0, &UPPER);
        packet[2..4].copy_from_slice(&u16::to_be_bytes(field));
        for frame in [carrier(4, &packet), carrier(UDP, &vxlan(&ethernet(&[&IPV4, &packet])))] {
            assert_eq!(innermost(&frame).expect("a packet").bytes, bytes, "{field}");
            // Captured in part.
            let l3 = found(&frame).expect("a packet");
            let (data, len) = (&frame[..l3 + 20], frame.len() as u32);
            let outer = ip(parse_ethernet(data, len, Gso::NONE));
            assert_eq!(inner(data, len, Gso::NONE, &outer).expect("a packet").bytes, bytes, "{field}");
        }
    }
    // The length of the packet around does not limit that of the one in it.
    let mut around = ipv4(4, 0, &ipv4(UDP, 0, &UPPER));
    around[2..4].copy_from_slice(&[0, 30]);
    let frame = ethernet(&[&IPV4, &around]);
    assert_eq!((ip(parse_frame(&frame)).bytes, innermost(&frame).expect("a packet").bytes), (30, 84));
}

#[test]
fn a_first_fragment_is_decapsulated_and_a_later_one_is_not() {
    let id = u32::from(u16::from_ne_bytes([0xab, 0xcd]));
    let fragment = |flags: u16, mut packet: Vec<u8>| {
        packet[6..8].copy_from_slice(&flags.to_be_bytes());
        packet
    };
    let packet = ipv4(UDP, 0, &UPPER);
    let in_fragment = |flags| ethernet(&[&IPV4, &fragment(flags, ipv4(4, 0, &packet))]);
    assert_eq!(innermost(&in_fragment(0x2000)).map(|inner| inner.fragment), Some(Fragment::Whole));
    assert_eq!(innermost(&in_fragment(0x2001)), None);
    assert_eq!(innermost(&in_fragment(0x0001)), None);
    // Fragments in a tunnel are told apart like others.
    let first = innermost(&carrier(4, &fragment(0x2000, packet.clone()))).expect("a packet");
    assert_eq!(first.fragment, Fragment::First { id, proto: UDP });
    assert_ports(&first, UDP, 258, 772);
    let later = innermost(&carrier(4, &fragment(0x0001, packet.clone()))).expect("a packet");
    assert_eq!((later.fragment, later.l4), (Fragment::Later { id, proto: UDP }, None));
    assert_ports(&later, UDP, 0, 0);
    assert_eq!(later.key.flags, tunnel::IP << key_flag::TUNNEL_SHIFT);
    // What is behind an unfinished chain of extension headers is out of reach.
    assert_eq!(innermost(&ethernet(&[&IPV6, &chain(&[60; 9], 4, &packet)])), None);
    assert_eq!(found(&ethernet(&[&IPV6, &chain(&[60; 8], 4, &packet)])), Some(14 + 40 + 64));
}

#[test]
fn what_is_cut_short_in_a_tunnel_is_not_there() {
    use Gives::{Inner, Malformed, NonIp, Outer};
    let (four, six) = (ipv4(UDP, 2, &UPPER), ipv6(UDP, &UPPER));
    let start = |l3: usize| [(0, NonIp), (14, Malformed), (34, Outer(14)), (l3, Inner(14, l3))];
    // The innermost header is there when all of it is.
    let whole = |l3: usize, header: usize| {
        let [a, b, c, (_, inner)] = start(l3);
        [a, b, c, (l3 + header, inner)]
    };
    let ethernet_in = |headers: &[u8]| ethernet(&[headers, &four]);
    let tagged = ethernet_in(&[&TAG[..], &IPV4].concat());
    let session = ethernet_in(&[0x88, 0x64, 0x11, 0, 0, 1, 0, 0, 0x21]);
    let authentication = [&[0, 1, 3, 5][..], &[0xee; 17], &[0; 8]].concat();
    let extensions = [0, 0, 0, 0x85, 2, 0, 0, 0, 0, 0, 0, 0];
    let cases = [
        (4, four.clone(), 34, 28),
        (41, six.clone(), 34, 40),
        (GRE, gre(0xb000, 0x0800, &[0; 12], &four), 50, 28),
        (GRE, gre(0x2000, ETHERNET, &[0; 4], &tagged), 60, 28),
        (UDP, vxlan(&session), 71, 28),
        (UDP, geneve(5, 0x86dd, &six), 70, 40),
        (UDP, teredo(&authentication, &six), 71, 40),
        (UDP, gtpu(7, &extensions, &four), 62, 28),
    ];
    for (proto, payload, l3, header) in cases {
        assert_eq!(cuts(Link::Ethernet, &carrier(proto, &payload)), whole(l3, header), "{proto} {l3}");
    }
    // Level by level.
    let frame = carrier(41, &ipv6(GRE, &gre(0, 0x0800, &[], &ipv4(4, 0, &four))));
    let levels = [
        (0, NonIp),
        (14, Malformed),
        (34, Outer(14)),
        (74, Inner(14, 34)),
        (98, Inner(14, 78)),
        (126, Inner(14, 98)),
    ];
    assert_eq!(cuts(Link::Ethernet, &frame), levels);
}
