//! A daemon that is killed while it switches from one source to the other leaves packets counted once, or lost on record.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use netams_proto::SourceKind;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::Lab;
use netams_tests::ledger::{assert_explained, flow_total};
use netams_tests::load::Load;
use netams_tests::poll::wait_for;
use netams_tests::require_live;

/// Packets a second, each way.
const RATE: u64 = 5_000;
const ROUNDS: u64 = 40;

/// Has the daemon switch and kills it meanwhile, at another moment each time, from either source, with either one
/// configured when it comes back.
fn killed(gso: &str) {
    let config = |source| Config { source, interval_ms: 50, ..Config::nfqueue(gso) };
    let lab = Lab::new();
    let mut daemon = Daemon::start(&lab.router, &config("kernel"));
    let load = Load::both_ways(&lab, RATE);
    let mut from = SourceKind::Kernel;
    for round in 0..ROUNDS {
        thread::sleep(Duration::from_millis(50));
        let to = if from == SourceKind::Kernel { SourceKind::Nfqueue } else { SourceKind::Kernel };
        let mut ngctl = daemon.ngctl_command(&["msg", "netams:", "source", to.name()]);
        let mut asked = ngctl.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("run ngctl");
        thread::sleep(Duration::from_millis(round * 37 % 300));
        daemon.kill9();
        asked.wait().expect("ngctl ends");
        from = if round % 4 < 2 { to } else { from };
        daemon.place.configure(&config(from.name()));
        daemon.start_again();
        if std::env::var("TRACE").is_ok() {
            let seen = load.received(&lab);
            let ls = daemon.ledgers();
            let waiting: u64 = ls.ledgers.iter().map(|l| l.waiting).sum();
            let l: netams_tests::ledger::Ledger = ls.into();
            eprintln!("{round} SEEN {seen} ERR {} waiting {waiting} in {} out {} ac {}", (l.flow_packets + l.bypassed + waiting) as i64 - seen as i64, l.packets_in, l.packets_out, l.already_counted);
            eprintln!("{round} to {to:?} then {from:?} flows {} byp {} ref {} queued {} missed {}", l.flow_packets, l.bypassed, l.reference, l.queued, l.missed);
        }
    }
    let sent = load.end(&lab);
    let ledger = wait_for("nothing waits", Duration::from_secs(10), || {
        let ledgers = daemon.ledgers();
        ledgers.ledgers.iter().all(|ledger| ledger.waiting == 0).then(|| ledgers.into())
    });
    assert_explained(&ledger);
    let lost = ledger.queue_lost + ledger.queue_full + ledger.bypassed;
    let counted = flow_total(&daemon, &[]).packets;
    assert_eq!(counted + lost, sent.packets, "{} differ: {ledger:#?}\n{:#?}", (counted + lost) as i64 - sent.packets as i64, daemon.events());
    assert_eq!(ledger.missed, 0, "{ledger:#?}\n{:#?}", daemon.events());
}

#[test]
fn kill9_in_the_middle_of_a_switch_exact() {
    if require_live() {
        killed("exact");
    }
}

#[test]
fn kill9_in_the_middle_of_a_switch_auto() {
    if require_live() {
        killed("auto");
    }
}
