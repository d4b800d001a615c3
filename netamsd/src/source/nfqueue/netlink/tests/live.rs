//! What the kernel does with packets, ids and counters.

use std::os::fd::AsRawFd;

use super::super::{Message, Received, Verdict};
use super::net::{NOW, NUMBER, PATIENCE, Seen, Wire, bind, counted, drain, in_namespace, rule, run, status};

#[test]
fn a_packet_is_told_of_in_full() {
    in_namespace(|| {
        let mut queue = bind(|o| o.copy_bytes = 96);
        rule("-j NFQUEUE --queue-num 7");
        run("ip6tables -w -t mangle -A OUTPUT -p udp -j NFQUEUE --queue-num 7");
        let wire = Wire::new();
        wire.send(1);
        let six = std::net::UdpSocket::bind("[::1]:0").unwrap();
        six.send_to(&[0; 10], six.local_addr().unwrap()).unwrap();
        let mut messages = Vec::new();
        let mut note = |m: &Message<'_>| {
            let Message { hook, ethertype, indev, outdev, len, .. } = *m;
            messages.push((hook, ethertype, indev, outdev, len, m.payload.len(), m.payload[0]));
        };
        let mut packets = 0;
        while packets < 2 {
            packets += queue.receive(PATIENCE, &mut note).unwrap().packets;
        }
        // Output; loopback is interface 1; headers and 100 bytes, headers and 10 bytes.
        assert_eq!(messages, [(3, 0x0800, 0, 1, 128, 96, 0x45), (3, 0x86dd, 0, 1, 58, 58, 0x60)]);
        assert_eq!(wire.arrived(), 0);
        queue.accept_through(2, None).unwrap();
        assert_eq!(wire.arrived(), 1);
    });
}

#[test]
fn batches_are_received_in_order_and_accepted_at_once() {
    in_namespace(|| {
        let mut queue = bind(|_| ());
        rule("-j NFQUEUE --queue-num 7");
        let wire = Wire::new();
        wire.send(600);
        let (received, seen) = drain(&mut queue);
        assert_eq!(received, Received { packets: 600, first: 1, last: 600, lost: 0 });
        assert!(seen.iter().map(|s| s.id).eq(1..=600) && seen.iter().all(|s| s.gap == 0));
        assert_eq!(status(&queue).waiting, 600);
        queue.accept_through(599, None).unwrap();
        assert_eq!(status(&queue).waiting, 1);
        queue.accept_through(600, None).unwrap();
        assert_eq!(status(&queue).waiting, 0);
        assert!(wire.arrived() > 0, "the receiver's own buffer may be too small for all");
        // With nothing left the kernel answers ENOENT, which is nothing to be told of.
        queue.accept_through(600, None).unwrap();
        queue.verdict(600, Verdict::Drop, None);
        queue.send().unwrap();
        assert_eq!(drain(&mut queue).0, Received::default());
    });
}

#[test]
fn verdicts_need_no_order() {
    in_namespace(|| {
        let mut queue = bind(|_| ());
        rule("-m mark --mark 9 -j ACCEPT");
        rule("-j NFQUEUE --queue-num 7");
        let wire = Wire::new();
        wire.send(5);
        assert_eq!(drain(&mut queue).0.last, 5);
        queue.verdict(4, Verdict::Drop, None);
        // Goes through the rules again, and now meets the first one.
        queue.verdict(5, Verdict::Repeat, Some(9));
        queue.verdict(2, Verdict::Drop, None);
        assert_eq!(status(&queue).waiting, 5, "verdicts are collected");
        queue.send().unwrap();
        assert_eq!((status(&queue).waiting, wire.arrived()), (2, 1));
        queue.accept_through(5, None).unwrap();
        assert_eq!((status(&queue).waiting, wire.arrived()), (0, 2));
    });
}

#[test]
fn the_mark_of_a_batch_replaces_the_whole_mark() {
    in_namespace(|| {
        let mut queue = bind(|_| ());
        rule("-j MARK --set-mark 0xabcd0001");
        rule("-j NFQUEUE --queue-num 7");
        let wire = Wire::new();
        for (given, expected) in [(None, "0xabcd0001"), (Some(0x20), "0x20"), (Some(0), "0x0")] {
            run("iptables -w -t mangle -F POSTROUTING");
            run(&format!("iptables -w -t mangle -A POSTROUTING -m mark --mark {expected}"));
            wire.send(3);
            let (received, seen) = drain(&mut queue);
            assert!(seen.iter().all(|s| s.mark == 0xabcd_0001));
            queue.accept_through(received.last, given).unwrap();
            assert_eq!((wire.arrived(), counted()), (3, 3), "{given:?}");
        }
    });
}

#[test]
fn a_full_queue_gives_no_ids() {
    in_namespace(|| {
        for fail_open in [false, true] {
            let mut queue = bind(|o| (o.max_packets, o.fail_open) = (4, fail_open));
            rule("-j NFQUEUE --queue-num 7");
            let wire = Wire::new();
            wire.send(10);
            assert_eq!(wire.arrived(), if fail_open { 6 } else { 0 });
            assert_eq!(drain(&mut queue).0, Received { packets: 4, first: 1, last: 4, lost: 0 });
            let full = status(&queue);
            // With fail-open nobody counts those that passed.
            assert_eq!(full.queue_dropped, if fail_open { 0 } else { 6 });
            assert_eq!((full.user_dropped, full.last_id), (0, 4));
            queue.accept_through(4, None).unwrap();
            wire.send(1);
            assert_eq!(drain(&mut queue).0, Received { packets: 1, first: 5, last: 5, lost: 0 });
            run("iptables -w -t mangle -F OUTPUT");
        }
    });
}

#[test]
fn a_full_buffer_leaves_gaps_of_exactly_what_is_missing() {
    in_namespace(|| {
        for (fail_open, no_enobufs) in [(false, true), (false, false), (true, true), (true, false)] {
            // The least that the kernel grants.
            let mut queue = bind(|o| (o.buffer_bytes, o.fail_open) = (1, fail_open));
            queue.socket.set_no_enobufs(no_enobufs).unwrap();
            assert!(queue.buffer().unwrap() < 5000);
            rule("-j NFQUEUE --queue-num 7");
            let wire = Wire::new();
            let (mut packets, mut lost) = (0, 0);
            for round in 1..=3 {
                wire.send(20);
                let (received, _) = drain(&mut queue);
                assert!((1..20).contains(&received.packets), "{received:?}");
                (packets, lost) = (packets + received.packets, lost + received.lost);
                // What was lost behind the last packet shows in the kernel's list at once, and in the next round as a gap.
                assert_eq!(status(&queue).last_id, round * 20);
                assert_eq!(wire.arrived(), if fail_open { 20 - received.packets } else { 0 });
                queue.accept_through(received.last, None).unwrap();
                assert_eq!(wire.arrived(), received.packets);
            }
            wire.send(1);
            lost += drain(&mut queue).0.lost;
            assert_eq!(u64::from(packets) + lost, 60);
            let counted = status(&queue);
            // With fail-open they have passed, and only the ids tell of them.
            assert_eq!(u64::from(counted.user_dropped), if fail_open { 0 } else { lost });
            assert_eq!((counted.queue_dropped, counted.last_id), (0, 61));
            run("iptables -w -t mangle -F OUTPUT");
        }
    });
}

#[test]
fn what_is_lost_behind_the_last_packet_is_known_before_the_next_one_comes() {
    in_namespace(|| {
        let mut queue = bind(|o| o.buffer_bytes = 1);
        assert_eq!(queue.lost_behind(), Some(0));
        rule("-j NFQUEUE --queue-num 7");
        let wire = Wire::new();
        wire.send(20);
        assert_eq!(queue.lost_behind(), None, "some can still be received");
        let (received, _) = drain(&mut queue);
        assert_eq!(queue.lost_behind(), None, "they wait for their verdict");
        queue.accept_through(received.last, None).unwrap();
        assert_eq!(queue.lost_behind(), None, "the list may have been ahead of the packet");
        assert_eq!(queue.lost_behind(), Some(20 - received.last));
        assert_eq!(queue.lost_behind(), Some(0), "it is told once");
        wire.send(1);
        assert_eq!(drain(&mut queue).0, Received { packets: 1, first: 21, last: 21, lost: 0 });
    });
}

#[test]
fn packets_that_wait_are_dropped_with_the_socket_and_pass_by_unbind() {
    in_namespace(|| {
        rule("-j NFQUEUE --queue-num 7 --queue-bypass");
        let wire = Wire::new();
        let mut queue = bind(|_| ());
        wire.send(3);
        assert_eq!(queue.receive(PATIENCE, |_| ()).unwrap().packets, 3);
        wire.send(2);
        drop(queue);
        // They are dropped after an RCU grace period; those sent now pass, because nobody is bound.
        wire.send(1);
        assert_eq!(wire.arrived(), 1);
        let queue = bind(|_| ());
        wire.send(4);
        assert_eq!(status(&queue).waiting, 4);
        queue.unbind();
        // Of the first five still nothing.
        assert_eq!(wire.arrived(), 4);
        assert_eq!(crate::source::nfqueue::status::find(NUMBER).unwrap(), None);
    });
}

#[test]
fn super_packets_come_whole_if_asked_for() {
    in_namespace(|| {
        let wire = Wire::new();
        let segment: libc::c_int = 100;
        // SAFETY: the pointer is to a live value of the size given.
        let done = unsafe {
            libc::setsockopt(
                wire.sender().as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const segment).cast(),
                size_of_val(&segment) as u32,
            )
        };
        assert_eq!(done, 0);
        rule("-j NFQUEUE --queue-num 7");
        let mut queue = bind(|o| o.gso = true);
        wire.send_one(1050);
        let whole = Seen { id: 1, gap: 0, mark: 0, len: 28 + 1050, gso: true };
        assert_eq!(drain(&mut queue).1, [whole]);
        queue.unbind();
        assert!(wire.arrived() > 0);
        let mut queue = bind(|o| o.gso = false);
        wire.send_one(1050);
        let (_, cut) = drain(&mut queue);
        let lengths: Vec<_> = cut.iter().map(|s| (s.len, s.gso)).collect();
        assert_eq!(lengths, [vec![(128, false); 10], vec![(78, false)]].concat());
    });
}

#[test]
fn receiving_ends_without_packets() {
    in_namespace(|| {
        let mut queue = bind(|_| ());
        for timeout in [NOW, std::time::Duration::from_millis(1)] {
            assert_eq!(queue.receive(timeout, |_| ()).unwrap(), Received::default());
        }
    });
}
