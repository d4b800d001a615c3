//! What the kernel refuses, and what is said of it.

use caps::{CapSet, Capability};

use super::super::{Inbox, Outbox, Queue, QueueError, QueueOptions, Socket, Verdict, messages};
use super::net::{NOW, NUMBER, PATIENCE, Wire, bind, in_namespace, rule, run};
use crate::source::nfqueue::netlink::wire;

#[test]
fn a_queue_is_taken_once() {
    in_namespace(|| {
        let held = bind(|_| ());
        let options = QueueOptions { number: NUMBER, ..QueueOptions::default() };
        let refused = Queue::bind(&options).unwrap_err();
        let QueueError::Taken { number, owner } = &refused else { panic!("{refused}") };
        assert_eq!(*number, NUMBER);
        assert!(owner.ends_with(&format!(" with pid {}", std::process::id())), "{owner}");
        // Another one is free.
        Queue::bind(&QueueOptions { number: NUMBER + 1, ..options.clone() }).unwrap();
        drop(held);
        Queue::bind(&options).unwrap();
    });
}

/// What the kernel answers to a second bind.
fn second_bind(first: &Socket, mut second: Option<Socket>) -> Option<i32> {
    let mut outbox = Outbox::default();
    outbox
        .message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_CONFIG, NUMBER)
        .attribute(libc::NFQA_CFG_CMD, &[libc::NFQNL_CFG_CMD_BIND as u8, 0, 0, 0]);
    first.send(outbox.bytes()).unwrap();
    let second = second.as_mut()?;
    second.send(outbox.bytes()).unwrap();
    answer(second)
}

#[test]
fn a_full_buffer_is_told_of_unless_that_is_turned_off() {
    in_namespace(|| {
        for no_enobufs in [true, false] {
            let mut queue = bind(|o| o.buffer_bytes = 1);
            queue.socket.set_no_enobufs(no_enobufs).unwrap();
            rule("-j NFQUEUE --queue-num 7");
            Wire::new().send(20);
            let told = queue.socket.receive(&mut Inbox::new(1, 512), NOW);
            assert_eq!(told.err().and_then(|e| e.raw_os_error()), (!no_enobufs).then_some(libc::ENOBUFS));
            run("iptables -w -t mangle -F OUTPUT");
        }
    });
}

fn answer(socket: &mut Socket) -> Option<i32> {
    let mut inbox = Inbox::new(4, 512);
    socket.receive(&mut inbox, NOW).unwrap();
    let (kind, body) = inbox.datagrams().flat_map(messages).next()?;
    assert_eq!(i32::from(kind), libc::NLMSG_ERROR);
    wire::errno(body)
}

#[test]
fn a_repeated_bind_answers_busy_to_its_own_socket_and_no_permission_to_others() {
    in_namespace(|| {
        let mut first = Socket::open().unwrap();
        assert_eq!(second_bind(&first, None), None);
        assert_eq!(answer(&mut first), None);
        assert_eq!(second_bind(&first, Some(Socket::open().unwrap())), Some(libc::EPERM));
        assert_eq!(answer(&mut first), Some(libc::EBUSY));
    });
}

#[test]
fn missing_rights_are_named() {
    in_namespace(|| {
        caps::drop(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap();
        let refused = Queue::bind(&QueueOptions { number: NUMBER, ..QueueOptions::default() }).unwrap_err();
        assert!(matches!(refused, QueueError::Rights), "{refused}");
    });
}

#[test]
fn a_copy_range_that_the_kernel_does_not_keep_is_an_error() {
    in_namespace(|| {
        let options = QueueOptions { number: NUMBER, copy_bytes: 1 << 20, ..QueueOptions::default() };
        let refused = Queue::bind(&options).unwrap_err();
        assert!(matches!(refused, QueueError::Differs { range: 65531, mode: 2, .. }), "{refused}");
    });
}

#[test]
fn a_refused_verdict_is_returned_once_and_costs_no_packet() {
    in_namespace(|| {
        let mut queue = bind(|_| ());
        rule("-j NFQUEUE --queue-num 7");
        let wire = Wire::new();
        queue.number = NUMBER + 1;
        queue.verdict(1, Verdict::Accept, None);
        queue.send().unwrap();
        queue.number = NUMBER;
        wire.send(2);
        assert_eq!(queue.receive(PATIENCE, |_| ()).unwrap().packets, 2);
        let refused = queue.receive(NOW, |_| ()).unwrap_err();
        assert!(
            matches!(&refused, QueueError::Refused(NUMBER, e) if e.raw_os_error() == Some(libc::ENODEV)),
            "{refused}"
        );
        assert_eq!(queue.receive(NOW, |_| ()).unwrap().packets, 0);
    });
}
