//! Nothing is lost by dying, and nothing is counted twice by coming back.

use std::thread;
use std::time::Duration;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::disk::SmallDisk;
use netams_tests::frame::{Frame, UDP};
use netams_tests::hooks::{self, Direction};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SINK4};
use netams_tests::ledger::{assert_identity, assert_ledger, flow_total};
use netams_tests::load::{Load, PORT, frames};
use netams_tests::poll::wait_until;
use netams_tests::require_live;
use netams_tests::truth::Traffic;

/// Packets a second.
const RATE: u64 = 40_000;
const BYTES: u64 = 64;

/// The hooks the daemon says it has are the only programs there.
fn one_program_per_hook(lab: &Lab, daemon: &Daemon) {
    let hooks = daemon.node().hooks;
    assert_eq!(hooks.len(), 4, "two interfaces, two directions: {hooks:#?}");
    for hook in hooks {
        let direction = if hook.direction == "ingress" { Direction::Ingress } else { Direction::Egress };
        let programs = hooks::programs(&lab.router, &hook.interface, direction);
        assert_eq!(programs, [hook.program_id], "{} {direction}", hook.interface);
    }
}

fn killed_twenty_times(attach: &'static str) {
    let lab = Lab::new();
    let config =
        Config { attach, interval_ms: 50, ..Config::default() }.unit("client", "host", &["192.0.2.2"]);
    let mut daemon = Daemon::start(&lab.router, &config);
    let load = Load::start(&lab, RATE);
    for round in 0..20 {
        // Another moment of the 50 ms cycle each time: while it waits, drains, commits or zeroes.
        thread::sleep(Duration::from_millis(60 + 7 * round));
        daemon.kill9();
        daemon.start_again();
        one_program_per_hook(&lab, &daemon);
    }
    let sent = load.end(&lab);
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]), sent, "{attach}");
    let unit = daemon.units().units.remove(0).total;
    assert_eq!(Traffic { packets: unit.out_packets, bytes: unit.out_bytes }, sent, "the unit, {attach}");
    assert_ledger(&daemon.ledger());
}

#[test]
fn kill9_under_load_loses_and_doubles_nothing_with_tcx() {
    if require_live() {
        match hooks::ways().contains(&"tcx") {
            true => killed_twenty_times("tcx"),
            false => println!("skipped: this kernel has no tcx"),
        }
    }
}

#[test]
fn kill9_under_load_loses_and_doubles_nothing_with_clsact() {
    if require_live() {
        killed_twenty_times("clsact");
    }
}

#[test]
fn on_exit_stay_counts_while_the_daemon_is_away() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &Config { on_exit: "stay", ..Config::default() });
    let load = Load::start(&lab, RATE);
    for _ in 0..3 {
        daemon.restart();
    }
    assert_eq!(daemon.terminate(), 0);
    let sent = load.end(&lab);
    daemon.start_again();
    one_program_per_hook(&lab, &daemon);
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]), sent);
    assert_ledger(&daemon.ledger());
}

#[test]
fn on_exit_detach_commits_everything_and_leaves_no_program() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    for attach in hooks::ways() {
        // An interval longer than the test: what is counted is committed because the daemon ends.
        let config = Config { attach, interval_ms: 60_000, ..Config::default() };
        let mut daemon = Daemon::start(&lab.router, &config);
        let sent = Blast::new(frames(), 10_000).send(&lab.client, "eth0", &lab.router, "cl0");
        assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
        for device in ["cl0", "sv0"] {
            for direction in [Direction::Ingress, Direction::Egress] {
                let left = hooks::programs(&lab.router, device, direction);
                assert!(left.is_empty(), "{left:?} left, {attach} at {device} {direction}");
            }
        }
        daemon.start_again();
        let counted = flow_total(&daemon, &["--port", &PORT.to_string()]);
        assert_eq!(counted, Traffic { packets: sent, bytes: sent * BYTES }, "{attach}");
        assert_ledger(&daemon.ledger());

        // What passes while no daemon is there is not counted, and on record: in at cl0, out at sv0.
        assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
        let unseen = Blast::new(frames(), 1_000).send(&lab.client, "eth0", &lab.router, "cl0");
        daemon.start_again();
        assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]).packets, sent);
        let ledger = daemon.ledger();
        assert_identity(&ledger);
        assert_eq!(ledger.missed, 2 * unseen, "{:#?}", daemon.events());
    }
}

#[test]
fn another_table_size_collects_what_the_old_tables_hold() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let sized = |flows| Config { flows, on_exit: "stay", interval_ms: 100, ..Config::default() };
    let mut daemon = Daemon::start(&lab.router, &sized(4096));
    let load = Load::start(&lab, RATE);
    for flows in [1024, 8192, 1024, 4096, 256, 4096] {
        thread::sleep(Duration::from_millis(150));
        daemon.place.configure(&sized(flows));
        daemon.kill9();
        daemon.start_again();
        one_program_per_hook(&lab, &daemon);
    }
    let sent = load.end(&lab);
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]), sent);
    assert_ledger(&daemon.ledger());
}

#[test]
fn another_state_folder_takes_the_hooks_over_and_says_what_it_does_not_have() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let config = Config { interval_ms: 60_000, ..Config::default() };
    let mut daemon = Daemon::start(&lab.router, &config);
    let blast = || Blast::new(frames(), 5_000).send(&lab.client, "eth0", &lab.router, "cl0");
    blast();
    daemon.kill9();
    std::fs::remove_dir_all(daemon.place.path().join("state")).expect("remove the state folder");
    daemon.start_again();
    one_program_per_hook(&lab, &daemon);
    let sent = blast();
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]).packets, sent);
    let events = daemon.events();
    let foreign = events.iter().find(|e| e.kind == "foreign_tables");
    assert!(foreign.is_some_and(|e| e.missed == 5_000), "{events:#?}");
    assert_identity(&daemon.ledger());
}

#[test]
fn what_was_kept_back_by_a_full_disk_is_committed_at_the_end_with_what_came_after() {
    if !require_live() {
        return;
    }
    let disk = SmallDisk::new(8 << 20);
    let lab = Lab::new();
    let state = Some(disk.path().join("state"));
    let config = Config { state, flows: 16384, interval_ms: 60_000, ..Config::default() };
    let mut daemon = Daemon::start(&lab.router, &config);
    let send = |first: u16| {
        let frame = |port| {
            Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(port, PORT).payload(36).build()
        };
        let frames = (first..first + 2_000).map(frame).collect();
        Blast::new(frames, 10_000).rate(40_000).send(&lab.client, "eth0", &lab.router, "cl0")
    };
    disk.fill();
    let (mut sent, mut first) = (0, 1_000);
    wait_until("the store reports the full disk", Duration::from_secs(10), || {
        sent += send(first);
        first += 2_000;
        daemon.ledger().store_error.is_some()
    });
    sent += send(first);
    disk.free();
    assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
    daemon.start_again();
    assert_eq!(daemon.ledger().missed, 0, "{:#?}", daemon.events());

    // Once more, with a disk that is full until the daemon is gone: what it had counted is in the tables, and no gap.
    disk.fill();
    wait_until("the store reports the full disk", Duration::from_secs(10), || {
        first += 2_000;
        sent += send(first);
        daemon.ledger().store_error.is_some()
    });
    assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
    disk.free();
    daemon.start_again();
    assert_eq!(daemon.ledger().missed, 0, "{:#?}", daemon.events());
    assert_eq!(
        flow_total(&daemon, &["--port", &PORT.to_string()]),
        Traffic { packets: sent, bytes: sent * BYTES }
    );
    assert_identity(&daemon.ledger());
}

#[test]
fn a_hook_that_was_removed_while_the_daemon_was_dead_is_on_record() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &Config { attach: "clsact", ..Config::default() });
    let blast = |count| Blast::new(frames(), count).send(&lab.client, "eth0", &lab.router, "cl0");
    let sent = blast(1_000);
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]).packets, sent);
    daemon.kill9();
    lab.router.run("tc qdisc del dev cl0 clsact");
    lab.router.run("tc qdisc del dev sv0 clsact");
    let unseen = blast(1_000);
    daemon.start_again();
    one_program_per_hook(&lab, &daemon);
    assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]).packets, sent);
    let ledger = daemon.ledger();
    assert_identity(&ledger);
    assert_eq!(ledger.missed, 2 * unseen, "in at cl0 and out at sv0: {:#?}", daemon.events());
}

#[test]
fn source_off_takes_over_nothing_and_leaves_no_program() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    for attach in hooks::ways() {
        let config = Config { attach, ..Config::default() };
        let mut daemon = Daemon::start(&lab.router, &config);
        let sent = Blast::new(frames(), 1_000).send(&lab.client, "eth0", &lab.router, "cl0");
        daemon.kill9();
        daemon.place.configure(&Config { source: "off", ..config });
        daemon.start_again();
        assert!(daemon.node().hooks.is_empty());
        assert_eq!(daemon.info().mode, 0);
        for device in ["cl0", "sv0"] {
            for direction in [Direction::Ingress, Direction::Egress] {
                let left = hooks::programs(&lab.router, device, direction);
                assert!(left.is_empty(), "{left:?} left, {attach} at {device} {direction}");
            }
        }
        assert_eq!(
            flow_total(&daemon, &["--port", &PORT.to_string()]).packets,
            sent,
            "what was counted before"
        );
    }
}
