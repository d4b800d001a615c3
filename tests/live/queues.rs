//! Queues whose reader is stopped while packets come: what they lose is told to the packet, and by its reason.

use std::time::Duration;

use netams_proto::Terms;
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{assert_explained, closed_account, flow_total};
use netams_tests::poll::wait_until;
use netams_tests::require_live;
use netams_tests::truth::device;

const PORT: u16 = 7200;
/// Packets a second.
const RATE: u64 = 20_000;

/// A stall of the daemon while packets come.
#[derive(Clone, Copy)]
struct Stall {
    /// Lines of `[nfqueue]`.
    nfqueue: &'static str,
    /// Payload bytes.
    payload: usize,
    /// Packets that come meanwhile.
    during: u64,
    /// Packets that come before, and if it is not the end of them, after.
    around: u64,
    /// Whether the last packet comes while the daemon is stopped.
    last: bool,
}

/// What came of it.
struct Outcome {
    sent: u64,
    /// Packets that have left the router, or would have but for the wire.
    left: u64,
    terms: Terms,
}

fn frames(payload: usize) -> Vec<Vec<u8>> {
    let frame = |port| {
        let frame = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]);
        frame.udp(port, PORT).payload(payload).build()
    };
    (1..=100).map(frame).collect()
}

impl Stall {
    fn run(self, fail: &str) -> Outcome {
        let lab = Lab::new();
        let mut config = Config::nfqueue("auto");
        config.nfqueue = format!("fail = {fail:?}\n{}", self.nfqueue);
        let mut daemon = Daemon::start(&lab.router, &config);
        let [cl0, sv0] = ["cl0", "sv0"].map(|name| device(&lab.router, name));
        let came = || device(&lab.router, "cl0").rx_packets - cl0.rx_packets;
        let has_come = |what: &str, packets| {
            wait_until(what, Duration::from_secs(20), || came() >= packets);
        };
        let count = self.around + self.during + if self.last { 0 } else { self.around };
        let blast = Blast::new(frames(self.payload), count).rate(RATE);
        let sender = lab.client.spawn(move || blast.transmit("eth0").expect("send frames"));
        has_come("packets before the stall", self.around);
        daemon.stop();
        has_come("packets during the stall", self.around + self.during);
        daemon.go_on();
        let sent = sender.join().expect("the sender");
        assert_eq!(came(), sent, "received by the router");

        let terms = closed_account(&daemon);
        assert_explained(&daemon.ledger());
        assert_eq!(terms.reference, sent, "{terms:#?}");
        assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]).packets, terms.queued);
        let status = daemon.source().nfqueue.expect("queues");
        assert_eq!(status.waiting, 0);
        assert_eq!(status.queues.iter().map(|queue| queue.received).sum::<u64>(), terms.queued);
        assert_eq!(status.queues.iter().map(|queue| queue.lost).sum::<u64>(), terms.queue_lost);
        assert_eq!(status.queues.iter().map(|queue| queue.full).sum::<u64>(), terms.queue_full);
        assert!(status.queues.iter().all(|queue| queue.restarts == 0), "{status:#?}");

        // The account goes on where it was: what was lost is not found again.
        let more = Blast::new(frames(self.payload), 1_000).rate(RATE);
        let more = more.send(&lab.client, "eth0", &lab.router, "cl0");
        let now = closed_account(&daemon);
        assert_eq!((now.reference, now.queued), (terms.reference + more, terms.queued + more), "{now:#?}");
        let out = device(&lab.router, "sv0");
        let left = out.tx_packets + out.tx_dropped - sv0.tx_packets - sv0.tx_dropped - more;
        println!(
            "fail {fail}, {}: sent {sent}, left {left}, queued {}, queue_lost {}, queue_full {}, bypassed {}",
            self.nfqueue, terms.queued, terms.queue_lost, terms.queue_full, terms.bypassed
        );
        Outcome { sent, left, terms }
    }
}

#[test]
fn a_long_queue_only_delays_what_comes_while_its_reader_is_stopped() {
    if !require_live() {
        return;
    }
    for fail in ["open", "closed"] {
        let stall =
            Stall { nfqueue: "max_packets = 65535", payload: 36, during: 30_000, around: 4_000, last: false };
        let Outcome { sent, left, terms } = stall.run(fail);
        assert_eq!((terms.queued, left), (sent, sent), "{terms:#?}");
    }
}

#[test]
fn a_short_queue_that_is_full_lets_packets_pass_or_drops_them() {
    if !require_live() {
        return;
    }
    let stall =
        Stall { nfqueue: "max_packets = 1000", payload: 36, during: 40_000, around: 4_000, last: false };
    let Outcome { sent, left, terms } = stall.run("open");
    assert_ne!(terms.bypassed, 0, "{terms:#?}");
    assert_eq!((terms.queue_full, terms.queue_lost, left), (0, 0, sent), "{terms:#?}");

    let Outcome { sent, left, terms } = stall.run("closed");
    assert_ne!(terms.queue_full, 0, "{terms:#?}");
    assert_eq!((terms.bypassed, terms.queue_lost), (0, 0), "{terms:#?}");
    assert_eq!(left, sent - terms.queue_full, "{terms:#?}");
}

/// The socket's buffer is full long before the queue is.
fn overrun(last: bool) {
    let nfqueue = "max_packets = 1048576\ncopy_bytes = 1024";
    let stall = Stall { nfqueue, payload: 1200, during: 40_000, around: 4_000, last };
    let Outcome { sent, left, terms } = stall.run("open");
    assert_ne!(terms.queue_lost, 0, "{terms:#?}");
    assert_eq!((terms.queue_full, terms.bypassed, left), (0, 0, sent), "{terms:#?}");

    let Outcome { sent, left, terms } = stall.run("closed");
    assert_ne!(terms.queue_lost, 0, "{terms:#?}");
    assert_eq!((terms.queue_full, terms.bypassed), (0, 0), "{terms:#?}");
    assert_eq!(left, sent - terms.queue_lost, "{terms:#?}");
}

#[test]
fn what_the_sockets_buffer_has_no_room_for_is_a_gap_in_the_ids() {
    if require_live() {
        overrun(false);
    }
}

#[test]
fn and_is_known_before_another_packet_comes() {
    if require_live() {
        overrun(true);
    }
}
