//! Network namespaces: made under a unique name, entered by thread or by child process, removed when dropped.
//!
//! Children enter with `setns` between fork and exec. `ip netns exec` is not used: it mounts a fresh /sys, which hides
//! the BPF filesystem.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// A prefix no other lab on this machine uses now: `nt<pid>-<n>`.
pub fn unique_name() -> String {
    format!("nt{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed))
}

/// Runs a program on the host and returns its standard output; panics with both outputs when it fails.
/// `line` is split at white space; nothing is quoted.
pub fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program to run"));
    succeed(command.args(words), line)
}

fn succeed(command: &mut Command, line: &str) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run `{line}`: {e}"));
    assert_success(&output, line);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Panics with everything a program said unless it succeeded.
pub fn assert_success(output: &Output, line: &str) {
    assert!(
        output.status.success(),
        "`{line}` failed: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A network namespace of our own.
pub struct Namespace {
    name: String,
    handle: OwnedFd,
}

impl Namespace {
    /// Makes the namespace `name`, loopback up, IPv6 without unsolicited traffic.
    pub fn new(name: &str) -> Self {
        run(&format!("ip netns add {name}"));
        let handle = File::open(format!("/run/netns/{name}")).expect("open the new namespace").into();
        let namespace = Self { name: name.to_owned(), handle };
        namespace.run("ip link set lo up");
        // No link-local addresses and no router solicitations; a multicast report is repeated within weeks, not
        // within a second: truth is read from device counters, and these packets would be in them.
        for knob in [
            "ipv6/conf/default/addr_gen_mode=1",
            "ipv6/conf/default/accept_ra=0",
            "ipv6/conf/default/accept_dad=0",
            "ipv6/conf/default/router_solicitations=0",
            "ipv6/conf/default/mldv2_unsolicited_report_interval=2000000000",
            "ipv4/conf/default/rp_filter=0",
            "ipv4/conf/all/rp_filter=0",
        ] {
            namespace.sysctl(knob);
        }
        namespace
    }

    /// Its name below /run/netns.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` inside the namespace, on a thread of its own, and returns what it returns.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                setns(self.handle.as_fd(), CloneFlags::CLONE_NEWNET).expect("enter the namespace");
                work()
            });
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts `work` inside the namespace, on a thread of its own.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let handle = self.handle.try_clone().expect("duplicate the namespace handle");
        thread::spawn(move || {
            setns(handle.as_fd(), CloneFlags::CLONE_NEWNET).expect("enter the namespace");
            work()
        })
    }

    /// A command that will run inside the namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let handle = self.handle.try_clone().expect("duplicate the namespace handle");
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe; the closure owns the handle.
        unsafe {
            command.pre_exec(move || match libc::setns(handle.as_raw_fd(), libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        command
    }

    /// Runs a program inside the namespace like [`run`].
    pub fn run(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().expect("a program to run"));
        succeed(command.args(words), line)
    }

    /// Sets `path=value` below /proc/sys/net.
    pub fn sysctl(&self, setting: &str) {
        let (path, value) = setting.split_once('=').expect("path=value");
        let path = format!("/proc/sys/net/{path}");
        self.enter(|| std::fs::write(&path, value)).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let removed = Command::new("ip").args(["netns", "del", &self.name]).output();
        let done = removed.is_ok_and(|output| output.status.success());
        assert!(done || thread::panicking(), "namespace {} could not be removed", self.name);
    }
}
