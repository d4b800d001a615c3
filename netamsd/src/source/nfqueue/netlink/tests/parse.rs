//! What is read is never believed.

use proptest::prelude::*;

use super::super::{Inbox, Message, Outbox, gap, messages};

/// A message of a packet, with every attribute that is read and some that are not.
fn packet() -> Outbox {
    let mut outbox = Outbox::default();
    outbox
        .message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_PACKET, 7)
        .attribute(libc::NFQA_PACKET_HDR, &[0x01, 0x02, 0x03, 0x04, 0x86, 0xdd, 2])
        .attribute(libc::NFQA_IFINDEX_INDEV, &3u32.to_be_bytes())
        .attribute(libc::NFQA_IFINDEX_OUTDEV, &4u32.to_be_bytes())
        .attribute(libc::NFQA_MARK, &0xabcd_0001u32.to_be_bytes())
        .attribute(libc::NFQA_TIMESTAMP, &[9; 16])
        .attribute(libc::NFQA_CAP_LEN, &65000u32.to_be_bytes())
        .attribute(libc::NFQA_SKB_INFO, &3u32.to_be_bytes())
        .attribute(libc::NFQA_PAYLOAD, &[0x60, 0, 0, 0, 0]);
    outbox
}

#[test]
fn each_attribute_is_read() {
    let outbox = packet();
    let (kind, body) = messages(outbox.bytes()).next().unwrap();
    assert_eq!(kind, (libc::NFNL_SUBSYS_QUEUE as u16) << 8);
    let expected = Message {
        id: 0x0102_0304,
        gap: 0,
        hook: 2,
        ethertype: 0x86dd,
        mark: 0xabcd_0001,
        indev: 3,
        outdev: 4,
        payload: &[0x60, 0, 0, 0, 0],
        len: 65000,
        gso: true,
    };
    assert_eq!(Message::parse(body), Some(expected));
}

#[test]
fn a_message_cut_anywhere_is_no_other_packet() {
    let outbox = packet();
    let (_, body) = messages(outbox.bytes()).next().unwrap();
    for length in 0..body.len() {
        if let Some(message) = Message::parse(&body[..length]) {
            assert_eq!((message.id, message.hook), (0x0102_0304, 2), "{length}");
        }
        // A length that promises more than there is.
        assert_eq!(messages(&outbox.bytes()[..length]).count(), 0, "{length}");
    }
}

#[test]
fn several_messages_in_a_datagram_are_told_apart() {
    let mut outbox = packet();
    outbox.message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_PACKET, 7).attribute(libc::NFQA_MARK, &[1, 2]);
    let ids: Vec<_> =
        messages(outbox.bytes()).map(|(_, body)| Message::parse(body).map(|message| message.id)).collect();
    assert_eq!(ids, [Some(0x0102_0304), None]);
}

#[test]
fn lengths_that_lie_end_the_walk() {
    // An attribute of length 0 would be walked forever, one of length 3 has no room for itself.
    for length in [0u16, 1, 3, 5, 0xffff] {
        let mut outbox = packet();
        let mut bytes = outbox.bytes().to_vec();
        bytes[20..22].copy_from_slice(&length.to_ne_bytes());
        let (_, body) = messages(&bytes).next().unwrap();
        assert_eq!(Message::parse(body), None, "{length}");
        outbox.clear();
        assert!(outbox.bytes().is_empty());
    }
    for length in [0u32, 15, u32::MAX] {
        let mut bytes = packet().bytes().to_vec();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(messages(&bytes).count(), 0, "{length}");
    }
}

#[test]
fn gaps_are_counted_across_the_wrap() {
    let rows = [
        // last, id, packets between
        (0, 1, 0),
        (0, 5, 4),
        (7, 8, 0),
        (u32::MAX, 0, 0),
        (u32::MAX - 1, 2, 3),
        (0, i32::MAX as u32, i32::MAX as u32 - 1),
        // Not ahead.
        (8, 8, 0),
        (8, 7, 0),
        (0, u32::MAX, 0),
    ];
    for (last, id, between) in rows {
        assert_eq!(gap(last, id), between, "{last} {id}");
    }
}

#[test]
fn an_inbox_that_received_nothing_is_empty() {
    assert_eq!(Inbox::new(4, 100).datagrams().count(), 0);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for (_, body) in messages(&bytes) {
            let _ = Message::parse(body);
        }
        let _ = Message::parse(&bytes);
    }

    #[test]
    fn no_damage_makes_it_panic(at in 0usize..200, byte in any::<u8>(), length in 0usize..200) {
        let mut bytes = packet().bytes().to_vec();
        let last = bytes.len() - 1;
        bytes[at.min(last)] = byte;
        for (_, body) in messages(&bytes[..length.min(bytes.len())]) {
            if let Some(message) = Message::parse(body) {
                prop_assert!(message.payload.len() <= bytes.len());
            }
        }
    }
}
