//! Queues that are taken away from the daemon, or only looked at.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netams_proto::{Ledgers, Queue};
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{assert_explained, assert_ledger, closed_account, flow_total};
use netams_tests::ns::assert_success;
use netams_tests::poll::wait_until;
use netams_tests::queue::Socket;
use netams_tests::require_live;
use netams_tests::truth::device;

const PORT: u16 = 7300;
/// Packets a second.
const RATE: u64 = 20_000;
/// How long the daemon may take to notice something.
const PATIENCE: Duration = Duration::from_secs(10);

/// Frames to many addresses, which queues are chosen by.
fn spread() -> Vec<Vec<u8>> {
    let [a, b, c, _] = SINK4.octets();
    let frame = |host| {
        let frame = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, [a, b, c, host].into(), UDP, &[]);
        frame.udp(1, PORT).payload(36).build()
    };
    (1..=200).map(frame).collect()
}

fn two_queues() -> Config {
    let config = Config::nfqueue("auto");
    Config { nfqueue: format!("{}\nqueues = 2", config.nfqueue), ..config }
}

fn queues(daemon: &Daemon) -> Vec<Queue> {
    daemon.source().nfqueue.expect("queues").queues
}

fn events(daemon: &Daemon, kind: &str) -> usize {
    daemon.events().iter().filter(|event| event.kind == kind).count()
}

#[test]
fn a_queue_that_is_taken_away_is_served_again_while_the_others_go_on() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &two_queues());
    let came = device(&lab.router, "cl0").rx_packets;
    let stop = Arc::new(AtomicBool::new(false));
    let blast = Blast::new(spread(), u64::MAX).rate(RATE).until(&stop);
    let sender = lab.client.spawn(move || blast.transmit("eth0").expect("send frames"));
    let mut now = queues(&daemon);
    let mut all_receive = |daemon: &Daemon| {
        let before = std::mem::replace(&mut now, queues(daemon));
        before.iter().zip(&now).take(2).all(|(before, now)| now.received > before.received)
    };
    wait_until("both queues receive", PATIENCE, || all_receive(&daemon));
    let before = queues(&daemon);
    Socket::of_queue(daemon.pid(), &lab.router, before[0].number).give_back(before[0].number);
    wait_until("the queue is served again", PATIENCE, || queues(&daemon)[0].restarts == 1);
    let after = queues(&daemon);
    assert!(after[1].received > before[1].received, "the other one goes on: {before:#?} {after:#?}");
    wait_until("both queues receive again", PATIENCE, || all_receive(&daemon));
    stop.store(true, Ordering::Relaxed);
    let sent = sender.join().expect("the sender");
    assert_eq!(device(&lab.router, "cl0").rx_packets - came, sent, "received by the router");

    let terms = closed_account(&daemon);
    assert_explained(&daemon.ledger());
    assert_eq!(terms.reference, sent, "{terms:#?}");
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]).packets, terms.queued);
    assert_eq!(events(&daemon, "queue_restarted"), 1, "{:#?}", daemon.events());
    let last = queues(&daemon);
    assert_eq!(last.iter().map(|queue| queue.received).sum::<u64>(), terms.queued);
    for (before, last) in before.iter().zip(&last).skip(1) {
        assert_eq!((last.restarts, last.lost, last.since_ms), (0, 0, before.since_ms), "{last:#?}");
    }
    println!(
        "sent {sent}, queued {}, bypassed {}, queue_lost {}",
        terms.queued, terms.bypassed, terms.queue_lost
    );
}

#[test]
fn a_queue_that_somebody_else_has_taken_is_taken_back_when_it_is_free() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &two_queues());
    let number = queues(&daemon)[1].number;
    let other = Socket::open(&lab.router);
    // Stopped, so that it does not come first.
    daemon.stop();
    Socket::of_queue(daemon.pid(), &lab.router, number).give_back(number);
    other.take(number);
    daemon.go_on();
    wait_until("the daemon notices", PATIENCE, || events(&daemon, "queue_failed") == 1);
    assert_eq!(queues(&daemon)[1].restarts, 0);
    drop(other);
    wait_until("the queue is served again", PATIENCE, || queues(&daemon)[1].restarts == 1);
    assert_eq!(events(&daemon, "queue_restarted"), 1, "{:#?}", daemon.events());
    let sent = Blast::new(spread(), 10_000).rate(RATE).send(&lab.client, "eth0", &lab.router, "cl0");
    let terms = closed_account(&daemon);
    assert_eq!((terms.reference, terms.queued), (sent, sent), "{terms:#?}");
    assert!(queues(&daemon).iter().take(2).all(|queue| queue.received > 0), "{:#?}", queues(&daemon));
    assert_explained(&daemon.ledger());
}

#[test]
fn asking_a_thousand_times_changes_nothing_on_an_idle_box() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &two_queues());
    let sent = Blast::new(spread(), 1_000).rate(RATE).send(&lab.client, "eth0", &lab.router, "cl0");
    let first = closed_account(&daemon);
    assert_eq!((first.reference, first.queued), (sent, sent), "{first:#?}");
    let script = daemon.place.path().join("thousand");
    fs::write(&script, "ledger --json\n".repeat(1_000)).expect("a file of commands");
    let answers = daemon.ngctl(&["-f", script.to_str().expect("an ASCII path")]);
    assert_success(&answers, "ngctl -f");
    let ledgers: Vec<Ledgers> = serde_json::Deserializer::from_slice(&answers.stdout)
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("ledgers as JSON");
    assert_eq!(ledgers.len(), 1_000);
    for ledgers in ledgers {
        let ledger = ledgers.ledgers.iter().find(|ledger| ledger.source == "nfqueue").expect("its ledger");
        assert_eq!((&ledger.total, ledger.waiting), (&first, 0), "{ledger:#?}");
        assert_ledger(&ledgers.into());
    }
    assert!(queues(&daemon).iter().all(|queue| queue.lost + queue.full + queue.restarts == 0));
}
