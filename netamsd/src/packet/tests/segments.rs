//! Super-packets.

use super::*;

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

#[test]
fn segments_of_a_tunnel_carry_the_headers_to_the_end_of_the_innermost_one() {
    // A TCP header of 32 bytes, a UDP header, and payload.
    let tcp = |len: usize| ipv4(TCP, 0, &[&UPPER[..32], &vec![0; len]].concat());
    let tcp6 = |len: usize| chain(&[60], TCP, &[&UPPER[..32], &vec![0; len]].concat());
    let datagram = |len: usize| ipv6(UDP, &udp(1, 2, &vec![0; len]));
    let vxlan = |packet: &[u8]| {
        udp(1, 4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], &ethernet(&[&[0x81, 0, 0, 5], &IPV4, packet])[..]].concat())
    };
    let gre = |packet: &[u8]| [&[0x20, 0, 0x08, 0, 0, 0, 0, 7], packet].concat();
    // Outer packet, headers of its segments, headers of the inner ones; all with 10,000 bytes of payload.
    let cases = [
        (ipv4(4, 0, &tcp(10_000)), 20 + 52, 52),
        (ipv4(41, 2, &tcp6(10_000)), 28 + 80, 80),
        (ipv6(41, &datagram(10_000)), 40 + 48, 48),
        (ipv4(47, 0, &gre(&tcp(10_000))), 28 + 52, 52),
        (ipv4(UDP, 0, &vxlan(&tcp(10_000))), 20 + 8 + 8 + 18 + 52, 52),
        (ipv4(UDP, 0, &udp(3544, 1, &datagram(10_000))), 28 + 48, 48),
        (
            ipv4(UDP, 0, &udp(1, 2152, &[&[0x30, 255, 0, 0, 0, 0, 0, 7], &tcp(10_000)[..]].concat())),
            36 + 52,
            52,
        ),
        (ipv4(4, 0, &ipv4(47, 0, &gre(&tcp(10_000)))), 20 + 28 + 52, 52),
    ];
    for (outer, headers, inner_headers) in cases {
        for (size, segs, packets) in [(1000, 0, 10), (1000, 10, 10), (1400, 0, 8), (65_535, 0, 1)] {
            let (len, gso) = (outer.len() as u32, Gso { size, segs });
            let kind = if outer[0] >> 4 == 4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
            // Headers are enough to be captured.
            for captured in [outer.len(), headers] {
                let parsed = ip(parse_ip(&outer[..captured], len, kind, gso));
                let got = (parsed.packets, parsed.bytes, parsed.headers_unknown);
                assert_eq!(got, (packets, 10_000 + headers as u64 * u64::from(packets), false));
                let inner = inner(&outer[..captured], len, gso, &parsed).expect("an inner packet");
                let got = (inner.packets, inner.bytes, inner.headers_unknown);
                assert_eq!(got, (packets, 10_000 + inner_headers * u64::from(packets), false));
                assert_eq!(inner.l3 as u64, headers as u64 - inner_headers);
            }
        }
    }
}

#[test]
fn a_super_packet_without_tcp_or_udp_inside_is_what_it_is_outside() {
    let gso = Gso { size: 1000, segs: 0 };
    // Outer packet -> outer packets, bytes, unknown headers; the same of the inner packet.
    let esp = ipv4(50, 0, &[0; 10_000]);
    let vxlan =
        |port| ipv4(UDP, 0, &udp(1, port, &ethernet(&[&IPV4, &ipv4(UDP, 0, &udp(1, 8472, &[0; 9_970]))])));
    let teredo = ipv4(UDP, 0, &udp(1, 3544, &ipv6(58, &[0; 9_960])));
    let cases = [
        // Nothing inside; UDP whose payload an application has cut is nothing else when it has no tunnel's port.
        (ipv4(UDP, 0, &udp(1, 3544, &[0; 10_000])), (10, 10_000 + 280, false), None),
        (ipv4(UDP, 0, &udp(2152, 1, &[0; 10_000])), (10, 10_000 + 280, false), None),
        (ipv4(UDP, 0, &udp(1, 2152, &[0; 9_992])), (10, 10_000 + 200, true), None),
        (vxlan(8472), (11, 20 * 11 + 8 + 14 + 28 + 9_970, true), None),
        // Something inside that has no ports.
        (ipv4(4, 0, &esp), (11, 20 * 11 + 10_020, true), Some((11, 10_000 + 20 * 11, true))),
        (teredo, (10, 28 * 10 + 10_000, false), Some((10, 40 * 10 + 9_960, true))),
    ];
    for (outer, expected, expected_inner) in cases {
        let len = outer.len() as u32;
        let parsed = ip(parse_ip(&outer, len, ETHERTYPE_IPV4, gso));
        assert_eq!((parsed.packets, parsed.bytes, parsed.headers_unknown), expected);
        let inner = inner(&outer, len, gso, &parsed);
        let got = inner.map(|inner| (inner.packets, inner.bytes, inner.headers_unknown));
        assert_eq!(got, expected_inner);
    }
    // A fourth level is not looked at: whether UDP ends the headers cannot be told where it has a tunnel's port.
    let deep = ipv4(4, 0, &ipv4(4, 0, &ipv4(4, 0, &ipv4(UDP, 0, &udp(1, 4789, &[0; 10_000])))));
    let parsed = ip(parse_ip(&deep, deep.len() as u32, ETHERTYPE_IPV4, gso));
    assert_eq!((parsed.packets, parsed.bytes, parsed.headers_unknown), (11, 10_068 + 200 + 20, true));
}

#[test]
fn jumbo_headers_are_not_on_the_wire_in_tunnels_either() {
    let jumbo = |next, packet: &[u8]| {
        let mut ip = ipv6(HOP_BY_HOP, &[&[next, 0, JUMBO_OPTION, 4, 0, 1, 0x86, 0xa0], packet].concat());
        ip[4..6].copy_from_slice(&[0, 0]);
        ip
    };
    let gso = Gso { size: 1000, segs: 0 };
    let cases = [
        (jumbo(TCP, &UPPER[..32]), None),
        (jumbo(41, &ipv6(TCP, &UPPER[..32])), Some(72)),
        (ipv6(41, &jumbo(TCP, &UPPER[..32])), Some(72)),
        (jumbo(41, &jumbo(4, &ipv4(41, 0, &jumbo(TCP, &UPPER[..32])))), Some(72)),
    ];
    for (headers, inner_headers) in cases {
        let len = headers.len() as u32 + 100_000;
        let sent =
            headers.len() as u64 - 8 * headers.iter().filter(|byte| **byte == JUMBO_OPTION).count() as u64;
        let parsed = ip(parse_ip(&headers, len, ETHERTYPE_IPV6, gso));
        let got = (parsed.packets, parsed.bytes, parsed.headers_unknown);
        assert_eq!(got, (100, 100_000 + 100 * sent, false));
        let inner = inner(&headers, len, gso, &parsed).map(|inner| (inner.packets, inner.bytes));
        assert_eq!(inner, inner_headers.map(|headers| (100, 100_000 + 100 * headers)));
    }
}
