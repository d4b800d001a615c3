//! Sources are switched while packets flow: none is missed, and none is counted twice.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netams_proto::SourceKind;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{Lab, SINK4, SINK6};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::require_live;
use netams_tests::tcp::{self, Transfer};
use netams_tests::truth::{Traffic, device, qdisc};
use netams_tests::udp::Datagrams;

/// Packets of both protocols in both directions until `done`.
fn load(lab: &Lab, done: &AtomicBool) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let version = if round % 2 == 0 { 4 } else { 6 };
                let reverse = round % 4 >= 2;
                let port = 5300 + round % 500;
                tcp::run(lab, Transfer { port, bytes: 200_000_000, version, reverse });
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let sink = if round % 2 == 0 { IpAddr::from(SINK4) } else { IpAddr::from(SINK6) };
                let (size, segment) = if round % 3 == 0 { (14_000, Some(1400)) } else { (64, None) };
                let to = SocketAddr::new(sink, 9100);
                Datagrams { to, size, count: 50, segment }.send(&lab.client);
                thread::sleep(Duration::from_millis(5));
            }
        });
    });
}

/// Switches through `order` again and again, a new source every `pause`, for `time`; everything that was sent is counted.
fn switched(config: &Config, order: &[SourceKind], pause: Duration, time: Duration) {
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, config);
    let before = [qdisc(&lab.client), qdisc(&lab.server)];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| load(&lab, &done));
        let started = Instant::now();
        for kind in order.iter().cycle() {
            thread::sleep(pause);
            if started.elapsed() > time {
                break;
            }
            assert_eq!(daemon.set_source(*kind).source, *kind);
        }
        done.store(true, Ordering::Relaxed);
    });
    let mut sent = qdisc(&lab.client) - before[0];
    sent += qdisc(&lab.server) - before[1];
    for (end, name) in [(&lab.client, "client"), (&lab.server, "server")] {
        assert_eq!(device(end, "eth0").tx_dropped, 0, "the {name} dropped packets");
    }
    let counted = flow_total(&daemon, &[]);
    let ledgers = daemon.ledgers();
    assert_eq!(counted, sent, "{ledgers:#?}\n{:#?}", daemon.events());
    assert_ledger(&daemon.ledger());
    let both = ledgers.ledgers.iter().filter(|ledger| ledger.total.flow_packets > 0).count();
    assert_eq!(both, order.len(), "each source has counted: {ledgers:#?}");
    assert_ne!(sent, Traffic::default());
}

const KERNEL_AND_QUEUES: [SourceKind; 2] = [SourceKind::Nfqueue, SourceKind::Kernel];

#[test]
fn every_half_second_for_a_minute() {
    if require_live() {
        let config = Config { nfqueue: "gso = \"auto\"".into(), ..Config::default() };
        switched(&config, &KERNEL_AND_QUEUES, Duration::from_millis(500), Duration::from_secs(60));
    }
}
