//! Many packets from both CPUs, and many more flows than the table holds. Wants both CPUs for itself.

use std::net::Ipv4Addr;
use std::time::Instant;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::require_live;
use netams_tests::truth::{Traffic, device};

/// Layer-3 bytes of the packets sent here: IPv4, UDP, 36 bytes of payload.
const BYTES: u64 = 64;

fn frame(source: Ipv4Addr, port: u16) -> Vec<u8> {
    Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(source, SINK4, UDP, &[]).udp(1000, port).payload(36).build()
}

#[test]
fn ten_million_packets_of_one_flow_from_two_cpus() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    // Discarded by the router instead of the server: twice as fast, and counted all the same, at the ingress of cl0.
    lab.router.run(&format!("ip route replace blackhole {SINK4}/24"));
    let daemon = Daemon::start(&lab.router, &Config { interval_ms: 100, ..Config::default() });
    let before = device(&lab.router, "cl0").rx_packets;
    let senders = [0, 1].map(|cpu| {
        let blast = Blast::new(vec![frame(CLIENT4, 7000)], 5_000_000).on_cpu(cpu);
        lab.client.spawn(move || blast.transmit("eth0").expect("send frames"))
    });
    let sent: u64 = senders.into_iter().map(|sender| sender.join().expect("the sender")).sum();
    assert_eq!(device(&lab.router, "cl0").rx_packets - before, sent, "received");
    assert_eq!(sent, 10_000_000);
    let counted = flow_total(&daemon, &["--port", "7000"]);
    assert_eq!(counted, Traffic { packets: sent, bytes: sent * BYTES });
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert!(ledger.commits > 10, "drained while it went on: {ledger:#?}");
}

#[test]
fn a_full_table_costs_flow_detail_and_nothing_else() {
    if !require_live() {
        return;
    }
    const SOURCES: u32 = 200_000;
    const ROUNDS: u64 = 3;
    let lab = Lab::new();
    let config = Config { flows: 1024, spill: 256, interval_ms: 1000, ..Config::default() }
        .unit("low", "net", &["10.0.0.0/16"])
        .unit("high", "net", &["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"])
        .unit("inside-low", "net", &["10.0.128.0/17"])
        .unit("one", "host", &["10.0.200.7"])
        .unit("sink", "net", &["203.0.113.0/24"])
        .unit("unused", "net", &["10.200.0.0/16"])
        .unit("everybody", "group", &["low", "high"]);
    let mut daemon = Daemon::start(&lab.router, &config);
    // Multiplying by a number coprime to their count visits all sources, in an order that no hash likes.
    let number = |i: u32| (u64::from(i) * 77_777 % u64::from(SOURCES)) as u32;
    let frames = (0..SOURCES).map(|i| frame(Ipv4Addr::from_bits(0x0a00_0000 + number(i)), 7001)).collect();
    let (started, cpu_before) = (Instant::now(), daemon.cpu_time());
    let sent = Blast::new(frames, u64::from(SOURCES) * ROUNDS).send(&lab.client, "eth0", &lab.router, "cl0");
    let ledger = daemon.ledger();
    let (wall, cpu) = (started.elapsed(), daemon.cpu_time() - cpu_before);
    assert_ledger(&ledger);
    assert_eq!(ledger.flow_packets + ledger.overflow_packets, sent, "{ledger:#?}");
    assert!(ledger.overflow_packets > 0, "the table was never full: {ledger:#?}");
    assert!(cpu < wall, "the daemon used {cpu:?} of processor time in {wall:?}");
    let units = daemon.units().units;
    let total = |name: &str| {
        let unit = units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("no unit {name}"));
        let total = unit.total;
        (
            Traffic { packets: total.in_packets, bytes: total.in_bytes },
            Traffic { packets: total.out_packets, bytes: total.out_bytes },
        )
    };
    let none = Traffic::default();
    let of = |sources: u64| Traffic { packets: sources * ROUNDS, bytes: sources * ROUNDS * BYTES };
    assert_eq!(total("low"), (none, of(0x1_0000)));
    assert_eq!(total("high"), (none, of(u64::from(SOURCES) - 0x1_0000)));
    assert_eq!(total("inside-low"), (none, of(0x8000)));
    assert_eq!(total("one"), (none, of(1)));
    assert_eq!(total("sink"), (of(SOURCES.into()), none));
    assert_eq!(total("unused"), (none, none));
    assert_eq!(total("everybody"), (none, of(SOURCES.into())));
}
