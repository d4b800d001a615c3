//! A netamsd of the test's own: started, asked, killed, restarted, and cleaned up after.
//!
//! Everything it writes is in one temporary folder: configuration, state, control socket, messages, and a BPF
//! filesystem mounted there, so that parallel tests and the machine's own daemon do not meet.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use netams_proto::{
    Event, Explained, Flows, Info, Ledgers, Node, Policies, Quotas, Rules, SOCKET_ENV, SourceKind,
    SourceStatus, UnitReport, Units,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::config::Config;
use crate::ledger::Ledger;
use crate::ns::{Namespace, assert_success};
use crate::poll::wait_for;

/// How long the daemon may take to answer after its start, and to exit after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// A place for a daemon: folder, BPF filesystem and configuration, without the process.
pub struct Place<'lab> {
    namespace: &'lab Namespace,
    folder: TempDir,
}

impl<'lab> Place<'lab> {
    /// Makes the folder, mounts its BPF filesystem and writes the configuration.
    pub fn new(namespace: &'lab Namespace, config: &Config) -> Self {
        let folder = tempfile::Builder::new().prefix("netams-test").tempdir().expect("a temporary folder");
        let bpffs = folder.path().join("bpf");
        fs::create_dir(&bpffs).expect("the mount point of the BPF filesystem");
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), None::<&str>)
            .expect("mount a BPF filesystem");
        let place = Self { namespace, folder };
        place.configure(config);
        place
    }

    /// Writes the configuration anew.
    pub fn configure(&self, config: &Config) {
        fs::write(self.config_file(), config.toml(self.path())).expect("write the configuration");
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.path().join("netams.toml")
    }

    /// `netamsd --config FILE` in the namespace, not yet started.
    pub fn command(&self) -> Command {
        let mut command = self.namespace.command(binary("netamsd"));
        command.arg("--config").arg(self.config_file()).stdin(Stdio::null());
        command
    }

    /// Runs a daemon that is expected to refuse: its exit code and what it said. Panics when it goes on running.
    pub fn refused(&self, command: &mut Command) -> (i32, String) {
        let child = command.stdout(Stdio::null()).stderr(self.messages()).spawn().expect("start netamsd");
        let status = wait_exit(child, "netamsd refuses to start");
        (status.code().expect("an exit code"), self.said())
    }

    fn messages(&self) -> File {
        File::create(self.path().join("stderr")).expect("a file for the daemon's messages")
    }

    /// What the daemon has written to standard error since its last start.
    pub fn said(&self) -> String {
        fs::read_to_string(self.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Its pins go with it: this is the only mount of that filesystem.
        let unmounted = umount2(&self.path().join("bpf"), MntFlags::MNT_DETACH);
        assert!(unmounted.is_ok() || thread::panicking(), "the BPF filesystem could not be unmounted");
    }
}

/// A running daemon, or one that is down between [`Daemon::kill9`] and [`Daemon::start_again`].
pub struct Daemon<'lab> {
    // Before `place`: the process ends first.
    process: Process,
    /// Where it lives.
    pub place: Place<'lab>,
}

/// Kills and reaps its child when dropped.
pub(crate) struct Process(pub(crate) Option<Child>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let reaped = child.kill().and_then(|()| child.wait());
            assert!(reaped.is_ok() || thread::panicking(), "a child could not be ended");
        }
    }
}

impl<'lab> Daemon<'lab> {
    /// Starts a daemon in `namespace` and returns when `ngctl list` answers.
    pub fn start(namespace: &'lab Namespace, config: &Config) -> Self {
        let mut daemon = Self { process: Process(None), place: Place::new(namespace, config) };
        daemon.start_again();
        daemon
    }

    /// Starts it again after [`Daemon::kill9`] or [`Daemon::terminate`], and returns when it answers.
    pub fn start_again(&mut self) {
        assert!(self.process.0.is_none(), "the daemon runs already");
        let mut command = self.place.command();
        let child =
            command.stdout(Stdio::null()).stderr(self.place.messages()).spawn().expect("start netamsd");
        self.process.0 = Some(child);
        wait_for("netamsd answers", PATIENCE, || {
            let exited = self.child().try_wait().expect("the state of netamsd");
            assert!(exited.is_none(), "netamsd exited at once: {exited:?}\n{}", self.place.said());
            self.ngctl(&["list"]).status.success().then_some(())
        });
    }

    fn child(&mut self) -> &mut Child {
        self.process.0.as_mut().expect("the daemon runs")
    }

    /// Its process id.
    pub fn pid(&mut self) -> u32 {
        self.child().id()
    }

    /// Kills it without warning.
    pub fn kill9(&mut self) {
        let mut child = self.process.0.take().expect("the daemon runs");
        child.kill().expect("kill netamsd");
        let status = child.wait().expect("wait for netamsd");
        assert_eq!(
            status.signal(),
            Some(libc::SIGKILL),
            "netamsd had ended by itself:\n{}",
            self.place.said()
        );
    }

    /// Stops it in its tracks (SIGSTOP) until [`Daemon::go_on`]; returns when it does nothing any more.
    pub fn stop(&mut self) {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGSTOP).expect("signal netamsd");
        let stat = format!("/proc/{}/stat", self.pid());
        wait_for("netamsd is stopped", PATIENCE, || {
            let stat = fs::read_to_string(&stat).expect("the daemon's state");
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')).then_some(())
        });
    }

    /// Lets it go on after [`Daemon::stop`].
    pub fn go_on(&mut self) {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGCONT).expect("signal netamsd");
    }

    /// Asks it to end (SIGTERM), and returns its exit code when it has.
    pub fn terminate(&mut self) -> i32 {
        let child = self.process.0.take().expect("the daemon runs");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("signal netamsd");
        wait_exit(child, "netamsd ends after SIGTERM")
            .code()
            .unwrap_or_else(|| panic!("{}", self.place.said()))
    }

    /// [`Daemon::terminate`], which must succeed, and [`Daemon::start_again`].
    pub fn restart(&mut self) {
        assert_eq!(self.terminate(), 0, "{}", self.place.said());
        self.start_again();
    }

    /// Processor time it has used, user and system.
    pub fn cpu_time(&mut self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the daemon's times");
        // The name, in parentheses, may hold spaces; utime and stime are fields 14 and 15, in ticks (proc_pid_stat(5)).
        let fields = stat.rsplit_once(')').expect("a process name").1;
        let ticks: u64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        // SAFETY: no arguments but a constant.
        let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Duration::from_millis(ticks * 1000 / hertz as u64)
    }

    /// Runs `ngctl` against it.
    pub fn ngctl(&self, args: &[&str]) -> Output {
        self.ngctl_command(args).output().expect("run ngctl")
    }

    /// `ngctl` with these arguments, not yet run.
    pub fn ngctl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("ngctl"));
        command.args(args).env(SOCKET_ENV, self.place.path().join("control.sock"));
        command
    }

    fn ask<T: DeserializeOwned>(&self, args: &[&str]) -> T {
        let output = self.ngctl(&[args, &["--json"]].concat());
        assert_success(&output, &format!("ngctl {}", args.join(" ")));
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("ngctl {args:?}: {e}: {}", String::from_utf8_lossy(&output.stdout)))
    }

    /// `ngctl show netams:`
    pub fn node(&self) -> Node {
        self.ask(&["show", "netams:"])
    }

    /// `ngctl msg netams: info`
    pub fn info(&self) -> Info {
        self.ask(&["msg", "netams:", "info"])
    }

    /// `ngctl ledger`
    pub fn ledgers(&self) -> Ledgers {
        self.ask(&["ledger"])
    }

    /// `ngctl ledger`, the sources together.
    pub fn ledger(&self) -> Ledger {
        self.ledgers().into()
    }

    /// `ngctl source`
    pub fn source(&self) -> SourceStatus {
        self.ask(&["source"])
    }

    /// `ngctl msg netams: source KIND`, which must succeed.
    pub fn set_source(&self, kind: SourceKind) -> SourceStatus {
        self.ask(&["msg", "netams:", "source", kind.name()])
    }

    /// `ngctl rules`
    pub fn rules(&self) -> Rules {
        self.ask(&["rules"])
    }

    /// `ngctl flows` with further arguments; 1000 records at most, the totals are those of all that match.
    pub fn flows(&self, args: &[&str]) -> Flows {
        self.ask(&[&["flows", "--top", "100000"], args].concat())
    }

    /// `ngctl units`
    pub fn units(&self) -> Units {
        self.ask(&["units"])
    }

    /// `ngctl units UNIT`
    pub fn unit(&self, name: &str) -> UnitReport {
        self.ask(&["units", name])
    }

    /// `ngctl policies`
    pub fn policies(&self) -> Policies {
        self.ask(&["policies"])
    }

    /// `ngctl quota UNIT`, whatever its exit code, and that.
    pub fn quota(&self, unit: &str) -> (Quotas, Option<i32>) {
        let output = self.ngctl(&["quota", unit, "--json"]);
        let answer = serde_json::from_slice(&output.stdout);
        (answer.unwrap_or_else(|e| panic!("ngctl quota {unit}: {e}: {output:?}")), output.status.code())
    }

    /// `ngctl explain` with these arguments.
    pub fn explain(&self, args: &[&str]) -> Explained {
        self.ask(&[&["explain"], args].concat())
    }

    /// `ngctl block UNIT` or `ngctl allow UNIT`.
    pub fn set_blocked(&self, name: &str, blocked: bool) -> UnitReport {
        self.ask(&[if blocked { "block" } else { "allow" }, name])
    }

    /// `ngctl events`
    pub fn events(&self) -> Vec<Event> {
        self.ask(&["events"])
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- netamsd said:\n{}---", self.place.said());
        }
    }
}

/// Waits for the end of a child; kills it when it takes too long.
fn wait_exit(child: Child, what: &str) -> ExitStatus {
    let mut process = Process(Some(child));
    wait_for(what, PATIENCE, || process.0.as_mut()?.try_wait().expect("the state of netamsd"))
}

/// A program of the workspace: in `NETAMS_BIN_DIR`, or beside the running program (a test is one folder deeper), or in
/// the sibling `release` or `debug`.
pub fn binary(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("NETAMS_BIN_DIR") {
        return Path::new(&folder).join(name);
    }
    let own = std::env::current_exe().expect("the path of this program");
    let folders = own.ancestors().skip(1).take(2);
    let mut candidates =
        folders.flat_map(|folder| ["", "../release", "../debug"].map(|to| folder.join(to).join(name)));
    let found = candidates.find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built; build the workspace or set NETAMS_BIN_DIR"))
}
