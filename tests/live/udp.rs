//! UDP is counted to the packet and to the byte: small, fragmented, and segmented by the device.

use std::net::{IpAddr, SocketAddr};

use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{Lab, Offloads, SINK4, SINK6};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::truth::qdisc;
use netams_tests::udp::Datagrams;
use netams_tests::{amount, require_live};

fn counts_exactly(offloads: Offloads, config: &Config) {
    let lab = Lab::with(offloads, 1500);
    let daemon = Daemon::start(&lab.router, config);
    for (family, sink) in [IpAddr::from(SINK4), IpAddr::from(SINK6)].into_iter().enumerate() {
        for (kind, (size, count, segment)) in
            [(64, 100_000, None), (8192, 5_000, None), (60_000, 1_000, Some(1400))].into_iter().enumerate()
        {
            let port = 9000 + 10 * family as u16 + kind as u16;
            let count = amount(count);
            let datagrams = Datagrams { to: SocketAddr::new(sink, port), size, count, segment };
            let before = qdisc(&lab.client);
            datagrams.send(&lab.client);
            let sent = qdisc(&lab.client) - before;
            assert_eq!(sent, datagrams.on_wire(1500), "two truths: {datagrams:?}");
            let counted = flow_total(&daemon, &["--port", &port.to_string()]);
            assert_eq!(counted, sent, "{}, {offloads:?}, {datagrams:?}", config.nfqueue);
        }
    }
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.fragments, 0, "every first fragment was seen");
}

#[test]
fn datagrams_fragments_and_segments_are_exact() {
    if require_live() {
        counts_exactly(Offloads::On, &Config::default());
    }
}

#[test]
fn the_same_without_offloads() {
    if require_live() {
        counts_exactly(Offloads::Off, &Config::default());
    }
}

#[test]
fn the_same_by_queues_that_are_told_segment_sizes() {
    if require_live() {
        counts_exactly(Offloads::On, &Config::nfqueue("auto"));
        counts_exactly(Offloads::Off, &Config::nfqueue("auto"));
    }
}

#[test]
fn the_same_by_queues_of_cut_packets() {
    if require_live() {
        counts_exactly(Offloads::On, &Config::nfqueue("exact"));
        counts_exactly(Offloads::Off, &Config::nfqueue("exact"));
    }
}
