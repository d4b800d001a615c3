//! A daemon that is killed while it switches from one source to the other leaves packets counted once, or lost on record.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use netams_proto::SourceKind;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::Lab;
use netams_tests::ledger::{assert_explained, flow_total};
use netams_tests::load::{Load, PORT};
use netams_tests::poll::wait_for;
use netams_tests::require_live;

/// Packets a second, each way.
const RATE: u64 = 5_000;
const ROUNDS: u64 = 40;

/// Has the daemon switch and kills it meanwhile, at another moment each time, from either source, with either one
/// configured when it comes back.
fn killed(gso: &str, interfaces: &[&'static str]) {
    let config = |source| {
        let interfaces = interfaces.to_vec();
        Config { source, interfaces, interval_ms: 50, ..Config::nfqueue(gso) }
    };
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
    }
    let sent = load.end(&lab);
    let ledger = wait_for("nothing waits", Duration::from_secs(10), || {
        let ledgers = daemon.ledgers();
        ledgers.ledgers.iter().all(|ledger| ledger.waiting == 0).then(|| ledgers.into())
    });
    assert_explained(&ledger);
    let lost = ledger.queue_lost + ledger.queue_full + ledger.bypassed;
    let counted = flow_total(&daemon, &["--port", &PORT.to_string()]).packets;
    assert_eq!(counted + lost, sent.packets, "{ledger:#?}\n{:#?}", daemon.events());
    assert_eq!(ledger.missed, 0, "{ledger:#?}\n{:#?}", daemon.events());
    println!("{counted} of {} packets in flows, {} bypassed", sent.packets, ledger.bypassed);
}

#[test]
fn packets_that_pass_two_interfaces() {
    if require_live() {
        killed("exact", &["cl0", "sv0"]);
    }
}

#[test]
fn packets_that_pass_two_interfaces_with_stamps() {
    if require_live() {
        killed("auto", &["cl0", "sv0"]);
    }
}

/// Half of the packets are counted where they leave.
#[test]
fn packets_that_pass_one_interface() {
    if require_live() {
        killed("auto", &["sv0"]);
    }
}
