//! Networks that use the same addresses are told apart by their VLAN ids, with flow records and without.

use std::net::Ipv4Addr;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{ETH_QINQ, ETH_VLAN, Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, Lab, SINK4};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::require_live;
use netams_tests::truth::Traffic;

/// Layer-3 bytes of a packet in VLAN 10 and so on: IPv4, UDP and a payload.
const BYTES: [u64; 5] = [128, 228, 328, 428, 528];

/// A packet in VLAN 10, in 20, in 30 inside of 20, in 40, in none. Its source is in 10.0.0.0/15.
fn frame(network: usize, source: u32) -> Vec<u8> {
    let eth = Frame::eth(CL0_MAC, CLIENT_MAC);
    let tagged = match network {
        0 => eth.vlan(ETH_VLAN, 10),
        1 => eth.vlan(ETH_VLAN, 20),
        2 => eth.vlan(ETH_QINQ, 20).vlan(ETH_VLAN, 30),
        3 => eth.vlan(ETH_VLAN, 40),
        _ => eth,
    };
    let source = Ipv4Addr::from_bits(0x0a00_0000 + source);
    tagged.ipv4(source, SINK4, UDP, &[]).udp(1000, 7001).payload(BYTES[network] as usize - 28).build()
}

/// Packets in to and out of a unit.
fn total(daemon: &Daemon, name: &str) -> [Traffic; 2] {
    let units = daemon.units().units;
    let unit = units.iter().find(|unit| unit.name == name).unwrap_or_else(|| panic!("no unit {name}"));
    let traffic = |packets, bytes| Traffic { packets, bytes };
    let total = unit.total;
    [traffic(total.in_packets, total.in_bytes), traffic(total.out_packets, total.out_bytes)]
}

/// Sends packets of `sources` sources, half of them in each of two /16, in each network; says how many went to overflow.
fn told_apart(config: Config, sources: u64) -> u64 {
    let lab = Lab::new();
    let config = config
        .unit("ten", "net", &["10.0.0.0/8"])
        .selector("vlan = 10")
        .unit("twenty", "net", &["10.0.0.0/8"])
        .selector("vlan = 20")
        .unit("inside", "net", &["10.0.0.0/8"])
        .selector("vlan = 20\nvlan_inner = 30")
        .unit("inner", "net", &["10.1.0.0/16"])
        .selector("vlan_inner = 30")
        .unit("absent", "net", &["10.0.0.0/8"])
        .selector("vlan = 30")
        .unit("low", "net", &["10.0.0.0/16"])
        .unit("sink", "net", &["203.0.113.0/24"])
        .selector("vlan = 10")
        .unit("tenants", "group", &["ten", "twenty"])
        .unit("all", "group", &["ten", "twenty", "inside", "inner", "low", "sink"]);
    let daemon = Daemon::start(&lab.router, &config);
    let source = |i: u64| ((i & 1) << 16 | i >> 1) as u32;
    let frames = (0..sources).flat_map(|i| (0..BYTES.len()).map(move |network| frame(network, source(i))));
    let count = sources * BYTES.len() as u64;
    Blast::new(frames.collect(), count).send(&lab.client, "eth0", &lab.router, "cl0");

    let none = Traffic::default();
    let of = |networks: &[usize], sources: u64| Traffic {
        packets: networks.len() as u64 * sources,
        bytes: networks.iter().map(|network| BYTES[*network] * sources).sum(),
    };
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.flow_packets + ledger.overflow_packets, count, "{ledger:#?}");
    let half = sources / 2;
    assert_eq!(total(&daemon, "ten"), [none, of(&[0], sources)]);
    assert_eq!(total(&daemon, "twenty"), [none, of(&[1, 2], sources)]);
    assert_eq!(total(&daemon, "inside"), [none, of(&[2], sources)]);
    assert_eq!(total(&daemon, "inner"), [none, of(&[2], half)]);
    assert_eq!(total(&daemon, "absent"), [none, none]);
    assert_eq!(total(&daemon, "low"), [none, of(&[0, 1, 2, 3, 4], half)]);
    assert_eq!(total(&daemon, "sink"), [of(&[0], sources), none]);
    assert_eq!(total(&daemon, "tenants"), [none, of(&[0, 1, 2], sources)]);
    // What several of its members have, the group has once.
    let once = of(&[0, 1, 2], sources);
    let low = of(&[3, 4], half);
    let all = Traffic { packets: once.packets + low.packets, bytes: once.bytes + low.bytes };
    assert_eq!(total(&daemon, "all"), [of(&[0], sources), all]);

    if ledger.overflow_packets == 0 {
        for (unit, traffic) in [("ten", of(&[0], sources)), ("inner", of(&[2], half)), ("all", all)] {
            assert_eq!(flow_total(&daemon, &["--unit", unit]), traffic, "flows of {unit}");
        }
    }
    ledger.overflow_packets
}

#[test]
fn the_same_addresses_on_other_vlans_are_other_units() {
    if require_live() {
        assert_eq!(told_apart(Config::default(), 100), 0);
    }
}

#[test]
fn a_full_table_does_not_mix_them_up() {
    if require_live() {
        assert!(told_apart(Config { flows: 256, spill: 256, ..Config::default() }, 20_000) > 0);
    }
}

#[test]
fn a_unit_that_moves_to_another_vlan_has_nothing_of_the_former_one() {
    if !require_live() {
        return;
    }
    const SOURCES: u64 = 5_000;
    let lab = Lab::new();
    let tenant = |vlan| {
        Config { flows: 256, spill: 256, interval_ms: 60_000, ..Config::default() }
            .unit("tenant", "net", &["10.0.0.0/8"])
            .selector(&format!("vlan = {vlan}"))
    };
    let send = |network| {
        let frames = (0..SOURCES as u32).map(|source| frame(network, source)).collect();
        Blast::new(frames, SOURCES).send(&lab.client, "eth0", &lab.router, "cl0")
    };
    let mut daemon = Daemon::start(&lab.router, &tenant(10));
    send(0);
    daemon.kill9();
    // The tables of the former configuration still hold all of this, most of it as overflow.
    daemon.place.configure(&tenant(20));
    daemon.start_again();
    send(1);
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.flow_packets + ledger.overflow_packets, 2 * SOURCES, "{ledger:#?}");
    assert!(ledger.overflow_packets > SOURCES, "{ledger:#?}");
    let moved = Traffic { packets: SOURCES, bytes: SOURCES * BYTES[1] };
    assert_eq!(total(&daemon, "tenant"), [Traffic::default(), moved]);
}
