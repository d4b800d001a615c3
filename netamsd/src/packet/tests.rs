use proptest::prelude::*;

use super::{ip::*, segments::JUMBO_OPTION, *};

const SRC: [u8; 4] = [10, 0, 0, 1];
const DST: [u8; 4] = [192, 0, 2, 7];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// Source port 258, destination port 772, a TCP header of 32 bytes where it is one, and payload.
const UPPER: [u8; 64] = {
    let mut bytes = [0; 64];
    [bytes[0], bytes[1], bytes[2], bytes[3]] = [1, 2, 3, 4];
    bytes[12] = 8 << 4;
    bytes
};

/// A frame under construction; whatever is put in front of an IP header comes as EtherType and what follows it.
fn ethernet(parts: &[&[u8]]) -> Vec<u8> {
    [&[0xee; 12][..], &parts.concat()].concat()
}

/// An IPv4 packet with `options` words of options and a right total length.
fn ipv4(proto: u8, options: u8, payload: &[u8]) -> Vec<u8> {
    let header = 20 + usize::from(options) * 4;
    let mut ip = vec![0x45 + options, 0, 0, 0, 0xab, 0xcd, 0, 0, 64, proto, 0, 0];
    ip.extend([SRC, DST].concat());
    ip.resize(header, 1);
    ip.extend(payload);
    let len = ip.len() as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    ip
}

/// An IPv6 packet with a right payload length.
fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend((payload.len() as u16).to_be_bytes());
    ip.extend([next, 64]);
    ip.extend([[0x11; 16], [0x22; 16]].concat());
    ip.extend(payload);
    ip
}

/// A chain of extension headers of the given kinds, 8 bytes each, in front of `upper` and its kind.
fn chain(kinds: &[u8], last: u8, upper: &[u8]) -> Vec<u8> {
    let next = kinds.iter().skip(1).chain([&last]);
    let headers = kinds.iter().zip(next).flat_map(|(_, next)| [*next, 0, 0, 0, 0, 0, 0, 0]);
    let packet: Vec<u8> = headers.chain(upper.iter().copied()).collect();
    ipv6(*kinds.first().unwrap_or(&last), &packet)
}

fn parse4(packet: &[u8]) -> Parsed {
    parse_ip(packet, packet.len() as u32, ETHERTYPE_IPV4, Gso::NONE)
}

fn parse6(packet: &[u8]) -> Parsed {
    parse_ip(packet, packet.len() as u32, ETHERTYPE_IPV6, Gso::NONE)
}

fn parse_frame(frame: &[u8]) -> Parsed {
    parse_ethernet(frame, frame.len() as u32, Gso::NONE)
}

#[track_caller]
fn ip(parsed: Parsed) -> Packet {
    match parsed {
        Parsed::Ip(packet) => packet,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_ports(packet: &Packet, proto: u8, sport: u16, dport: u16) {
    let ports = (u16::from_be_bytes(packet.key.sport), u16::from_be_bytes(packet.key.dport));
    assert_eq!((packet.key.proto, ports), (proto, (sport, dport)));
}

#[test]
fn a_key_has_every_field_of_the_packet_and_nothing_else() {
    let packet = ip(parse4(&ipv4(TCP, 0, &UPPER)));
    let expected = FlowKey {
        src: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        dst: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7],
        sport: [1, 2],
        dport: [3, 4],
        proto: 6,
        version: 4,
        ..FlowKey::default()
    };
    assert_eq!(packet.key, expected);
    assert_eq!((packet.packets, packet.bytes, packet.headers_unknown), (1, 84, false));
    assert_eq!((packet.fragment, packet.l3, packet.l4), (Fragment::Whole, 0, Some(20)));

    let packet = ip(parse6(&ipv6(UDP, &UPPER)));
    let expected = FlowKey {
        src: [0x11; 16],
        dst: [0x22; 16],
        sport: [1, 2],
        dport: [3, 4],
        proto: 17,
        version: 6,
        ..FlowKey::default()
    };
    assert_eq!(packet.key, expected);
    assert_eq!((packet.packets, packet.bytes, packet.l3, packet.l4), (1, 104, 0, Some(40)));
}

#[test]
fn two_tags_are_looked_through_and_a_third_is_no_ip() {
    let packet = ipv4(UDP, 0, &UPPER);
    let (one, priority): (&[u8], &[u8]) = (&[0x81, 0x00, 0xf0, 0x07], &[0x81, 0x00, 0xe0, 0x00]);
    let (service, former): (&[u8], &[u8]) = (&[0x88, 0xa8, 0x0f, 0xff], &[0x91, 0x00, 0x00, 0x05]);
    let cases: [(&[&[u8]], u16, u16); 6] = [
        (&[], 0, 0),
        (&[one], 7, 0),
        (&[former], 5, 0),
        (&[service, one], 4095, 7),
        (&[priority, one], 0, 7),
        (&[former, former], 5, 5),
    ];
    for (tags, vlan, vlan_inner) in cases {
        let frame = ethernet(&[&tags.concat(), &IPV4, &packet]);
        let parsed = ip(parse_frame(&frame));
        assert_eq!((parsed.key.vlan, parsed.key.vlan_inner), (vlan, vlan_inner), "{tags:?}");
        assert_eq!((parsed.bytes, parsed.l3), (84, 14 + 4 * tags.len()));
        assert_eq!(parsed.l4, Some(parsed.l3 + 20));
        assert_ports(&parsed, UDP, 258, 772);
    }
    assert_eq!(parse_frame(&ethernet(&[service, one, one, &IPV4, &packet])), Parsed::NonIp);
}

#[test]
fn what_the_link_layer_does_not_call_ip_is_no_ip() {
    let packet = ipv4(UDP, 0, &UPPER);
    let types: [&[u8]; 5] = [&[0x08, 0x06], &[0x88, 0x64], &[0x88, 0x47], &[0x00, 0x54], &[0x88, 0xcc]];
    for kind in types {
        assert_eq!(parse_frame(&ethernet(&[kind, &packet])), Parsed::NonIp, "{kind:x?}");
    }
    assert_eq!(parse_ip(&packet, 84, 0x8847, Gso::NONE), Parsed::NonIp);
    // A header of the link layer that is cut short.
    let tagged = ethernet(&[&[0x81, 0x00, 0x00, 0x07], &[0x81, 0x00, 0x00, 0x07], &IPV4]);
    for len in [0, 1, 13, 14, 17, 18, 21] {
        assert_eq!(parse_frame(&tagged[..len]), Parsed::NonIp, "{len}");
    }
    assert_eq!(parse_frame(&tagged), Parsed::Malformed);
}

#[test]
fn malformed_is_a_header_that_is_not_there_or_not_the_announced_one() {
    let (four, six) = (ipv4(UDP, 2, &UPPER), ipv6(UDP, &UPPER));
    for len in [0, 1, 19, 20, 27] {
        assert_eq!(parse4(&four[..len]), Parsed::Malformed, "{len}");
        assert_eq!(parse_ip(&four[..len], 92, ETHERTYPE_IPV4, Gso::NONE), Parsed::Malformed, "{len}");
    }
    for len in [0, 1, 39] {
        assert_eq!(parse6(&six[..len]), Parsed::Malformed, "{len}");
    }
    assert_eq!(parse4(&six), Parsed::Malformed);
    assert_eq!(parse6(&four), Parsed::Malformed);
    for first in [0x44, 0x40, 0x55, 0x05] {
        let mut packet = four.clone();
        packet[0] = first;
        assert_eq!(parse4(&packet), Parsed::Malformed, "{first:x}");
    }
    assert_eq!(parse_frame(&ethernet(&[&IPV6, &four])), Parsed::Malformed);
    // A whole header and nothing behind it is none of these.
    assert_ports(&ip(parse4(&four[..28])), UDP, 0, 0);
    assert_ports(&ip(parse6(&six[..40])), UDP, 0, 0);
}

#[test]
fn ports_are_those_of_protocols_that_have_them() {
    for proto in 0..=255 {
        let (sport, dport) = match proto {
            6 | 17 | 33 | 132 | 136 => (258, 772),
            1 | 58 => (0, 258),
            _ => (0, 0),
        };
        assert_ports(&ip(parse4(&ipv4(proto, 0, &UPPER))), proto, sport, dport);
        if !is_extension(proto) {
            assert_ports(&ip(parse6(&ipv6(proto, &UPPER))), proto, sport, dport);
        }
    }
    // IPv4 options are stepped over; ports that were not captured are 0.
    assert_ports(&ip(parse4(&ipv4(TCP, 10, &UPPER))), TCP, 258, 772);
    assert_ports(&ip(parse4(&ipv4(TCP, 10, &UPPER[..3]))), TCP, 0, 0);
    assert_ports(&ip(parse4(&ipv4(ICMP, 0, &UPPER[..2]))), ICMP, 0, 258);
    assert_ports(&ip(parse4(&ipv4(ICMP, 0, &UPPER[..1]))), ICMP, 0, 0);
}

#[test]
fn bytes_are_the_length_field_unless_it_cannot_be_right() {
    let mut four = ipv4(UDP, 0, &UPPER);
    for (field, len, bytes) in [(84, 84, 84), (84, 98, 84), (10, 84, 10), (0, 90, 90), (85, 84, 84)] {
        four[2..4].copy_from_slice(&u16::to_be_bytes(field));
        assert_eq!(ip(parse_ip(&four, len, ETHERTYPE_IPV4, Gso::NONE)).bytes, bytes, "{field} of {len}");
        // What is in front of the IP header is no part of it.
        let frame = ethernet(&[&[0x81, 0x00, 0x00, 0x01], &IPV4, &four]);
        assert_eq!(ip(parse_ethernet(&frame, len + 18, Gso::NONE)).bytes, bytes, "{field} of {len}");
    }
    let mut six = ipv6(UDP, &UPPER);
    for (field, len, bytes) in [(64, 104, 104), (64, 110, 104), (0, 104, 104), (65, 104, 104), (2, 104, 42)] {
        six[4..6].copy_from_slice(&u16::to_be_bytes(field));
        assert_eq!(ip(parse_ip(&six, len, ETHERTYPE_IPV6, Gso::NONE)).bytes, bytes, "{field} of {len}");
    }
    // A packet that was captured in part, one of more than 64 KiB, and a length below what was captured.
    four[2..4].copy_from_slice(&u16::to_be_bytes(1500));
    assert_eq!(ip(parse_ip(&four, 1500, ETHERTYPE_IPV4, Gso::NONE)).bytes, 1500);
    four[2..4].copy_from_slice(&[0, 0]);
    assert_eq!(ip(parse_ip(&four, 200_000, ETHERTYPE_IPV4, Gso::NONE)).bytes, 200_000);
    assert_eq!(ip(parse_ip(&four, 0, ETHERTYPE_IPV4, Gso::NONE)).bytes, 84);
}

#[test]
fn eight_extension_headers_are_walked_and_a_ninth_is_the_protocol() {
    let kinds = [0, 60, 43, 51, 60, 135, 60, 0];
    for (proto, size) in [(0, 0), (43, 0), (60, 0), (135, 0), (51, 0), (44, 0), (44, 200), (51, 1), (0, 2)] {
        let bytes = match proto {
            51 => (usize::from(size) + 2) * 4,
            44 => 8,
            _ => (usize::from(size) + 1) * 8,
        };
        let mut headers = vec![0; bytes];
        (headers[0], headers[1]) = (TCP, size);
        let packet = ip(parse6(&ipv6(proto, &[&headers[..], &UPPER].concat())));
        assert_ports(&packet, TCP, 258, 772);
        assert_eq!(packet.l4, Some(40 + bytes), "{proto} of size {size}");
    }
    let packet = ip(parse6(&chain(&kinds, UDP, &UPPER)));
    assert_ports(&packet, UDP, 258, 772);
    assert_eq!((packet.bytes, packet.l4), (40 + 64 + 64, Some(40 + 64)));
    let packet = ip(parse6(&chain(&kinds, DESTINATION_OPTIONS, &UPPER)));
    assert_ports(&packet, DESTINATION_OPTIONS, 0, 0);
    assert_eq!((packet.bytes, packet.l4), (168, None));
    assert_ports(&ip(parse6(&chain(&[60; 20], UDP, &UPPER))), DESTINATION_OPTIONS, 0, 0);
    // Without ports there is still an upper layer.
    assert_eq!(ip(parse6(&chain(&[0, 60], 59, &UPPER))).l4, Some(56));
}

#[test]
fn a_chain_that_is_cut_short_ends_at_what_was_captured() {
    let packet = chain(&[0, 43, 60], UDP, &UPPER);
    // 43 is named by the first header; the second names 60; the third names UDP.
    let cases = [
        (40, 0),
        (41, 43),
        (47, 43),
        (48, 43),
        (49, 60),
        (55, 60),
        (56, 60),
        (57, UDP),
        (63, UDP),
        (64, UDP),
    ];
    for (captured, proto) in cases {
        let parsed = ip(parse_ip(&packet[..captured], 128, ETHERTYPE_IPV6, Gso::NONE));
        assert_ports(&parsed, proto, 0, 0);
        assert_eq!((parsed.bytes, parsed.l4.is_some()), (128, captured == 64), "{captured}");
    }
    // Lengths that lead out of the packet.
    let mut packet = chain(&[0], UDP, &UPPER);
    packet[41] = 255;
    assert_ports(&ip(parse6(&packet)), UDP, 0, 0);
}

#[test]
fn fragments_are_told_apart_and_only_the_first_is_read() {
    let id4 = u32::from(u16::from_ne_bytes([0xab, 0xcd]));
    let mut packet = ipv4(UDP, 1, &UPPER);
    let whole = Fragment::Whole;
    let (first, later) = (Fragment::First { id: id4, proto: UDP }, Fragment::Later { id: id4, proto: UDP });
    let cases = [(0x0000, whole), (0x4000, whole), (0x8000, whole), (0x2000, first), (0x0001, later)];
    for (flags, fragment) in cases.into_iter().chain([(0x3fff, later), (0x1000, later)]) {
        packet[6..8].copy_from_slice(&u16::to_be_bytes(flags));
        let parsed = ip(parse4(&packet));
        assert_eq!(parsed.fragment, fragment, "{flags:x}");
        assert_eq!((parsed.key.flags, parsed.bytes), (0, 88));
        let has_ports = fragment != later;
        assert_ports(&parsed, UDP, if has_ports { 258 } else { 0 }, if has_ports { 772 } else { 0 });
        assert_eq!(parsed.l4, has_ports.then_some(24), "{flags:x}");
    }

    // A destination header in front of the fragment header and one behind it.
    let id6 = u32::from_ne_bytes([9, 8, 7, 6]);
    let mut packet = chain(&[60, 44, 60], TCP, &UPPER);
    packet[52..56].copy_from_slice(&[9, 8, 7, 6]);
    let (first, later) = (Fragment::First { id: id6, proto: 60 }, Fragment::Later { id: id6, proto: 60 });
    for (field, fragment) in
        [(0x0000, whole), (0x0006, whole), (0x0001, first), (0x0008, later), (0xffff, later)]
    {
        packet[50..52].copy_from_slice(&u16::to_be_bytes(field));
        let parsed = ip(parse6(&packet));
        assert_eq!(parsed.fragment, fragment, "{field:x}");
        if fragment == later {
            assert_ports(&parsed, 60, 0, 0);
            assert_eq!(parsed.l4, None);
        } else {
            assert_ports(&parsed, TCP, 258, 772);
            assert_eq!(parsed.l4, Some(64));
        }
    }
    // Of two fragment headers the inner one speaks.
    let mut packet = chain(&[44, 44], TCP, &UPPER);
    packet[43] = 1;
    assert_eq!(ip(parse6(&packet)).fragment, whole);
    // Known already when what follows is cut short.
    let mut packet = chain(&[44, 60], TCP, &[]);
    packet[43] = 1;
    assert_eq!(ip(parse6(&packet[..50])).fragment, Fragment::First { id: 0, proto: 60 });
}

#[test]
fn a_super_packet_is_its_segments_with_their_headers() {
    // Sizes, protocol and what is known -> packets, bytes, headers unknown; 20 IP + 32 TCP headers.
    let gso = |size, segs| Gso { size, segs };
    let cases = [
        (TCP, 772, 52 + 10_000, gso(1448, 7), 7, 52 * 7 + 10_000, false),
        (TCP, 772, 52 + 10_000, gso(1448, 0), 7, 52 * 7 + 10_000, false),
        (TCP, 772, 52 + 2896, gso(1448, 0), 2, 52 * 2 + 2896, false),
        (TCP, 772, 52 + 2897, gso(1448, 0), 3, 52 * 3 + 2897, false),
        (TCP, 772, 52, gso(1448, 0), 1, 52, false),
        (UDP, 772, 28 + 9000, gso(1200, 8), 8, 28 * 8 + 9000, false),
        (UDP, 772, 28 + 9000, gso(1200, 0), 8, 28 * 8 + 9000, false),
        (UDP, 4789, 20 + 9000, gso(1200, 0), 8, 20 * 8 + 9000, true),
        (UDP, 8472, 20 + 9000, gso(1200, 3), 3, 20 * 3 + 9000, true),
        (UDP, 6081, 20 + 9000, gso(1200, 3), 3, 20 * 3 + 9000, true),
        (UDP, 2152, 20 + 9000, gso(1200, 3), 3, 20 * 3 + 9000, true),
        (47, 0, 20 + 9000, gso(1200, 0), 8, 20 * 8 + 9000, true),
        // Segments without a size mean nothing.
        (TCP, 772, 84, gso(0, 7), 1, 84, false),
    ];
    for (proto, dport, len, gso, packets, bytes, unknown) in cases {
        let mut packet = ipv4(proto, 0, &UPPER);
        packet[22..24].copy_from_slice(&u16::to_be_bytes(dport));
        for total in [0, 84] {
            packet[2..4].copy_from_slice(&u16::to_be_bytes(total));
            let captured = &packet[..packet.len().min(len as usize)];
            let parsed = ip(parse_ip(captured, len, ETHERTYPE_IPV4, gso));
            let got = (parsed.packets, parsed.bytes, parsed.headers_unknown);
            assert_eq!(got, (packets, bytes, unknown), "{proto} {dport} {len} {gso:?}");
        }
    }
    // A TCP header that was not captured, and a later fragment, which has none.
    let mut packet = ipv4(TCP, 0, &UPPER);
    let parsed = ip(parse_ip(&packet[..32], 10_020, ETHERTYPE_IPV4, gso(1000, 0)));
    assert_eq!((parsed.packets, parsed.bytes, parsed.headers_unknown), (10, 10_200, false));
    packet[7] = 1;
    let parsed = ip(parse_ip(&packet, 10_000, ETHERTYPE_IPV4, gso(1000, 0)));
    assert_eq!((parsed.packets, parsed.bytes, parsed.headers_unknown), (10, 10_000, true));
    // In a frame, what is in front of the IP header is no part of it.
    let frame = ethernet(&[&[0x81, 0x00, 0x00, 0x01], &IPV6, &ipv6(TCP, &UPPER)]);
    let parsed = ip(parse_ethernet(&frame, 18 + 72 + 10_000, gso(1428, 0)));
    assert_eq!((parsed.packets, parsed.bytes), (8, 72 * 8 + 10_000));
    // Extension headers are in every segment, those of a chain that is too long are not known.
    let parsed = ip(parse_ip(&chain(&[60], TCP, &UPPER), 80 + 10_000, ETHERTYPE_IPV6, gso(1428, 0)));
    assert_eq!((parsed.packets, parsed.bytes, parsed.headers_unknown), (8, 80 * 8 + 10_000, false));
    let parsed = ip(parse_ip(&chain(&[60; 9], TCP, &UPPER), 10_000, ETHERTYPE_IPV6, gso(1000, 0)));
    assert_eq!((parsed.packets, parsed.bytes, parsed.headers_unknown), (10, 10_000, true));
    // Without a valid header the segments are all there is.
    let counts = [gso(0, 0), gso(0, 9), gso(1448, 0), gso(1448, 9)].map(Gso::packets);
    assert_eq!(counts, [1, 1, 1, 9]);
}

#[test]
fn the_jumbo_header_of_big_tcp_is_not_on_the_wire() {
    // RFC 2675: option type, length 4, 32 bits of payload length.
    let jumbo = [TCP, 0, JUMBO_OPTION, 4, 0, 1, 0x86, 0xa0];
    let mut packet = ipv6(HOP_BY_HOP, &[&jumbo[..], &UPPER].concat());
    packet[4..6].copy_from_slice(&[0, 0]);
    let len = 40 + 8 + 32 + 100_000;
    let parsed = ip(parse_ip(&packet, len, ETHERTYPE_IPV6, Gso { size: 1428, segs: 0 }));
    assert_ports(&parsed, TCP, 258, 772);
    assert_eq!((parsed.packets, parsed.bytes, parsed.l4), (71, 72 * 71 + 100_000, Some(48)));
    // It is on the wire where the packet is no super-packet, and where it holds something else.
    let parsed = ip(parse_ip(&packet, len, ETHERTYPE_IPV6, Gso::NONE));
    assert_eq!((parsed.packets, parsed.bytes), (1, u64::from(len)));
    packet[42] = 5;
    let parsed = ip(parse_ip(&packet, len, ETHERTYPE_IPV6, Gso { size: 1428, segs: 0 }));
    assert_eq!((parsed.packets, parsed.bytes), (71, 80 * 71 + 100_000));
}

proptest! {
    #[test]
    fn any_bytes_have_an_answer(
        mut data in proptest::collection::vec(any::<u8>(), 0..200),
        six in any::<bool>(),
        (len, size, segs) in any::<(u32, u32, u32)>(),
    ) {
        let (ethertype, version) = if six { (ETHERTYPE_IPV6, 0x60) } else { (ETHERTYPE_IPV4, 0x45) };
        if let Some(first) = data.first_mut() {
            *first = version;
        }
        let gso = Gso { size, segs };
        let frame = ethernet(&[&ethertype.to_be_bytes(), &data]);
        let in_frame = parse_ethernet(&frame, len.saturating_add(14), gso);
        match parse_ip(&data, len.min(u32::MAX - 14), ethertype, gso) {
            Parsed::Ip(packet) => {
                prop_assert!(packet.packets > 0 && packet.l4.is_none_or(|l4| l4 >= 20));
                let moved = Packet { l3: 14, l4: packet.l4.map(|l4| l4 + 14), ..packet };
                prop_assert_eq!(in_frame, Parsed::Ip(moved));
            }
            other => prop_assert_eq!(in_frame, other),
        }
    }
}
