//! Any bytes have an answer.

use proptest::prelude::*;

use super::*;

/// Bytes that say what parsers look for, and others.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let headers = [
        IPV4.to_vec(),
        IPV6.to_vec(),
        vec![0x81, 0x00, 0x0f, 0xff],
        vec![0x88, 0x64, 0x11, 0, 0, 1, 0, 0, 0x00, 0x21],
        vec![0x88, 0x47, 0, 1, 0, 64, 0, 1, 1, 64],
        vec![0xff, 0x03, 0x00, 0x57],
        vec![0, 0, 0, 2],
        vec![0xee; 12],
        ipv4(4, 0, &[]),
        ipv4(41, 1, &[]),
        ipv4(47, 0, &[]),
        ipv4(TCP, 0, &[]),
        ipv4(UDP, 0, &[]),
        ipv6(4, &[]),
        ipv6(UDP, &[]),
        ipv6(HOP_BY_HOP, &[41, 0, JUMBO_OPTION, 4, 0, 1, 0, 0]),
        chain(&[60, 51, 44], 41, &[]),
        vec![0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0],
        udp(1, 4789, &[8, 0, 0, 0, 0, 0, 7, 0]),
        udp(1, 6081, &[1, 0, 0x86, 0xdd, 0, 0, 7, 0, 0, 0, 0, 0]),
        udp(3544, 1, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        udp(1, 2152, &[0x34, 255, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0x85, 1, 0, 0, 0]),
        UPPER.to_vec(),
    ];
    prop_oneof![4 => proptest::sample::select(headers.to_vec()), 1 => proptest::collection::vec(any::<u8>(), 0..40)]
}

fn link() -> impl Strategy<Value = Link> {
    let numbers = vec![1, 1, 1, 0, 9, 101, 108, 113, 228, 229, 276];
    proptest::sample::select(numbers).prop_map(|number| Link::new(number).expect("a link type of the list"))
}

/// Without what tells where it was found.
fn moved(packet: Packet, by: usize) -> Packet {
    let key = FlowKey { vlan: 0, vlan_inner: 0, ..packet.key };
    Packet { key, l3: packet.l3 - by, l4: packet.l4.map(|l4| l4 - by), ..packet }
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

    #[test]
    fn any_headers_have_an_answer_in_both_layers(
        link in link(),
        pieces in proptest::collection::vec(piece(), 0..16),
        cut in 0..600usize,
        (more, size, segs) in (0..2000u32, proptest::sample::select(vec![0, 0, 1, 1448, u32::MAX]), any::<u32>()),
    ) {
        let mut frame = pieces.concat();
        let len = frame.len() as u32 + more;
        frame.truncate(cut);
        let gso = Gso { size, segs };
        if let Parsed::Ip(outer) = parse_link(link, &frame, len, gso) {
            let (ip, ip_len) = (&frame[outer.l3..], len - outer.l3 as u32);
            prop_assert_eq!(parse_link(Link::Ip, ip, ip_len, gso), Parsed::Ip(moved(outer, outer.l3)));
            let inside = inner(&frame, len, gso, &outer);
            let of_ip = inner(ip, ip_len, gso, &moved(outer, outer.l3));
            prop_assert_eq!(of_ip.map(|of_ip| moved(of_ip, 0)), inside.map(|inside| moved(inside, outer.l3)));
            for packet in [Some(outer), inside].into_iter().flatten() {
                prop_assert!(packet.packets > 0 && packet.l4.is_none_or(|l4| l4 >= packet.l3 + 20));
                prop_assert!(size != 0 || packet.bytes <= u64::from(len) - packet.l3 as u64);
            }
            if let Some(inside) = inside {
                prop_assert!(inside.l3 >= outer.l3 + 20 && inside.packets == outer.packets);
                prop_assert!(Some(inside.l3) >= outer.l4 && inside.key.flags != 0);
            }
        }
    }
}
