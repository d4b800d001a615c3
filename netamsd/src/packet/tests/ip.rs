//! IP headers, and what follows them.

use super::*;

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
