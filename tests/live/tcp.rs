//! TCP through the router is counted to the packet and to the byte, whatever the devices offload.

use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{CLIENT4, CLIENT6, Lab, Offloads, SERVER4, SERVER6};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::tcp::{Transfer, transfer};
use netams_tests::truth::Traffic;
use netams_tests::{amount, require_live};

fn counts_exactly(offloads: Offloads, bytes: u64, config: Config) {
    let lab = Lab::with(offloads, 1500);
    let client = [CLIENT4.to_string(), CLIENT6.to_string()];
    let config = config.unit("client", "cluster", &[&client[0], &client[1]]);
    let daemon = Daemon::start(&lab.router, &config);
    let (mut upload, mut download) = (Traffic::default(), Traffic::default());
    for (version, reverse) in [(4, false), (4, true), (6, false), (6, true)] {
        let port = 5200 + u16::from(version) + u16::from(reverse);
        let sent = transfer(&lab, Transfer { port, bytes: amount(bytes), version, reverse });
        upload += sent.client;
        download += sent.server;
        let (client, server) = match version {
            4 => (format!("{CLIENT4}/32"), format!("{SERVER4}/32")),
            _ => (format!("{CLIENT6}/128"), format!("{SERVER6}/128")),
        };
        let port = port.to_string();
        let what = format!("IPv{version}, reverse {reverse}, offloads {offloads:?}");
        assert_eq!(
            flow_total(&daemon, &["--port", &port, "--src", &client]),
            sent.client,
            "to the server, {what}"
        );
        assert_eq!(
            flow_total(&daemon, &["--port", &port, "--src", &server]),
            sent.server,
            "to the client, {what}"
        );
    }
    let unit = daemon.units().units.remove(0).total;
    assert_eq!(Traffic { packets: unit.out_packets, bytes: unit.out_bytes }, upload, "from the unit");
    assert_eq!(Traffic { packets: unit.in_packets, bytes: unit.in_bytes }, download, "to the unit");
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.already_counted, upload.packets + download.packets, "forwarded packets meet two hooks");
}

#[test]
fn super_packets_are_worth_their_wire_packets() {
    if require_live() {
        counts_exactly(Offloads::On, 300_000_000, Config::default());
    }
}

#[test]
fn the_same_without_offloads() {
    if require_live() {
        counts_exactly(Offloads::Off, 50_000_000, Config::default());
    }
}

#[test]
fn the_same_by_queues_that_are_told_segment_sizes() {
    if require_live() {
        counts_exactly(Offloads::On, 300_000_000, Config::nfqueue("auto"));
        counts_exactly(Offloads::Off, 50_000_000, Config::nfqueue("auto"));
    }
}

#[test]
fn the_same_by_queues_of_cut_packets() {
    if require_live() {
        counts_exactly(Offloads::On, 50_000_000, Config::nfqueue("exact"));
        counts_exactly(Offloads::Off, 50_000_000, Config::nfqueue("exact"));
    }
}
