//! A full disk stops committing, not counting; with space again everything is there, without anyone's help.

use std::time::Duration;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::disk::SmallDisk;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::poll::{wait_for, wait_until};
use netams_tests::require_live;
use netams_tests::truth::Traffic;

/// Packets of flows `first .. first + 2000`: new flows, so that the database has to grow.
fn send(lab: &Lab, first: u16) -> u64 {
    let frame = |port| {
        Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(port, 7400).payload(36).build()
    };
    let frames = (first..first + 2_000).map(frame).collect();
    Blast::new(frames, 10_000).rate(40_000).send(&lab.client, "eth0", &lab.router, "cl0")
}

#[test]
fn counting_survives_a_full_disk() {
    if !require_live() {
        return;
    }
    let disk = SmallDisk::new(8 << 20);
    let lab = Lab::new();
    let state = Some(disk.path().join("state"));
    let config = Config { state, flows: 16384, interval_ms: 100, ..Config::default() }.unit(
        "client",
        "host",
        &["192.0.2.2"],
    );
    let mut daemon = Daemon::start(&lab.router, &config);
    let mut sent = send(&lab, 1_000);
    assert_eq!(flow_total(&daemon, &["--port", "7400"]).packets, sent);

    disk.fill();
    let error = wait_for("the store reports the full disk", Duration::from_secs(10), || {
        sent += send(&lab, 3_000);
        daemon.ledger().store_error
    });
    assert!(error.contains("no space left"), "{error}");
    sent += send(&lab, 5_000);
    assert!(daemon.flows(&[]).stale.is_some(), "answers say that they are stale");
    assert!(daemon.ngctl(&["units"]).status.success(), "questions are answered");

    // Dying with a full disk loses nothing either.
    daemon.kill9();
    sent += send(&lab, 7_000);
    disk.free();
    daemon.start_again();
    disk.fill();
    sent += send(&lab, 9_000);
    wait_until("the store reports the full disk again", Duration::from_secs(10), || {
        sent += send(&lab, 11_000);
        daemon.ledger().store_error.is_some()
    });

    disk.free();
    wait_until("the store takes batches again", Duration::from_secs(10), || {
        daemon.ledger().store_error.is_none()
    });
    let expected = Traffic { packets: sent, bytes: sent * 64 };
    assert_eq!(flow_total(&daemon, &["--port", "7400"]), expected);
    let unit = daemon.units().units.remove(0).total;
    assert_eq!(Traffic { packets: unit.out_packets, bytes: unit.out_bytes }, expected);
    assert_ledger(&daemon.ledger());
}
