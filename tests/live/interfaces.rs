//! Interfaces come, go and are renamed; each packet is counted once, where it enters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, ICMP, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, ROUTER4, SINK4};
use netams_tests::ledger::{assert_identity, assert_ledger, flow_total};
use netams_tests::poll::wait_until;
use netams_tests::require_live;
use netams_tests::truth::{Traffic, device};

fn frame(port: u16) -> Vec<u8> {
    Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(1, port).payload(36).build()
}

/// Both hooks of an interface are shown as attached.
fn attached(daemon: &Daemon, interface: &str) -> bool {
    daemon.node().hooks.iter().filter(|hook| hook.interface == interface).count() == 2
}

#[test]
fn a_forwarded_packet_is_counted_once_whichever_interfaces_are_attached() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    for (interfaces, met_twice) in [(vec!["cl0"], 0), (vec!["sv0"], 0), (vec!["cl0", "sv0"], 5_000)] {
        let daemon =
            Daemon::start(&lab.router, &Config { interfaces: interfaces.clone(), ..Config::default() });
        Blast::new(vec![frame(7300)], 5_000).send(&lab.client, "eth0", &lab.router, "cl0");
        assert_eq!(flow_total(&daemon, &["--port", "7300"]).packets, 5_000, "{interfaces:?}");
        let ledger = daemon.ledger();
        assert_eq!(ledger.already_counted, met_twice, "{interfaces:?}");
        assert_ledger(&ledger);
    }
}

#[test]
fn local_traffic_is_counted_once_in_each_direction() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let config = Config::default().unit("router", "host", &["192.0.2.1"]);
    let daemon = Daemon::start(&lab.router, &config);
    // An echo request: type 8, code 0, checksum, then zeros.
    let request = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, ROUTER4, ICMP, &[]);
    let request = request.raw(&[8, 0, 0xf7, 0xff]).raw(&[0; 60]).build();
    let before = device(&lab.client, "eth0").rx_packets;
    Blast::new(vec![request], 100).send(&lab.client, "eth0", &lab.router, "cl0");
    assert_eq!(device(&lab.client, "eth0").rx_packets - before, 100, "the router answers");
    let hundred = Traffic { packets: 100, bytes: 8_400 };
    let (client, router) = (format!("{CLIENT4}/32"), format!("{ROUTER4}/32"));
    assert_eq!(flow_total(&daemon, &["--proto", "1", "--src", &client]), hundred, "requests, at ingress");
    assert_eq!(flow_total(&daemon, &["--proto", "1", "--src", &router]), hundred, "replies, at egress");
    let unit = daemon.units().units.remove(0).total;
    assert_eq!([unit.in_packets, unit.in_bytes, unit.out_packets, unit.out_bytes], [100, 8_400, 100, 8_400]);
    let requests = daemon.flows(&["--src", &client]).flows;
    assert_eq!((requests[0].sport, requests[0].dport), (0, 8 << 8), "ICMP type 8, code 0");
    assert_ledger(&daemon.ledger());
}

#[test]
fn interfaces_come_and_go_fifty_times_during_traffic() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let config = Config { interfaces: vec!["cl0", "sv0", "dyn*"], ..Config::default() };
    let daemon = Daemon::start(&lab.router, &config);
    let stop = Arc::new(AtomicBool::new(false));
    let background = Blast::new(vec![frame(7301)], u64::MAX).rate(20_000).until(&stop);
    let background = lab.client.spawn(move || background.transmit("eth0").expect("send frames"));
    let mut sent = 0;
    for round in 0..50 {
        let (first, second, peer) = (format!("dyn{round}a"), format!("dyn{round}b"), format!("peer{round}"));
        lab.add_wire(&first, &peer);
        wait_until("the new interface is metered", Duration::from_secs(3), || attached(&daemon, &first));
        let send =
            |device: &str| Blast::new(vec![frame(7302)], 100).send(&lab.client, &peer, &lab.router, device);
        sent += send(&first);
        lab.router.run(&format!("ip link set {first} name {second}"));
        // Between the rename and its notice nothing changes for packets.
        sent += send(&second);
        wait_until("the new name is known", Duration::from_secs(3), || attached(&daemon, &second));
        assert!(!attached(&daemon, &first), "the old name is still shown");
        sent += send(&second);
        lab.router.run(&format!("ip link del {second}"));
    }
    wait_until("deleted interfaces are forgotten", Duration::from_secs(3), || daemon.node().hooks.len() == 4);
    stop.store(true, Ordering::Relaxed);
    let through = background.join().expect("the sender");
    assert_eq!(sent, 50 * 300);
    assert_eq!(flow_total(&daemon, &["--port", "7302"]), Traffic { packets: sent, bytes: sent * 64 });
    assert_eq!(flow_total(&daemon, &["--port", "7301"]), Traffic { packets: through, bytes: through * 64 });
    // The kernel's own packets may leave a new interface before it is metered; each of them is on record.
    let ledger = daemon.ledger();
    assert_identity(&ledger);
    assert_eq!(ledger.missed, daemon.events().iter().map(|event| event.missed).sum::<u64>());
}

#[test]
fn an_interface_that_is_configured_and_absent_is_metered_when_it_appears() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &Config { interfaces: vec!["later0"], ..Config::default() });
    let warned = daemon.place.said().lines().filter(|line| line.contains("later0")).count();
    assert_eq!(warned, 1, "one warning:\n{}", daemon.place.said());
    lab.add_wire("later0", "peer0");
    wait_until("the interface is metered", Duration::from_secs(3), || attached(&daemon, "later0"));
    let sent = Blast::new(vec![frame(7303)], 1_000).send(&lab.client, "peer0", &lab.router, "later0");
    assert_eq!(flow_total(&daemon, &["--port", "7303"]).packets, sent);
    assert_identity(&daemon.ledger());
}
