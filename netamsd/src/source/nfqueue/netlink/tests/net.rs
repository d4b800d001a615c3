//! A network namespace of the test's own: loopback alone, with rules in its output.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use super::super::{Message, Queue, QueueOptions, Received};
use crate::source::nfqueue::status::QueueStatus;

/// Number of the queue in all tests; each has its own namespace.
pub const NUMBER: u16 = 7;
/// How long a packet may take from being sent to being there.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Answers at once.
pub const NOW: Duration = Duration::ZERO;

/// Runs `test` on a thread in a new network namespace, where that is possible.
pub fn in_namespace(test: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        let reason = "needs root for a network namespace and its rules";
        assert!(std::env::var_os("NETAMS_REQUIRE_LIVE").is_none_or(|v| v != "1"), "cannot run: {reason}");
        println!("skipped: {reason}");
        return;
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            test();
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Runs a program in this thread's namespace; its output.
pub fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "`{line}`: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Appends a rule for datagrams on their way out.
pub fn rule(rest: &str) {
    run(&format!("iptables -w -t mangle -A OUTPUT -p udp {rest}"));
}

/// Packets that have met the one rule of mangle POSTROUTING.
pub fn counted() -> u64 {
    let rows = run("iptables -w -t mangle -nvxL POSTROUTING");
    rows.lines().nth(2).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// A queue of few packets and a small buffer, if asked for; otherwise ample.
pub fn bind(change: impl FnOnce(&mut QueueOptions)) -> Queue {
    let mut options = QueueOptions { number: NUMBER, fail_open: false, ..QueueOptions::default() };
    change(&mut options);
    Queue::bind(&options).unwrap()
}

/// Its line in the kernel's list.
pub fn status(queue: &Queue) -> QueueStatus {
    queue.status().unwrap().unwrap()
}

/// Two ends of datagrams over loopback.
pub struct Wire {
    from: UdpSocket,
    to: UdpSocket,
}

impl Wire {
    pub fn new() -> Self {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        to.set_nonblocking(true).unwrap();
        Self { from, to }
    }

    /// Sends so many datagrams of 100 bytes. Those that a queue drops are lost in silence.
    pub fn send(&self, count: u32) {
        // What waits in a queue fills the send buffer of its socket.
        const EACH: u32 = 100;
        for sent in (0..count).step_by(EACH as usize) {
            let from = UdpSocket::bind("127.0.0.1:0").unwrap();
            for _ in sent..count.min(sent + EACH) {
                from.send_to(&[0x5a; 100], self.to.local_addr().unwrap()).unwrap();
            }
        }
    }

    /// Sends one datagram of `size` bytes.
    pub fn send_one(&self, size: usize) {
        self.from.send(&vec![0x5a; size]).unwrap();
    }

    /// The sending end.
    pub fn sender(&self) -> &UdpSocket {
        &self.from
    }

    /// Datagrams that have arrived since the last call. Those that pass loopback have arrived when they have been sent, or
    /// their verdict has.
    pub fn arrived(&self) -> u32 {
        let mut buffer = [0; 2048];
        std::iter::from_fn(|| self.to.recv(&mut buffer).ok()).count() as u32
    }
}

/// A message without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub id: u32,
    pub gap: u32,
    pub mark: u32,
    pub len: u32,
    pub gso: bool,
}

/// Receives until nothing is there any more.
pub fn drain(queue: &mut Queue) -> (Received, Vec<Seen>) {
    let mut all = Received::default();
    let mut seen = Vec::new();
    loop {
        let note = |m: &Message<'_>| {
            seen.push(Seen { id: m.id, gap: m.gap, mark: m.mark, len: m.len, gso: m.gso });
        };
        let received = queue.receive(NOW, note).unwrap();
        if received.packets == 0 {
            return (all, seen);
        }
        if all.packets == 0 {
            all.first = received.first;
        }
        all = Received {
            packets: all.packets + received.packets,
            last: received.last,
            lost: all.lost + received.lost,
            ..all
        };
    }
}
