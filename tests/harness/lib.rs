//! Real namespaces, real kernel, real daemon: what the live tests are made of.
//!
//! A test makes a [`lab::Lab`], starts a [`daemon::Daemon`] in its router, sends something through it ([`blast`],
//! [`load`], [`udp`], [`tcp`]), takes the truth from counters that are not the meter's ([`truth`], [`capture`]), compares, and
//! ends with [`ledger::assert_ledger`]. Tests know the daemon from outside only: its configuration, its exit codes and
//! what `ngctl --json` prints. Everything here panics when it cannot do its work: a test has then failed.
//!
//! Names are unique and nothing outside a lab is touched, so tests may run in parallel. `live/load.rs` wants both CPUs
//! for itself to be fast, so the whole suite is run by `cargo test -p netams-tests -- --test-threads=1`, after the
//! binaries have been built (see [`daemon::binary`]).

pub mod blast;
pub mod capture;
pub mod config;
pub mod daemon;
pub mod disk;
pub mod foreign;
pub mod frame;
pub mod hooks;
pub mod interrupt;
pub mod lab;
pub mod ledger;
pub mod load;
pub mod ns;
pub mod overlay;
pub mod poll;
pub mod queue;
pub mod stream;
pub mod tcp;
pub mod truth;
pub mod udp;

/// Whether live tests can run here. When not, prints why, or panics where `NETAMS_REQUIRE_LIVE=1` forbids to skip.
#[must_use]
pub fn require_live() -> bool {
    let Err(reason) = live() else { return true };
    assert!(
        std::env::var_os("NETAMS_REQUIRE_LIVE").is_none_or(|v| v != "1"),
        "live tests cannot run: {reason}"
    );
    println!("skipped: {reason}");
    false
}

/// Packets, bytes, or packets a second for a test: all of `full`, or as many per cent of it as `NETAMS_TRAFFIC` says. An
/// emulated processor is slow, and what is counted is exact with less as well.
#[must_use]
pub fn amount(full: u64) -> u64 {
    let Ok(percent) = std::env::var("NETAMS_TRAFFIC") else { return full };
    let percent: u64 =
        percent.parse().unwrap_or_else(|_| panic!("NETAMS_TRAFFIC is {percent:?}, and not per cent"));
    (full * percent / 100).max(1)
}

fn live() -> Result<(), &'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root for namespaces and BPF");
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err("needs a kernel with BPF and BTF");
    }
    Ok(())
}
