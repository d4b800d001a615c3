//! `netams-lab`: sends known traffic through a router of its own and shows that it is metered to the packet.
//!
//! Client, router and server are three network namespaces that nothing else sees; netamsd runs in the router. What was
//! sent comes from the senders' own queues, never from the meter. Everything is removed at the end, also after Ctrl-C.
//!
//! Exit codes: 0 every line agrees, 1 something does not or cannot be tried, 2 wrong usage, 77 not root, 130 interrupted.

mod report;
mod traffic;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netams_proto::SourceKind;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::interrupt::{self, Ended, go_on};
use netams_tests::lab::{CLIENT4, CLIENT6, Lab, SERVER4, SERVER6};

/// Time between two switches of the source.
const PAUSE: Duration = Duration::from_millis(500);

const USAGE: &str = "\
Usage: netams-lab [--short] [--switch]

Sends TCP, UDP and ICMP through a router of its own and compares what netamsd meters with what was sent.
Needs root; touches nothing of this machine.

  --short   about three seconds of traffic in place of fifteen
  --switch  switch between the sources kernel and nfqueue every half second while the traffic flows
  --help    this text";

fn main() -> ExitCode {
    let (mut each, mut switch) = (Duration::from_millis(1300), false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--short" => each = Duration::from_millis(200),
            "--switch" => switch = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("netams-lab: unexpected argument `{other}`\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("netams-lab: needs root for network namespaces and BPF; run `sudo ./run --lab`");
        return ExitCode::from(77);
    }
    match interrupt::run(|| run(each, switch)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Ended::Interrupted) => {
            eprintln!("\nnetams-lab: interrupted; everything it made is removed");
            ExitCode::from(130)
        }
        Err(Ended::Failed(why)) => {
            eprintln!("\nnetams-lab: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Sends each kind of traffic for the time `each`; whether everything agrees.
fn run(each: Duration, switch: bool) -> bool {
    println!("{}", report::PICTURE);
    let lab = Lab::new();
    let unit = |v4: &dyn ToString, v6: &dyn ToString| [v4.to_string(), v6.to_string()];
    let (client, server) = (unit(&CLIENT4, &CLIENT6), unit(&SERVER4, &SERVER6));
    let config = Config { interval_ms: 1000, ..Config::default() }
        .unit("client", "cluster", &[&client[0], &client[1]])
        .unit("server", "cluster", &[&server[0], &server[1]])
        .unit("sink", "net", &["203.0.113.0/24", "2001:db8:ff::/48"])
        .unit("far-side", "group", &["server", "sink"]);
    let mut daemon = Daemon::start(&lab.router, &config);
    let lines =
        if switch { switching(&daemon, || traffic::send(&lab, each)) } else { traffic::send(&lab, each) };
    go_on();
    let agreed = report::print(&daemon, &lines);
    assert_eq!(daemon.terminate(), 0, "netamsd did not end well:\n{}", daemon.place.said());
    agreed
}

/// Has the daemon switch between its sources for as long as `work` takes.
fn switching<T>(daemon: &Daemon, work: impl FnOnce() -> T) -> T {
    /// Ends the switching also when `work` unwinds.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for kind in [SourceKind::Nfqueue, SourceKind::Kernel].into_iter().cycle() {
                let started = Instant::now();
                while started.elapsed() < PAUSE {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
                daemon.set_source(kind);
            }
        });
        let _done = Done(&done);
        work()
    })
}
