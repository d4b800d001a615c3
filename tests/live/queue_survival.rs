//! Queues under load: over kills, from two CPUs, and with more flows than the tables hold.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{Ledger, assert_explained, flow_total};
use netams_tests::load::{BYTES, Load, PORT};
use netams_tests::poll::wait_for;
use netams_tests::require_live;
use netams_tests::truth::{Traffic, device};

/// The ledger once nothing waits in a queue.
fn when_idle(daemon: &Daemon) -> Ledger {
    wait_for("nothing waits", Duration::from_secs(30), || {
        let ledgers = daemon.ledgers();
        ledgers.ledgers.iter().all(|ledger| ledger.waiting == 0).then(|| ledgers.into())
    })
}

/// Packets that never came out of a queue.
fn not_queued(ledger: &Ledger) -> u64 {
    ledger.queue_lost + ledger.queue_full + ledger.bypassed
}

fn frame(source: Ipv4Addr, port: u16) -> Vec<u8> {
    Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(source, SINK4, UDP, &[]).udp(1000, port).payload(36).build()
}

fn killed_twenty_times(gso: &str) {
    let lab = Lab::new();
    let config = Config { interval_ms: 50, ..Config::nfqueue(gso) }.unit("client", "host", &["192.0.2.2"]);
    let mut daemon = Daemon::start(&lab.router, &config);
    let load = Load::start(&lab, 20_000);
    for round in 0..20 {
        // Another moment of the 50 ms cycle each time.
        thread::sleep(Duration::from_millis(60 + 7 * round));
        daemon.kill9();
        daemon.start_again();
    }
    let sent = load.end(&lab);
    let ledger = when_idle(&daemon);
    assert_explained(&ledger);
    let counted = flow_total(&daemon, &["--port", &PORT.to_string()]);
    assert_eq!(counted.packets + not_queued(&ledger), sent.packets, "{gso}: {ledger:#?}");
    assert_eq!(counted.bytes, counted.packets * BYTES, "{gso}");
    let unit = daemon.units().units.remove(0).total;
    assert_eq!(Traffic { packets: unit.out_packets, bytes: unit.out_bytes }, counted, "the unit, {gso}");
    assert!(ledger.bypassed > 0, "nobody listened for some time: {ledger:#?}");
    assert_eq!((ledger.reference, ledger.missed), (sent.packets, 0), "{gso}: {ledger:#?}");
    println!("{gso}: {} of {} packets in flows, {} bypassed", counted.packets, sent.packets, ledger.bypassed);
}

#[test]
fn kill9_under_load_loses_nothing_in_silence_with_stamps() {
    if require_live() {
        killed_twenty_times("auto");
    }
}

#[test]
fn kill9_under_load_loses_nothing_in_silence_with_cut_packets() {
    if require_live() {
        killed_twenty_times("exact");
    }
}

#[test]
fn kill9_leaves_packets_of_a_tunnel_in_both_layers_or_in_none() {
    if !require_live() {
        return;
    }
    const VXLAN: u16 = 4789;
    const VNI: [u8; 8] = [8, 0, 0, 0, 0, 0, 42, 0];
    let lab = Lab::new();
    let config = Config { interval_ms: 50, tunnels: "inner", ..Config::nfqueue("auto") };
    let mut daemon = Daemon::start(&lab.router, &config);
    let carrier = |port| {
        let inside = frame(Ipv4Addr::new(10, 77, 0, 1), port);
        let around = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]);
        around.udp(port, VXLAN).raw(&VNI).raw(&inside).build()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let before = device(&lab.router, "cl0").rx_packets;
    let blast = Blast::new((7200..7300).map(carrier).collect(), u64::MAX).rate(20_000).until(&stop);
    let sender = lab.client.spawn(move || blast.transmit("eth0").expect("send frames"));
    for round in 0..10 {
        thread::sleep(Duration::from_millis(60 + 7 * round));
        daemon.kill9();
        daemon.start_again();
    }
    stop.store(true, Ordering::Relaxed);
    let sent = sender.join().expect("the sender");
    assert_eq!(device(&lab.router, "cl0").rx_packets - before, sent, "received");
    let ledger = when_idle(&daemon);
    assert_explained(&ledger);
    let outer = flow_total(&daemon, &["--port", &VXLAN.to_string()]);
    assert!(outer.packets > 0, "{ledger:#?}");
    assert_eq!(outer.packets + not_queued(&ledger), sent, "{ledger:#?}");
    assert_eq!(outer.bytes, outer.packets * (20 + 8 + 8 + 14 + BYTES));
    let inner = flow_total(&daemon, &["--layer", "inner"]);
    assert_eq!(inner, Traffic { packets: outer.packets, bytes: outer.packets * BYTES });
    assert_eq!((ledger.inner_packets, ledger.inner_bytes), (inner.packets, inner.bytes), "{ledger:#?}");
    println!("{} of {sent} packets in flows of both layers", outer.packets);
}

#[test]
fn a_million_packets_of_one_flow_from_two_cpus() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let nfqueue = "queues = 2".into();
    let config = Config { source: "nfqueue", nfqueue, interval_ms: 100, ..Config::default() };
    let daemon = Daemon::start(&lab.router, &config);
    let before = device(&lab.router, "cl0").rx_packets;
    let senders = [0, 1].map(|cpu| {
        let blast = Blast::new(vec![frame(CLIENT4, 7000)], 500_000).rate(20_000).on_cpu(cpu);
        lab.client.spawn(move || blast.transmit("eth0").expect("send frames"))
    });
    let sent: u64 = senders.into_iter().map(|sender| sender.join().expect("the sender")).sum();
    assert_eq!(device(&lab.router, "cl0").rx_packets - before, sent, "received");
    assert_eq!(sent, 1_000_000);
    let ledger = when_idle(&daemon);
    assert_explained(&ledger);
    let counted = flow_total(&daemon, &["--port", "7000"]);
    assert_eq!(counted.packets + not_queued(&ledger), sent, "{ledger:#?}");
    assert_eq!(counted.bytes, counted.packets * BYTES);
    assert_eq!((ledger.bypassed, ledger.missed), (0, 0), "somebody listened all the time: {ledger:#?}");
    assert!(ledger.commits > 10, "drained while it went on: {ledger:#?}");
    println!("{} of {sent} packets in flows, {} lost", counted.packets, not_queued(&ledger));
}

#[test]
fn a_full_table_costs_flow_detail_and_nothing_else() {
    if !require_live() {
        return;
    }
    const SOURCES: u32 = 100_000;
    const ROUNDS: u64 = 2;
    let lab = Lab::new();
    for gso in ["auto", "exact"] {
        let config = Config { flows: 1024, spill: 256, interval_ms: 1000, ..Config::nfqueue(gso) }
            .unit("low", "net", &["10.0.0.0/16"])
            .unit("high", "net", &["10.1.0.0/16"])
            .unit("inside-low", "net", &["10.0.128.0/17"])
            .unit("one", "host", &["10.0.200.7"])
            .unit("sink", "net", &["203.0.113.0/24"])
            .unit("everybody", "group", &["low", "high"]);
        let daemon = Daemon::start(&lab.router, &config);
        // Multiplying by a number coprime to their count visits all sources, in an order that no hash likes.
        let number = |i: u32| (u64::from(i) * 77_777 % u64::from(SOURCES)) as u32;
        let frames =
            (0..SOURCES).map(|i| frame(Ipv4Addr::from_bits(0x0a00_0000 + number(i)), 7001)).collect();
        let blast = Blast::new(frames, u64::from(SOURCES) * ROUNDS).rate(20_000);
        let sent = blast.send(&lab.client, "eth0", &lab.router, "cl0");
        let ledger = when_idle(&daemon);
        assert_explained(&ledger);
        assert_eq!(not_queued(&ledger), 0, "{ledger:#?}");
        assert_eq!(ledger.flow_packets + ledger.overflow_packets, sent, "{ledger:#?}");
        assert!(ledger.overflow_packets > 0 && ledger.spilled > 0, "the table was never full: {ledger:#?}");
        println!("{gso}: {} packets in flows, {} in overflow", ledger.flow_packets, ledger.overflow_packets);
        let units = daemon.units().units;
        let total = |name: &str| {
            let unit =
                units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("no unit {name}"));
            let total = unit.total;
            [
                Traffic { packets: total.in_packets, bytes: total.in_bytes },
                Traffic { packets: total.out_packets, bytes: total.out_bytes },
            ]
        };
        let none = Traffic::default();
        let of = |sources: u64| Traffic { packets: sources * ROUNDS, bytes: sources * ROUNDS * BYTES };
        assert_eq!(total("low"), [none, of(0x1_0000)]);
        assert_eq!(total("high"), [none, of(u64::from(SOURCES) - 0x1_0000)]);
        assert_eq!(total("inside-low"), [none, of(0x8000)]);
        assert_eq!(total("one"), [none, of(1)]);
        assert_eq!(total("sink"), [of(SOURCES.into()), none]);
        assert_eq!(total("everybody"), [none, of(SOURCES.into())]);
    }
}
