//! Other people's programs go on working beside ours, and ours comes back when it is taken away.

use std::time::Duration;

use netams_proto::Hook;
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::foreign::{Foreign, Place};
use netams_tests::frame::{Frame, UDP};
use netams_tests::hooks::{self, Direction};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{assert_identity, assert_ledger, flow_total};
use netams_tests::poll::wait_until;
use netams_tests::require_live;

const PORT: &str = "7200";

fn send(lab: &Lab, count: u64) -> u64 {
    let frame =
        Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(1, 7200).payload(36).build();
    Blast::new(vec![frame], count).send(&lab.client, "eth0", &lab.router, "cl0")
}

fn ingress(daemon: &Daemon) -> Hook {
    let mut hooks = daemon.node().hooks.into_iter();
    hooks
        .find(|hook| hook.interface == "cl0" && hook.direction == "ingress")
        .expect("a hook at the ingress of cl0")
}

fn beside_foreign_programs(attach: &'static str) {
    let lab = Lab::new();
    let early = [
        Foreign::clsact(&lab.router, "cl0", Direction::Ingress, 10),
        Foreign::tcx(&lab.router, "cl0", Direction::Ingress, Place::First),
    ];
    let mut daemon = Daemon::start(&lab.router, &Config { attach, ..Config::default() });
    let late = [
        Foreign::clsact(&lab.router, "cl0", Direction::Ingress, 20),
        Foreign::tcx(&lab.router, "cl0", Direction::Ingress, Place::First),
        Foreign::tcx(&lab.router, "cl0", Direction::Ingress, Place::Last),
    ];
    send(&lab, 10_000);
    assert_eq!(early.each_ref().map(Foreign::passed), [10_000; 2], "attached before ours, {attach}");
    assert_eq!(late.each_ref().map(Foreign::passed), [10_000; 3], "attached after ours, {attach}");
    assert_eq!(flow_total(&daemon, &["--port", PORT]).packets, 10_000, "ours, {attach}");
    assert_ledger(&daemon.ledger());
    assert!(hooks::programs(&lab.router, "cl0", Direction::Ingress).contains(&ingress(&daemon).program_id));

    assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
    let mut left = hooks::programs(&lab.router, "cl0", Direction::Ingress);
    left.sort_unstable();
    let mut foreign: Vec<u32> = early.iter().chain(&late).map(Foreign::program).collect();
    foreign.sort_unstable();
    assert_eq!(left, foreign, "after ours is gone, {attach}");
    send(&lab, 10_000);
    assert_eq!(early.each_ref().map(Foreign::passed), [20_000; 2], "after ours is gone, {attach}");
    assert_eq!(late.each_ref().map(Foreign::passed), [20_000; 3], "after ours is gone, {attach}");
}

#[test]
fn foreign_programs_work_before_and_after_a_tcx_one() {
    if require_live() {
        beside_foreign_programs("tcx");
    }
}

#[test]
fn foreign_programs_work_before_and_after_a_clsact_one() {
    if require_live() {
        beside_foreign_programs("clsact");
    }
}

/// Ours is taken away with `remove` while packets flow: it is back within 3 seconds, an event tells, and no packet that
/// was not counted is missing from the bound on what was missed.
fn comes_back(attach: &'static str, remove: impl Fn(&Lab, &Hook)) {
    let lab = Lab::new();
    // One interface: a packet that is not counted at its ingress is counted nowhere.
    let daemon = Daemon::start(&lab.router, &Config { attach, interfaces: vec!["cl0"], ..Config::default() });
    let mut sent = send(&lab, 1_000);
    assert_eq!(flow_total(&daemon, &["--port", PORT]).packets, sent);
    let before = ingress(&daemon);
    remove(&lab, &before);
    let programs = || hooks::programs(&lab.router, "cl0", Direction::Ingress);
    sent += send(&lab, 1_000);
    wait_until("our program is attached again", Duration::from_secs(3), || programs().len() == 1);
    wait_until("the event is recorded", Duration::from_secs(3), || {
        daemon.events().iter().any(|event| event.kind == "hook_replaced" && event.detail.contains("cl0"))
    });
    assert_eq!(programs(), [ingress(&daemon).program_id]);

    let gap_closed = flow_total(&daemon, &["--port", PORT]).packets;
    sent += send(&lab, 1_000);
    let counted = flow_total(&daemon, &["--port", PORT]).packets;
    assert_eq!(counted - gap_closed, 1_000, "everything is counted again");
    let ledger = daemon.ledger();
    assert_identity(&ledger);
    assert!(counted + ledger.missed >= sent, "{counted} counted of {sent}: {ledger:#?}");
}

#[test]
fn a_detached_tcx_link_is_noticed_and_attached_again() {
    if require_live() {
        comes_back("tcx", |_, hook| hooks::detach_tcx(hook.program_id));
    }
}

#[test]
fn a_deleted_clsact_qdisc_is_noticed_and_made_again() {
    if require_live() {
        comes_back("clsact", |lab, _| {
            lab.router.run("tc qdisc del dev cl0 clsact");
        });
    }
}
