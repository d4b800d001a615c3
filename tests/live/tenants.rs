//! Networks that use the same addresses are told apart by their VLAN ids and tunnels, with flow records and without.

use std::net::Ipv4Addr;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{ETH_QINQ, ETH_VLAN, Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
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

const GRE: u8 = 47;
const VXLAN_PORT: u16 = 4789;
const ETHERNET: usize = 14;

/// Layer-3 bytes of a packet in VXLAN 7 and so on, without the tunnel.
const INNER: [u64; 5] = [128, 228, 328, 428, 528];

/// A packet in VXLAN 7, in VXLAN 8 and VLAN 10 there, in GRE with the key 7, in GRE without a key, in no tunnel. Its source
/// is in 10.0.0.0/8, the tunnel's in 192.0.2.0/24.
fn tunneled(network: usize, source: u32) -> Vec<u8> {
    let eth = || Frame::eth(CL0_MAC, CLIENT_MAC);
    let packet = |eth: Frame| {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + source);
        eth.ipv4(source, SINK4, UDP, &[]).udp(1000, 7001).payload(INNER[network] as usize - 28).build()
    };
    let vxlan = |vni: u8, frame: &[u8]| {
        let outer = eth().ipv4(CLIENT4, SINK4, UDP, &[]).udp(2000, VXLAN_PORT);
        outer.raw(&[8, 0, 0, 0, 0, 0, vni, 0]).raw(frame).build()
    };
    let gre = |header: &[u8]| {
        let outer = eth().ipv4(CLIENT4, SINK4, GRE, &[]);
        outer.raw(header).raw(&packet(eth())[ETHERNET..]).build()
    };
    match network {
        0 => vxlan(7, &packet(eth())),
        1 => vxlan(8, &packet(eth().vlan(ETH_VLAN, 10))),
        2 => gre(&[0x20, 0, 8, 0, 0, 0, 0, 7]),
        3 => gre(&[0, 0, 8, 0]),
        _ => packet(eth()),
    }
}

/// As [`told_apart`], by what is in tunnels.
fn told_apart_in_tunnels(config: Config, sources: u64) -> u64 {
    let lab = Lab::new();
    let config = Config { tunnels: "inner", charge: "inner", ..config }
        .unit("seven", "net", &["10.0.0.0/8"])
        .selector("vni = 7")
        .unit("eight", "net", &["10.0.0.0/8"])
        .selector("vni = 8\nvlan = 10")
        .unit("ten", "net", &["10.0.0.0/8"])
        .selector("vlan = 10")
        .unit("key", "net", &["10.0.0.0/8"])
        .selector("gre_key = 7")
        .unit("keyless", "net", &["10.0.0.0/8"])
        .selector("gre_key = 0")
        .unit("lan", "net", &["10.0.0.0/8"])
        .unit("around", "net", &["192.0.2.0/24"])
        .unit("sink", "host", &["203.0.113.0"])
        .unit("all", "group", &["seven", "eight", "ten", "key", "keyless", "around"]);
    let daemon = Daemon::start(&lab.router, &config);
    let networks = 0..INNER.len();
    let frames = (0..sources as u32).flat_map(|source| networks.clone().map(move |n| tunneled(n, source)));
    let count = sources * INNER.len() as u64;
    Blast::new(frames.collect(), count).send(&lab.client, "eth0", &lab.router, "cl0");

    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.flow_packets + ledger.overflow_packets, count, "{ledger:#?}");
    assert_eq!(ledger.inner_packets + ledger.inner_overflow_packets, 4 * sources, "{ledger:#?}");
    let none = Traffic::default();
    let of = |networks: &[usize]| Traffic {
        packets: networks.len() as u64 * sources,
        bytes: networks.iter().map(|network| INNER[*network] * sources).sum(),
    };
    assert_eq!(total(&daemon, "seven"), [none, of(&[0])]);
    assert_eq!(total(&daemon, "eight"), [none, of(&[1])]);
    assert_eq!(total(&daemon, "ten"), [none, of(&[1])]);
    assert_eq!(total(&daemon, "key"), [none, of(&[2])]);
    assert_eq!(total(&daemon, "keyless"), [none, of(&[3])]);
    assert_eq!(total(&daemon, "lan"), [none, of(&[0, 1, 2, 3, 4])]);
    assert_eq!(total(&daemon, "around"), [none, none], "the packets around the others");
    assert_eq!(total(&daemon, "sink"), [of(&[0, 1, 2, 3, 4]), none], "once, by the layer inside");
    assert_eq!(total(&daemon, "all"), [none, of(&[0, 1, 2, 3])]);
    if ledger.inner_overflow_packets == 0 {
        for (unit, networks) in [("seven", &[0][..]), ("ten", &[1]), ("lan", &[0, 1, 2, 3])] {
            let select = ["--unit", unit, "--layer", "inner"];
            assert_eq!(flow_total(&daemon, &select), of(networks), "inner flows of {unit}");
        }
    }
    ledger.inner_overflow_packets
}

#[test]
fn the_same_addresses_in_other_tunnels_are_other_units() {
    if require_live() {
        assert_eq!(told_apart_in_tunnels(Config::default(), 100), 0);
    }
}

#[test]
fn a_full_table_does_not_mix_tunnels_up() {
    if require_live() {
        let full = Config { flows: 256, spill: 256, ..Config::default() };
        assert!(told_apart_in_tunnels(full, 20_000) > 0);
    }
}

#[test]
fn another_layer_charges_nothing_twice() {
    if !require_live() {
        return;
    }
    const SOURCES: u64 = 5_000;
    let lab = Lab::new();
    let by = |charge| {
        let small = Config { flows: 256, spill: 256, interval_ms: 60_000, ..Config::default() };
        Config { tunnels: "inner", charge, ..small }.unit("sink", "host", &["203.0.113.0"])
    };
    let send = || {
        let frames = (0..SOURCES as u32).map(|source| tunneled(0, source)).collect();
        Blast::new(frames, SOURCES).send(&lab.client, "eth0", &lab.router, "cl0")
    };
    // What the former tables hold is charged by the layer that they were filled for.
    const AROUND: u64 = 20 + 8 + 8 + ETHERNET as u64;
    let mut daemon = Daemon::start(&lab.router, &by("inner"));
    let mut expected = Traffic::default();
    for (charge, bytes) in [("outer", INNER[0]), ("inner", INNER[0] + AROUND), ("inner", INNER[0])] {
        send();
        daemon.kill9();
        daemon.place.configure(&by(charge));
        daemon.start_again();
        expected = Traffic { packets: expected.packets + SOURCES, bytes: expected.bytes + SOURCES * bytes };
        assert_eq!(total(&daemon, "sink"), [expected, Traffic::default()], "before {charge}");
    }
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert!(ledger.inner_overflow_packets > 2 * SOURCES, "{ledger:#?}");
}
