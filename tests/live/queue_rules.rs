//! The rules in front of the queues: removed by others, left by a daemon that dies or goes, cleaned up.

use std::fs;
use std::time::{Duration, Instant};

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::hooks::{self, Direction};
use netams_tests::lab::Lab;
use netams_tests::ledger::{assert_explained, closed_account, flow_total};
use netams_tests::load::{Load, PORT, frames};
use netams_tests::ns::{Namespace, assert_success};
use netams_tests::poll::wait_until;
use netams_tests::queue;
use netams_tests::require_live;
use netams_tests::truth::device;

/// Packets a second.
const RATE: u64 = 20_000;
/// How long the daemon may take to notice something.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long rules may be away: the daemon looks every 2 seconds.
const BACK: Duration = Duration::from_secs(5);

/// Tools, and what somebody does to rules that were made with them.
const FLUSHES: [(&str, &str); 4] = [
    ("iptables", "nft flush ruleset"),
    ("iptables", "iptables -t mangle -F"),
    ("nft", "nft flush ruleset"),
    ("nft", "nft flush chain inet netams forward"),
];

/// Runs `test` in a lab of its own with each tool that can queue here.
fn with_each_backend(test: impl Fn(&Lab, &'static str)) {
    let backends = queue::backends(&Lab::new().router);
    backends.iter().for_each(|backend| test(&Lab::new(), backend));
}

fn with_each_flush(test: impl Fn(&Lab, &'static str, &'static str)) {
    with_each_backend(|_, backend| {
        let flushes = FLUSHES.iter().filter(|(tool, _)| *tool == backend);
        flushes.for_each(|(_, flush)| test(&Lab::new(), backend, flush));
    });
}

/// Removes all rules that were made with a tool.
fn flush_all(lab: &Lab, backend: &str) {
    match backend {
        "nft" => drop(lab.router.run("nft flush ruleset")),
        _ => ["iptables", "ip6tables"].iter().for_each(|tool| {
            lab.router.run(&format!("{tool} -t mangle -F"));
        }),
    }
}

fn send(lab: &Lab, count: u64) -> u64 {
    Blast::new(frames(), count).rate(RATE).send(&lab.client, "eth0", &lab.router, "cl0")
}

/// Packets that have left the router, or would have but for the wire.
fn left(lab: &Lab) -> u64 {
    let out = device(&lab.router, "sv0");
    out.tx_packets + out.tx_dropped
}

fn flows(daemon: &Daemon) -> u64 {
    flow_total(daemon, &["--port", &PORT.to_string()]).packets
}

fn replaced(daemon: &Daemon) -> Option<u64> {
    let events = daemon.events();
    let mut replaced = events.iter().filter(|event| event.kind == "rules_replaced").map(|event| event.missed);
    let missed = replaced.next();
    assert_eq!(replaced.next(), None, "once: {events:#?}");
    missed
}

/// Each rule as it is listed, without its counters.
fn rules(daemon: &Daemon) -> Vec<(String, String)> {
    daemon.rules().rules.into_iter().map(|rule| (rule.chain, rule.rule)).collect()
}

/// All rules of a namespace as their tools list them, without counters and remarks.
fn listed(namespace: &Namespace) -> String {
    let saved = ["iptables-save", "ip6tables-save"].map(|tool| namespace.run(tool));
    let lines = saved.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    // A chain's line ends in the counters of its policy.
    let lines: String = lines.map(|line| format!("{}\n", line.split(" [").next().unwrap_or(line))).collect();
    lines + &namespace.run("nft -s list ruleset")
}

#[test]
fn rules_that_are_removed_under_load_are_put_back() {
    if !require_live() {
        return;
    }
    with_each_flush(|lab, backend, flush| {
        let daemon = Daemon::start(&lab.router, &Config::nfqueue("auto").backend(backend));
        let before = rules(&daemon);
        let queued = || daemon.ledger().queued;
        let load = Load::start(lab, RATE);
        wait_until("packets are counted", PATIENCE, || queued() > 0);
        lab.router.run(flush);
        let removed = Instant::now();
        wait_until("the rules are put back", BACK, || replaced(&daemon).is_some());
        let noticed = removed.elapsed();
        let then = queued();
        wait_until("packets are counted again", PATIENCE, || queued() > then);
        let sent = load.end(lab).packets;

        let terms = closed_account(&daemon);
        assert_explained(&daemon.ledger());
        assert_eq!(flows(&daemon), terms.queued, "{terms:#?}");
        assert!(terms.missed > 0 && terms.reference < sent, "sent {sent}, {terms:#?}");
        assert_eq!(rules(&daemon), before);
        println!(
            "{flush}: back after {noticed:?}, sent {sent}, reference {}, uncounted {}, missed {}",
            terms.reference,
            sent - terms.reference,
            terms.missed
        );
    });
}

#[test]
fn what_passes_while_the_rules_are_away_is_on_record() {
    if !require_live() {
        return;
    }
    with_each_flush(|lab, backend, flush| {
        let mut daemon = Daemon::start(&lab.router, &Config::nfqueue("auto").backend(backend));
        let mut sent = send(lab, 10_000);
        let terms = closed_account(&daemon);
        assert_eq!((terms.reference, terms.queued), (sent, sent), "{terms:#?}");
        // Stopped, so that it does not look before all have passed.
        daemon.stop();
        lab.router.run(flush);
        let unseen = send(lab, 7_000);
        daemon.go_on();
        wait_until("the rules are put back", BACK, || replaced(&daemon).is_some());
        assert_eq!(replaced(&daemon), Some(2 * unseen), "in at cl0, out at sv0: {:#?}", daemon.events());
        sent += send(lab, 5_000);
        let terms = closed_account(&daemon);
        assert_eq!((terms.reference, terms.queued, terms.missed), (sent, sent, 2 * unseen), "{terms:#?}");
        assert_eq!(flows(&daemon), sent);
        assert_explained(&daemon.ledger());
    });
}

#[test]
fn rules_of_others_stay_as_they_are() {
    if !require_live() {
        return;
    }
    with_each_backend(|lab, backend| {
        for tool in ["iptables", "ip6tables"] {
            for chain in ["FORWARD", "INPUT", "OUTPUT"] {
                let others = format!("-t mangle -A {chain} -p tcp --dport 22 -j MARK --set-xmark 0x1/0xff");
                lab.router.run(&format!("{tool} {others}"));
            }
            lab.router
                .run(&format!("{tool} -A FORWARD -p udp --dport 9 -m comment --comment NETAMS -j DROP"));
        }
        lab.router.run("nft add table inet others");
        lab.router.run("nft add chain inet others forward { type filter hook forward priority 10 ; }");
        lab.router.run("nft add rule inet others forward udp dport 9 counter");
        let before = listed(&lab.router);
        let mut daemon = Daemon::start(&lab.router, &Config::nfqueue("auto").backend(backend));
        assert_ne!(listed(&lab.router), before, "ours are there");
        assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
        assert_eq!(listed(&lab.router), before);
        daemon.start_again();
        daemon.kill9();
        daemon.start_again();
        assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
        assert_eq!(listed(&lab.router), before);
    });
}

/// The daemon goes in some way and comes back; what comes meanwhile passes or is dropped, and is on record.
fn comes_back(lab: &Lab, backend: &str, fail: &str, on_exit: &'static str, go: impl Fn(&mut Daemon)) {
    let nfqueue = format!("gso = \"auto\"\nfail = {fail:?}");
    let config = Config { nfqueue, on_exit, ..Config::nfqueue("auto") }.backend(backend);
    let mut daemon = Daemon::start(&lab.router, &config);
    let first = send(lab, 10_000);
    assert_eq!(closed_account(&daemon).queued, first);
    let before = rules(&daemon);
    let listing = listed(&lab.router);
    go(&mut daemon);
    assert_eq!(listed(&lab.router), listing, "the rules stay");
    let gone = left(lab);
    let unseen = send(lab, 8_000);
    assert_eq!(left(lab) - gone, if fail == "open" { unseen } else { 0 }, "fail = {fail}");
    daemon.start_again();
    assert_eq!(rules(&daemon), before, "adopted");
    assert_eq!(listed(&lab.router), listing, "and not doubled");
    let last = send(lab, 6_000);
    let terms = closed_account(&daemon);
    assert_eq!((terms.queued, terms.bypassed), (first + last, unseen), "{terms:#?}");
    assert_eq!(terms.reference, first + unseen + last, "{terms:#?}");
    assert_eq!(terms.missed, 0, "{terms:#?}");
    let matched: u64 = daemon.rules().rules.iter().filter(|rule| rule.queue).map(|rule| rule.packets).sum();
    assert_eq!(matched, terms.reference, "the rules' own counters go on");
    assert_eq!(flows(&daemon), terms.queued);
    assert_explained(&daemon.ledger());
}

#[test]
fn a_killed_daemon_leaves_rules_that_the_next_one_adopts() {
    if !require_live() {
        return;
    }
    for fail in ["open", "closed"] {
        with_each_backend(|lab, backend| comes_back(lab, backend, fail, "detach", |daemon| daemon.kill9()));
    }
}

#[test]
fn rules_of_another_plan_are_asked_before_they_go() {
    if !require_live() {
        return;
    }
    for queues in [1, 2] {
        with_each_backend(|lab, backend| another_plan(lab, backend, queues));
    }
}

fn another_plan(lab: &Lab, backend: &str, queues: u32) {
    let config = |queues| {
        Config { nfqueue: format!("gso = \"auto\"\nqueues = {queues}"), ..Config::nfqueue("auto") }
            .backend(backend)
    };
    let mut daemon = Daemon::start(&lab.router, &config(queues));
    let first = send(lab, 5_000);
    assert_eq!(closed_account(&daemon).queued, first);
    daemon.kill9();
    let unseen = send(lab, 3_000);
    daemon.place.configure(&config(3 - queues));
    daemon.start_again();
    let last = send(lab, 2_000);
    let terms = closed_account(&daemon);
    assert_eq!((terms.queued, terms.bypassed), (first + last, unseen), "{terms:#?}");
    assert_eq!((terms.reference, terms.missed), (first + unseen + last, 0), "{terms:#?}");
    daemon.kill9();
    let unseen = unseen + send(lab, 1_000);
    daemon.place.configure(&Config::default());
    daemon.start_again();
    let terms = closed_account(&daemon);
    assert_eq!((terms.reference, terms.bypassed), (first + last + unseen, unseen), "{terms:#?}");
    assert_eq!(daemon.ledger().missed, 0, "{:#?}", daemon.events());
}

#[test]
fn what_passes_while_no_daemon_is_there_is_on_record() {
    if !require_live() {
        return;
    }
    for gso in ["auto", "exact"] {
        with_each_backend(|lab, backend| no_daemon(lab, &Config::nfqueue(gso).backend(backend)));
    }
}

fn no_daemon(lab: &Lab, config: &Config) {
    let mut daemon = Daemon::start(&lab.router, config);
    let backend = daemon.rules().backend;
    let mut counted = send(lab, 2_000);
    assert_eq!(closed_account(&daemon).queued, counted);
    assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
    let mut unseen = send(lab, 1_000);
    daemon.start_again();
    assert_eq!(daemon.ledger().missed, 2 * unseen, "in at cl0, out at sv0: {:#?}", daemon.events());

    counted += send(lab, 500);
    assert_eq!(closed_account(&daemon).queued, counted);
    daemon.kill9();
    flush_all(lab, &backend);
    unseen += send(lab, 700);
    daemon.start_again();
    assert_eq!(daemon.ledger().missed, 2 * unseen, "{:#?}", daemon.events());

    daemon.place.configure(&Config::default());
    daemon.restart();
    assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
    unseen += send(lab, 300);
    daemon.place.configure(config);
    daemon.start_again();
    assert_eq!(daemon.ledger().missed, 2 * unseen, "{:#?}", daemon.events());
    assert_eq!(flows(&daemon), counted);
}

#[test]
fn a_rule_in_the_gate_is_removed_and_the_account_goes_on() {
    if !require_live() {
        return;
    }
    with_each_backend(|lab, backend| {
        let daemon = Daemon::start(&lab.router, &Config::nfqueue("auto").backend(backend));
        let first = send(lab, 5_000);
        assert_eq!(closed_account(&daemon).reference, first);
        lab.router.run(match backend {
            "nft" => "nft add rule inet netams gate tcp dport 9 accept",
            _ => "iptables -t mangle -A NETAMS-GATE -p tcp --dport 9 -j ACCEPT",
        });
        wait_until("the gate is put back", BACK, || replaced(&daemon).is_some());
        assert_eq!(replaced(&daemon), Some(0), "{:#?}", daemon.events());
        let last = send(lab, 2_000);
        let terms = closed_account(&daemon);
        assert_eq!((terms.reference, terms.queued), (first + last, first + last), "{terms:#?}");
        assert_eq!((terms.bypassed, terms.missed), (0, 0), "{terms:#?}");
    });
}

#[test]
fn so_does_one_that_stays() {
    if !require_live() {
        return;
    }
    for fail in ["open", "closed"] {
        with_each_backend(|lab, backend| {
            comes_back(lab, backend, fail, "stay", |daemon| {
                assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
            });
        });
    }
}

#[test]
fn every_packet_is_in_the_account_of_a_daemon_that_is_killed_again_and_again() {
    if !require_live() {
        return;
    }
    with_each_backend(|lab, backend| {
        let config = Config { interval_ms: 50, on_exit: "stay", ..Config::nfqueue("auto") }.backend(backend);
        let mut daemon = Daemon::start(&lab.router, &config);
        let load = Load::start(lab, RATE);
        for round in 0..10 {
            let then = daemon.ledger().queued;
            wait_until("packets are counted", PATIENCE, || daemon.ledger().queued > then);
            if round % 2 == 0 {
                daemon.kill9();
            } else {
                assert_eq!(daemon.terminate(), 0, "{}", daemon.place.said());
            }
            daemon.start_again();
        }
        let sent = load.end(lab).packets;
        let terms = closed_account(&daemon);
        assert_eq!(terms.reference, sent, "{terms:#?}");
        assert_eq!((flows(&daemon), terms.missed), (terms.queued, 0), "{terms:#?}");
        assert_explained(&daemon.ledger());
        println!(
            "sent {sent}, queued {}, bypassed {}, lost {}",
            terms.queued, terms.bypassed, terms.queue_lost
        );
    });
}

#[test]
fn cleanup_removes_what_a_killed_daemon_left() {
    if !require_live() {
        return;
    }
    with_each_backend(|lab, backend| {
        let mut daemon = Daemon::start(&lab.router, &Config::nfqueue("auto").backend(backend));
        let sent = send(lab, 1_000);
        assert_eq!(flows(&daemon), sent);
        daemon.kill9();
        assert!(listed(&lab.router).to_lowercase().contains("netams"), "left");
        let cleaned = daemon.place.command().arg("--cleanup").output().expect("run netamsd");
        assert_success(&cleaned, "netamsd --cleanup");
        let listing = listed(&lab.router);
        assert!(!listing.to_lowercase().contains("netams"), "{listing}");
        assert_eq!(queue::list(&lab.router), []);
        let tables = fs::read_dir(daemon.place.path().join("tables")).expect("the folder of the tables");
        assert_eq!(tables.count(), 0, "tables are left");
        for device in ["cl0", "sv0"] {
            for direction in [Direction::Ingress, Direction::Egress] {
                assert_eq!(hooks::programs(&lab.router, device, direction), [0; 0], "{device} {direction}");
            }
        }
        daemon.start_again();
        let more = send(lab, 1_000);
        let terms = closed_account(&daemon);
        assert_eq!((terms.queued, terms.reference), (sent + more, sent + more), "{terms:#?}");
    });
}
