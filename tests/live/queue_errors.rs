//! A source that cannot be had is refused in a sentence, and the one that counts goes on as if nothing had been asked.

use std::fs;
use std::process::Output;

use netams_proto::SourceKind;
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::{Daemon, Place};
use netams_tests::hooks::{self, Direction};
use netams_tests::lab::Lab;
use netams_tests::ledger::{assert_explained, assert_ledger, closed_account, flow_total};
use netams_tests::load::{Load, PORT, frames};
use netams_tests::queue::{self, Socket};
use netams_tests::require_live;

/// Packets a second.
const RATE: u64 = 20_000;
/// Number of the first queue, by default.
const FIRST: u16 = 2050;

const UNAVAILABLE: i32 = 69;
const OS: i32 = 71;
const TEMPORARY: i32 = 75;

fn send(lab: &Lab, count: u64) -> u64 {
    Blast::new(frames(), count).rate(RATE).send(&lab.client, "eth0", &lab.router, "cl0")
}

fn flows(daemon: &Daemon) -> u64 {
    flow_total(daemon, &["--port", &PORT.to_string()]).packets
}

/// All rules there are, as their tools list them, in lower case.
fn listed(lab: &Lab) -> String {
    let tools = ["iptables-save", "ip6tables-save", "nft list ruleset"];
    tools.map(|tool| lab.router.run(tool)).concat().to_lowercase()
}

/// No rule is ours.
fn assert_no_rules(lab: &Lab) {
    assert!(!listed(lab).contains("netams"), "{}", listed(lab));
}

fn assert_no_programs(lab: &Lab) {
    for device in ["cl0", "sv0"] {
        for direction in [Direction::Ingress, Direction::Egress] {
            assert_eq!(hooks::programs(&lab.router, device, direction), [0; 0], "{device} {direction}");
        }
    }
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

/// Starts a daemon that is to refuse with this code and sentence, and leave nothing.
fn refuses_to_start(lab: &Lab, config: &Config, code: i32, sentence: &str) {
    let place = Place::new(&lab.router, config);
    let (found, said) = place.refused(&mut place.command());
    assert_eq!(found, code, "exit code; said:\n{said}");
    assert_eq!(said.lines().last(), Some(format!("netamsd: {sentence}").as_str()));
    assert_no_rules(lab);
    assert_no_programs(lab);
    let tables = fs::read_dir(place.path().join("tables")).into_iter().flatten();
    assert_eq!(tables.count(), 0, "tables are left");
}

/// Asks for queues under load from a daemon whose kernel source counts: refused with this sentence, without a trace.
fn refuses_to_switch(lab: &Lab, config: &Config, sentence: &str) {
    let daemon = Daemon::start(&lab.router, config);
    let (listed, before) = (queue::list(&lab.router), daemon.source());
    let load = Load::start(lab, RATE);
    for _ in 0..5 {
        let refused = daemon.ngctl(&["msg", "netams:", "source", "nfqueue"]);
        assert_eq!(refused.status.code(), Some(OS), "{refused:?}");
        assert_eq!(last_line(&refused), format!("ngctl: {sentence}; nothing has changed"));
        assert_eq!(queue::list(&lab.router), listed);
        assert_no_rules(lab);
    }
    let sent = load.end(lab).packets;
    let after = daemon.source();
    assert_eq!((after.source, after.switches), (SourceKind::Kernel, 0));
    assert_eq!(after.since_ms, before.since_ms);
    assert_eq!(flows(&daemon), sent);
    assert_ledger(&daemon.ledger());
}

#[test]
fn an_occupied_queue() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let other = Socket::open(&lab.router);
    other.take(FIRST + 1);
    let port_id = queue::list(&lab.router)[0].port_id;
    let sentence = format!(
        "netfilter queue {} is taken by the netlink socket with port id {port_id}; stop that one or set another nfqueue.first_queue",
        FIRST + 1
    );
    refuses_to_start(&lab, &Config::nfqueue("auto"), TEMPORARY, &sentence);
    refuses_to_switch(&lab, &Config::default(), &sentence);
}

#[test]
fn a_start_that_fails_breaks_nothing_off_that_a_killed_daemon_left() {
    if !require_live() {
        return;
    }
    let refused = |daemon: &Daemon, other: &Socket| {
        other.take(FIRST);
        let (code, said) = daemon.place.refused(&mut daemon.place.command());
        assert_eq!(code, TEMPORARY, "{said}");
        other.give_back(FIRST);
    };
    let lab = Lab::new();
    let other = Socket::open(&lab.router);
    let mut daemon = Daemon::start(&lab.router, &Config::nfqueue("auto"));
    let sent = send(&lab, 5_000);
    assert_eq!(closed_account(&daemon).queued, sent);
    daemon.kill9();
    let early = send(&lab, 2_000);
    refused(&daemon, &other);
    let late = send(&lab, 3_000);
    daemon.start_again();
    let terms = closed_account(&daemon);
    assert_eq!((terms.reference, terms.bypassed), (sent + early + late, early + late), "{terms:#?}");
    assert_eq!(flows(&daemon), sent);
    assert_explained(&daemon.ledger());

    let lab = Lab::new();
    let other = Socket::open(&lab.router);
    let mut daemon = Daemon::start(&lab.router, &Config::default());
    let mut sent = send(&lab, 5_000);
    daemon.kill9();
    daemon.place.configure(&Config::nfqueue("auto"));
    sent += send(&lab, 2_000);
    refused(&daemon, &other);
    sent += send(&lab, 3_000);
    daemon.place.configure(&Config::default());
    daemon.start_again();
    assert_eq!(flows(&daemon), sent, "the programs have counted on");
    assert_ledger(&daemon.ledger());
}

#[test]
fn what_rules_of_another_state_folder_would_drop_for_ever_passes() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let closed = Config { source: "nfqueue", nfqueue: "fail = \"closed\"".into(), ..Config::default() };
    let mut daemon = Daemon::start(&lab.router, &closed);
    assert_eq!(closed_account(&daemon).queued, 0);
    daemon.kill9();
    assert!(listed(&lab).contains("netams"), "the rules outlive their daemon");
    let state = Some(daemon.place.path().join("other"));
    daemon.place.configure(&Config { state, ..Config::default() });
    daemon.start_again();
    assert_no_rules(&lab);
    let sent = send(&lab, 2_000);
    assert_eq!(flows(&daemon), sent);
    assert_ledger(&daemon.ledger());
}

#[test]
fn a_backend_that_cannot_queue() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    if queue::backends(&lab.router).contains(&"nft") {
        return println!("skipped: this kernel has the nft queue statement");
    }
    let nfqueue = "backend = \"nft\"".to_owned();
    let config = Config { nfqueue, ..Config::default() };
    let sentence = "the nft queue statement cannot be used (internal:0:0-0: Error: Could not process rule: No such file or directory); set nfqueue.backend to \"iptables\", or use a kernel with CONFIG_NFT_QUEUE";
    refuses_to_start(&lab, &Config { source: "nfqueue", ..config.clone() }, UNAVAILABLE, sentence);
    refuses_to_switch(&lab, &config, sentence);
}

#[test]
fn an_interface_pattern_that_netfilter_does_not_know() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let config = Config { interfaces: vec!["c?0", "sv0"], ..Config::default() };
    refuses_to_switch(
        &lab,
        &config,
        "netfilter rules cannot express the interface pattern \"c?0\"; use names of letters, digits and `._-@`, or prefixes of names that end in `*`",
    );
}

#[test]
fn off_and_back() {
    if !require_live() {
        return;
    }
    for kind in [SourceKind::Kernel, SourceKind::Nfqueue] {
        let lab = Lab::new();
        let config = match kind {
            SourceKind::Nfqueue => Config::nfqueue("auto"),
            _ => Config::default(),
        };
        let daemon = Daemon::start(&lab.router, &config);
        let mut sent = 0;
        for _ in 0..3 {
            sent += send(&lab, 5_000);
            assert_eq!(daemon.set_source(SourceKind::Off).source, SourceKind::Off);
            assert_no_rules(&lab);
            assert_no_programs(&lab);
            assert_eq!(queue::list(&lab.router), []);
            send(&lab, 3_000);
            assert_eq!(daemon.set_source(kind).source, kind);
            assert_eq!(flows(&daemon), sent, "what comes while the source is off is not counted");
        }
        sent += send(&lab, 5_000);
        assert_eq!(flows(&daemon), sent);
        let terms = closed_account(&daemon);
        if kind == SourceKind::Nfqueue {
            assert_eq!((terms.reference, terms.queued), (sent, sent), "{terms:#?}");
        }
        assert_ledger(&daemon.ledger());
    }
}
