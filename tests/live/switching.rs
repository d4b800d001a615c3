//! Sources are switched while packets flow: none is missed, and none is counted twice.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netams_proto::SourceKind;
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::hooks::{self, Direction};
use netams_tests::lab::{Lab, SINK4, SINK6};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::load::{Load, PORT, frames};
use netams_tests::require_live;
use netams_tests::stream::Stream;
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
fn switched(lab: &Lab, config: &Config, order: &[SourceKind], pause: Duration, time: Duration) {
    let daemon = Daemon::start(&lab.router, config);
    let before = [qdisc(&lab.client), qdisc(&lab.server)];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| load(lab, &done));
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
    let mut counted = flow_total(&daemon, &["--proto", "tcp"]);
    counted += flow_total(&daemon, &["--proto", "udp"]);
    let ledgers = daemon.ledgers();
    assert_eq!(counted, sent, "{ledgers:#?}\n{:#?}", daemon.events());
    assert_ledger(&daemon.ledger());
    let both = ledgers.ledgers.iter().filter(|ledger| ledger.total.flow_packets > 0).count();
    assert_eq!(both, order.len(), "each source has counted: {ledgers:#?}");
    assert_ne!(sent, Traffic::default());
}

const KERNEL_AND_QUEUES: [SourceKind; 2] = [SourceKind::Nfqueue, SourceKind::Kernel];

fn with_gso(gso: &str) -> Config {
    Config { source: "kernel", ..Config::nfqueue(gso) }
}

#[test]
fn every_half_second_for_a_minute() {
    if require_live() {
        let time = Duration::from_secs(60);
        switched(&Lab::new(), &with_gso("auto"), &KERNEL_AND_QUEUES, Duration::from_millis(500), time);
    }
}

#[test]
fn with_cut_packets() {
    if require_live() {
        let time = Duration::from_secs(15);
        switched(&Lab::new(), &with_gso("exact"), &KERNEL_AND_QUEUES, Duration::from_millis(500), time);
    }
}

/// A packet meets the programs of the port and of the bridge before it comes to netfilter.
#[test]
fn behind_a_bridge() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    lab.bridge_client();
    let config = Config { interfaces: vec!["cl0", "br0", "sv0"], ..with_gso("auto") };
    switched(&lab, &config, &KERNEL_AND_QUEUES, Duration::from_millis(300), Duration::from_secs(15));
}

/// What is inferred is as wrong as it is; what is no super-packet is exact.
#[test]
fn with_inferred_sizes() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &with_gso("estimate"));
    let stream = Stream::connect(&lab, 5500);
    let load = Load::start(&lab, 2_000);
    stream.begin();
    for kind in KERNEL_AND_QUEUES.iter().cycle().take(10) {
        thread::sleep(Duration::from_millis(500));
        assert_eq!(daemon.set_source(*kind).source, *kind);
    }
    let sent = load.stop();
    stream.end(&lab);
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]), sent);
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert!(ledger.estimated > 0, "{ledger:#?}");
}

/// What is in the router beside what a source needs: netfilter rules, queues, programs.
fn left_by(lab: &Lab, source: SourceKind, gso: &str) {
    let router = &lab.router;
    let rules = ["iptables-save", "ip6tables-save"].map(|tool| router.run(tool)).concat();
    let tables = router.run("nft list tables");
    let queues = router.enter(|| std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue"));
    if source != SourceKind::Nfqueue {
        assert!(!rules.contains("NETAMS") && !tables.contains("inet netams"), "{source:?}: {rules}{tables}");
        assert_eq!(queues.unwrap_or_default(), "", "{source:?}");
    }
    let metering = source == SourceKind::Kernel || source == SourceKind::Nfqueue && gso == "auto";
    for device in ["cl0", "sv0"] {
        for direction in [Direction::Ingress, Direction::Egress] {
            let programs = hooks::programs(router, device, direction);
            assert_eq!(programs.len(), usize::from(metering), "{source:?}, {gso}: {device} {direction}");
        }
    }
}

#[test]
fn nothing_is_left_of_a_source_that_is_off() {
    if !require_live() {
        return;
    }
    use SourceKind::{Kernel, Nfqueue, Off};
    for gso in ["auto", "exact", "estimate"] {
        let lab = Lab::new();
        let mut daemon = Daemon::start(&lab.router, &with_gso(gso));
        let mut sent = 0;
        for source in [Off, Nfqueue, Off, Kernel, Nfqueue, Kernel, Off, Kernel] {
            daemon.set_source(source);
            left_by(&lab, source, gso);
            assert_eq!(daemon.info().mode, u8::from(source != Off), "{source:?}");
            if source != Off {
                sent += Blast::new(frames(), 500).send(&lab.client, "eth0", &lab.router, "cl0");
            }
            assert_eq!(flow_total(&daemon, &[]).packets, sent, "{source:?}, {gso}");
        }
        assert_ledger(&daemon.ledger());
        assert_eq!(daemon.terminate(), 0);
        left_by(&lab, Off, gso);
    }
}
