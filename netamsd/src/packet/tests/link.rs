//! What is below IP.

use super::*;

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
    // ARP, PPPoE discovery, a length in front of LLC, LLDP, MACsec.
    for kind in [0x0806, 0x8863, 0x0054, 0x88cc, 0x88e5] {
        assert_eq!(parse_frame(&ethernet(&[&u16::to_be_bytes(kind), &packet])), Parsed::NonIp, "{kind:x}");
        assert_eq!(parse_ip(&packet, 84, kind, Gso::NONE), Parsed::NonIp, "{kind:x}");
    }
    // Behind link-layer headers that somebody else has read there are no tags.
    let tagged = [&[0, 7], &IPV4[..], &packet].concat();
    assert_eq!(parse_ip(&tagged, 88, 0x8100, Gso::NONE), Parsed::NonIp);
    // A header of the link layer that is cut short.
    let tagged = ethernet(&[&[0x81, 0x00, 0x00, 0x07], &[0x81, 0x00, 0x00, 0x07], &IPV4]);
    for len in [0, 1, 13, 14, 17, 18, 21] {
        assert_eq!(parse_frame(&tagged[..len]), Parsed::NonIp, "{len}");
    }
    assert_eq!(parse_frame(&tagged), Parsed::Malformed);
}

/// EtherType and header of a PPPoE session; neither its code nor its length matter.
const PPPOE: [u8; 8] = [0x88, 0x64, 0x11, 0x09, 0x12, 0x34, 0xff, 0xff];
const MPLS: [u8; 2] = [0x88, 0x47];
/// Label 16, and label 17 at the bottom of the stack.
const LABELS: [[u8; 4]; 2] = [[0, 1, 0, 64], [0, 1, 0x11, 64]];

/// `None`: no IP; otherwise the length of the session's header.
#[track_caller]
fn assert_session(protocol: &[u8], payload: &[u8], header: Option<usize>) {
    let packet = [&PPPOE[2..], protocol, payload].concat();
    let len = packet.len() as u32;
    match (parse_ip(&packet, len, 0x8864, Gso::NONE), header) {
        (Parsed::Ip(parsed), Some(header)) => {
            assert_eq!((parsed.l3, parsed.bytes), (6 + header, packet.len() as u64 - 6 - header as u64));
            assert_ports(&parsed, UDP, 258, 772);
        }
        (parsed, _) => assert_eq!((parsed, header), (Parsed::NonIp, None), "{protocol:x?}"),
    }
}

#[test]
fn a_pppoe_session_has_a_protocol_of_one_or_two_bytes() {
    let (four, six) = (ipv4(UDP, 0, &UPPER), ipv6(UDP, &UPPER));
    for (protocol, payload) in
        [(&[0x00, 0x21][..], &four), (&[0x21], &four), (&[0x00, 0x57], &six), (&[0x57], &six)]
    {
        assert_session(protocol, payload, Some(protocol.len()));
    }
    for protocol in [0x81, 0x83] {
        assert_session(&[&[0x02, protocol], LABELS.as_flattened()].concat(), &four, Some(10));
    }
    // LCP, IPCP, IPv6CP, compressed data, Van Jacobson, an EtherType, numbers that are one too long or too short, and the
    // address and control fields that PPPoE does not have.
    let others: [&[u8]; 11] = [
        &[0xc0, 0x21],
        &[0x80, 0x21],
        &[0x80, 0x57],
        &[0x00, 0xfd],
        &[0x00, 0x2d],
        &[0x08, 0x00],
        &[0x01, 0x21],
        &[0x00, 0x00, 0x21],
        &[0x81],
        &[0xff, 0x03, 0x00, 0x21],
        &[0x20, 0x21],
    ];
    for protocol in others {
        assert_session(protocol, &four, None);
    }
    // The protocol says which version it is.
    assert_eq!(parse_frame(&ethernet(&[&PPPOE, &[0x57], &four])), Parsed::Malformed);
    assert_eq!(parse_frame(&ethernet(&[&PPPOE, &[0x21], &six])), Parsed::Malformed);
}

#[test]
fn labels_are_looked_through_to_the_bottom_of_the_stack() {
    let (four, six) = (ipv4(UDP, 0, &UPPER), ipv6(UDP, &UPPER));
    let [label, bottom] = LABELS;
    for (packet, version) in [(&four, 4), (&six, 6)] {
        for depth in [0, 1, 2, 7, 300] {
            for kind in [0x8847, 0x8848] {
                let frame = ethernet(&[&u16::to_be_bytes(kind), &label.repeat(depth), &bottom, packet]);
                let parsed = ip(parse_frame(&frame));
                let expected = (18 + 4 * depth, version, packet.len() as u64);
                assert_eq!((parsed.l3, parsed.key.version, parsed.bytes), expected);
                assert_ports(&parsed, UDP, 258, 772);
            }
        }
    }
    // A control word, a version that there is not, nothing, and a stack without end.
    for payload in [&[0; 60][..], &[0x55; 60], &[]] {
        assert_eq!(parse_frame(&ethernet(&[&MPLS, &bottom, payload])), Parsed::NonIp);
    }
    assert_eq!(parse_frame(&ethernet(&[&MPLS, &label.repeat(300)])), Parsed::NonIp);
    // Once the first four bits say IP, it has to be IP.
    for payload in [&[0x44; 60][..], &[0x45; 19], &[0x60; 39]] {
        assert_eq!(parse_frame(&ethernet(&[&MPLS, &bottom, payload])), Parsed::Malformed);
    }
}

#[test]
fn headers_are_read_up_to_a_last_offset() {
    let packet = ipv4(UDP, 0, &UPPER);
    let [label, bottom] = LABELS;
    let deep = |depth: usize| ethernet(&[&MPLS, &label.repeat(depth - 1), &bottom, &packet]);
    // Of the first two the ports, of the third nothing at all begins at an offset of more than 32767.
    let parsed = ip(parse_frame(&deep(8183)));
    assert_ports(&parsed, UDP, 258, 772);
    let parsed = ip(parse_frame(&deep(8188)));
    assert_ports(&parsed, UDP, 0, 0);
    assert_eq!((parsed.l3, parsed.l4, parsed.bytes), (32766, Some(32786), 84));
    assert_eq!(parse_frame(&deep(8189)), Parsed::NonIp);
}

#[test]
fn link_headers_stand_in_front_of_one_another_in_one_order() {
    let packet = ipv4(UDP, 0, &UPPER);
    let stack = [&MPLS[..], LABELS.as_flattened()].concat();
    let labels: &[u8] = &stack;
    let (tag, session): (&[u8], &[u8]) = (&[0x81, 0x00, 0x00, 0x07], &[&PPPOE[..], &[0x00, 0x21]].concat());
    let cases: [(&[&[u8]], Option<usize>); 8] = [
        (&[tag, session], Some(26)),
        (&[tag, tag, session], Some(30)),
        (&[tag, labels], Some(26)),
        (&[tag, tag, labels], Some(30)),
        (&[tag, tag, tag, labels], None),
        (&[tag, tag, tag, session], None),
        // An EtherType is neither what follows a label nor what follows the protocol of a session.
        (&[labels, tag, &IPV4], None),
        (&[&PPPOE, tag, &IPV4], None),
    ];
    for (parts, l3) in cases {
        let frame = ethernet(&[&parts.concat(), &packet]);
        match l3 {
            Some(l3) => assert_eq!(ip(parse_frame(&frame)).l3, l3, "{parts:x?}"),
            None => assert_eq!(parse_frame(&frame), Parsed::NonIp, "{parts:x?}"),
        }
    }
    let frame = ethernet(&[tag, &[0x88, 0xa8, 0, 9], session, &packet]);
    let key = ip(parse_frame(&frame)).key;
    assert_eq!((key.vlan, key.vlan_inner), (7, 9));
}

#[test]
fn what_is_cut_short_below_ip_is_no_ip() {
    use Gives::{Malformed, NonIp, Outer};
    let (four, six) = (ipv4(UDP, 1, &UPPER), ipv6(UDP, &UPPER));
    let tag: &[u8] = &[0x81, 0x00, 0x00, 0x07];
    let frame = ethernet(&[tag, tag, &PPPOE, &[0x02, 0x81], LABELS.as_flattened(), &four]);
    // The first byte behind the labels says that it is IP.
    let l3 = 14 + 8 + 6 + 2 + 8;
    let expected = [(0, NonIp), (l3 + 1, Malformed), (l3 + 24, Outer(l3))];
    assert_eq!(cuts(Link::Ethernet, &frame), expected);
    let frame = ethernet(&[tag, &PPPOE, &[0x00, 0x57], &six]);
    assert_eq!(cuts(Link::Ethernet, &frame), [(0, NonIp), (26, Malformed), (66, Outer(26))]);
    let frame = ethernet(&[&PPPOE, &[0x57], &six]);
    assert_eq!(cuts(Link::Ethernet, &frame), [(0, NonIp), (21, Malformed), (61, Outer(21))]);
    let frame = ethernet(&[tag, &IPV6, &six]);
    assert_eq!(cuts(Link::Ethernet, &frame), [(0, NonIp), (18, Malformed), (58, Outer(18))]);
    let header = |header: usize| [(0, NonIp), (header, Malformed), (header + 24, Outer(header))];
    assert_eq!(cuts(Link::Cooked, &[&[0; 14], &IPV4[..], &four].concat()), header(16));
    assert_eq!(cuts(Link::Cooked2, &[&IPV4[..], &[0; 18], &four].concat()), header(20));
    assert_eq!(cuts(Link::Null, &[&[2, 0, 0, 0], &four[..]].concat()), header(4));
    assert_eq!(cuts(Link::Ppp, &[&[0xff, 0x03, 0x00, 0x21], &four[..]].concat()), header(4));
    assert_eq!(cuts(Link::Ppp, &[&[0x0f, 0, 0x08, 0x00], &four[..]].concat()), header(4));
    for link in [Link::Ip, Link::Ipv4] {
        assert_eq!(cuts(link, &four), [(0, Malformed), (24, Outer(0))]);
    }
    for link in [Link::Ip, Link::Ipv6] {
        assert_eq!(cuts(link, &six), [(0, Malformed), (40, Outer(0))]);
    }
}

#[test]
fn every_link_type_has_its_header() {
    let (four, six) = (ipv4(UDP, 0, &UPPER), ipv6(UDP, &UPPER));
    let labels = LABELS.as_flattened();
    let before = |n: usize, ethertype: u16| [&vec![0xee; n][..], &ethertype.to_be_bytes()].concat();
    let after = |ethertype: u16, n: usize| [&ethertype.to_be_bytes()[..], &vec![0xee; n]].concat();
    let tag = [0x81, 0x00, 0x00, 0x07];
    let cases: [(u16, Vec<u8>, &[u8]); 28] = [
        (1, before(12, 0x0800), &four),
        (1, before(12, 0x86dd), &six),
        (113, before(14, 0x0800), &four),
        (113, [&before(14, 0x8847)[..], labels].concat(), &six),
        (113, [&before(14, 0x8100)[..], &tag[2..], &IPV6].concat(), &six),
        (276, after(0x86dd, 18), &six),
        (276, [&after(0x88a8, 18)[..], &tag[2..], &IPV4].concat(), &four),
        (276, [&after(0x8864, 18)[..], &PPPOE[2..], &[0x21]].concat(), &four),
        (12, vec![], &four),
        (14, vec![], &six),
        (101, vec![], &four),
        (101, vec![], &six),
        (228, vec![], &four),
        (229, vec![], &six),
        (0, vec![2, 0, 0, 0], &four),
        (0, vec![0, 0, 0, 2], &four),
        (0, vec![0, 0, 0, 10], &six),
        (0, vec![30, 0, 0, 0], &six),
        (108, vec![0, 0, 0, 2], &four),
        (108, vec![0, 0, 0, 24], &six),
        (9, vec![0x00, 0x21], &four),
        (9, vec![0x57], &six),
        (50, vec![0xff, 0x03, 0x00, 0x57], &six),
        (50, vec![0xff, 0x03, 0x21], &four),
        (50, [&[0xff, 0x03, 0x02, 0x83], labels].concat(), &four),
        (50, vec![0x0f, 0x00, 0x86, 0xdd], &six),
        (9, vec![0x8f, 0x00, 0x81, 0x00, 0x00, 0x07, 0x08, 0x00], &four),
        (9, [&[0x0f, 0x00, 0x88, 0x47], labels].concat(), &six),
    ];
    for (number, header, packet) in &cases {
        let link = Link::new(*number).expect("a link type of the list");
        let frame = [header, *packet].concat();
        let parsed = ip(parse_link(link, &frame, frame.len() as u32, Gso::NONE));
        assert_eq!((parsed.l3, parsed.bytes), (header.len(), packet.len() as u64), "{number}: {header:x?}");
        assert_ports(&parsed, UDP, 258, 772);
    }
    let known: Vec<u16> = (0..=u16::MAX).filter(|number| Link::new(*number).is_some()).collect();
    assert_eq!(known, [0, 1, 9, 12, 14, 50, 101, 108, 113, 228, 229, 276]);
}

#[test]
fn what_a_link_type_says_of_the_packet_holds() {
    let (four, six) = (ipv4(UDP, 0, &UPPER), ipv6(UDP, &UPPER));
    let parse = |link, header: &[u8], packet: &[u8]| {
        let frame = [header, packet].concat();
        parse_link(link, &frame, frame.len() as u32, Gso::NONE)
    };
    for (link, packet) in
        [(Link::Ipv4, &six[..]), (Link::Ipv6, &four), (Link::Ip, &[0x55; 60]), (Link::Ip, &[])]
    {
        assert_eq!(parse(link, &[], packet), Parsed::Malformed, "{link:?}");
    }
    assert_eq!(parse(Link::Null, &[2, 0, 0, 0], &six), Parsed::Malformed);
    assert_eq!(parse(Link::Null, &[0, 0, 0, 28], &four), Parsed::Malformed);
    // Other families, and one in the other byte order where there is but one.
    for family in [[7, 0, 0, 0], [0, 0, 0, 7], [0, 2, 0, 0], [2, 0, 0, 1]] {
        assert_eq!(parse(Link::Null, &family, &four), Parsed::NonIp, "{family:?}");
    }
    for family in [2, 10, 23, 24, 28, 30] {
        let packet = if family == 2 { &four } else { &six };
        assert_eq!(parse(Link::Loopback, &[family, 0, 0, 0], packet), Parsed::NonIp, "{family}");
        assert_eq!(ip(parse(Link::Loopback, &[0, 0, 0, family], packet)).l3, 4);
        assert_eq!(ip(parse(Link::Null, &[family, 0, 0, 0], packet)).l3, 4);
    }
    // Cooked captures have numbers that are no EtherTypes: Novell, LLC.
    for kind in [1, 4] {
        assert_eq!(parse(Link::Cooked, &[&[0; 15][..], &[kind]].concat(), &four), Parsed::NonIp);
    }
    // An address without control, control without address, Cisco's keep-alive.
    for header in [&[0xff, 0x00, 0x21][..], &[0x03, 0x00, 0x21], &[0x8f, 0x00, 0x80, 0x35]] {
        assert_eq!(parse(Link::Ppp, header, &four), Parsed::NonIp, "{header:x?}");
    }
}
