//! The `netamsd` binary: arguments, configuration, log, and from errors to exit codes.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, error::ErrorKind};
use netamsd::{
    check,
    config::{Config, ConfigError},
    control::ControlError,
    daemon::{self, DaemonError, DrainError, SwitchError},
    replay::{self, ReplayError},
    source::{
        kernel::KernelError,
        nfqueue::{NfqueueError, RulesError, netlink::QueueError},
        replay::capture::CaptureError,
        tables::TablesError,
    },
    store::StoreError,
    sys::SysError,
};

/// Exit codes of sysexits(3).
mod exit {
    pub const USAGE: u8 = 64;
    pub const DATA: u8 = 65;
    pub const NO_INPUT: u8 = 66;
    pub const UNAVAILABLE: u8 = 69;
    pub const SOFTWARE: u8 = 70;
    pub const OS: u8 = 71;
    pub const CANNOT_CREATE: u8 = 73;
    pub const IO: u8 = 74;
    pub const TEMPORARY: u8 = 75;
    pub const NO_PERMISSION: u8 = 77;
    pub const CONFIG: u8 = 78;
    pub const INTERRUPTED: u8 = 130;
}

const HELP: &str = "\
Exit codes:
  0   ended as asked              73  the state folder or socket cannot be made
  64  wrong usage                 74  the disk is full or cannot be read or written
  65  damaged or newer database,  75  in use by another netamsd, or locked: try again
      or no capture to replay     77  capabilities are missing
  66  no such capture             78  wrong configuration
  69  the kernel cannot serve     130 a replay was interrupted
  70  internal error
  71  the system refuses

Examples:
  netamsd --check --config ./netams.toml
  netamsd --config /etc/netams/netams.toml
  netamsd replay capture.pcap";

/// Meters the traffic of network interfaces and answers ngctl.
#[derive(Parser)]
#[command(version, after_help = HELP, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/netams/netams.toml")]
    config: PathBuf,
    /// Say what this machine and the configuration lack, change nothing, and end
    #[arg(long)]
    check: bool,
    /// Remove programs, netfilter rules and flow tables that a killed daemon left in this network namespace; counts not yet
    /// stored are given up
    #[arg(long, conflicts_with = "check")]
    cleanup: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Account a capture file instead of live packets; needs no root
    Replay(replay::Arguments),
}

enum Failure {
    Config(ConfigError),
    Daemon(DaemonError),
    Replay(ReplayError),
}

impl Failure {
    fn code(&self) -> u8 {
        let error = match self {
            Self::Config(_) => return exit::CONFIG,
            Self::Replay(error) => return replay_code(error),
            Self::Daemon(error) => error,
        };
        match error {
            DaemonError::Config(_) => exit::CONFIG,
            DaemonError::Sys(e) => sys_code(e),
            DaemonError::Kernel(e) => kernel_code(e),
            DaemonError::Nfqueue(e) => nfqueue_code(e),
            DaemonError::Tables(e) => tables_code(e),
            DaemonError::Begin(e) => switch_code(e),
            DaemonError::Store(e) => store_code(e),
            DaemonError::Control(ControlError::InUse { .. }) => exit::TEMPORARY,
            DaemonError::Control(_) => exit::CANNOT_CREATE,
            DaemonError::Io(_) => exit::OS,
            DaemonError::Meter => exit::SOFTWARE,
        }
    }
}

fn replay_code(error: &ReplayError) -> u8 {
    match error {
        ReplayError::Config(_) => exit::CONFIG,
        ReplayError::Open(..) => exit::NO_INPUT,
        // What an unpacker says of damaged bytes.
        ReplayError::Capture(_, CaptureError::Io(e))
            if matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) =>
        {
            exit::DATA
        }
        ReplayError::Capture(_, CaptureError::Io(_)) | ReplayError::Print(_) => exit::IO,
        ReplayError::Capture(..) => exit::DATA,
        ReplayError::Sys(e) => sys_code(e),
        ReplayError::Folder(..) | ReplayError::Temporary(..) => exit::CANNOT_CREATE,
        ReplayError::Store(e) => store_code(e),
        ReplayError::Signals(_) => exit::OS,
        ReplayError::Interrupted => exit::INTERRUPTED,
        ReplayError::Kept { why, .. } => replay_code(why),
    }
}

fn sys_code(error: &SysError) -> u8 {
    match error {
        SysError::Capabilities(_) => exit::NO_PERMISSION,
        SysError::State(..) => exit::CANNOT_CREATE,
        SysError::StateTaken(..) | SysError::NamespaceTaken => exit::TEMPORARY,
        SysError::Change(_) | SysError::NamespaceLock(_) => exit::OS,
    }
}

fn switch_code(error: &SwitchError) -> u8 {
    match error {
        SwitchError::Kernel(e) | SwitchError::Drain(DrainError::Kernel(e)) => kernel_code(e),
        SwitchError::Nfqueue(e) | SwitchError::Drain(DrainError::Nfqueue(e)) => nfqueue_code(e),
        SwitchError::Tables(e) | SwitchError::Drain(DrainError::Tables(e)) => tables_code(e),
        SwitchError::Store(e) | SwitchError::Drain(DrainError::Store(e)) => store_code(e),
        SwitchError::NoKernel => exit::UNAVAILABLE,
        SwitchError::Tee => exit::CONFIG,
        SwitchError::Stranded { why, .. } | SwitchError::Undecided { why, .. } => switch_code(why),
    }
}

fn store_code(error: &StoreError) -> u8 {
    match error {
        StoreError::Corrupt { .. } | StoreError::Newer { .. } => exit::DATA,
        StoreError::Full { .. } | StoreError::Io { .. } => exit::IO,
        StoreError::Locked { .. } => exit::TEMPORARY,
        StoreError::Open { .. } => exit::CANNOT_CREATE,
        StoreError::UnknownUnit { .. } | StoreError::Other { .. } => exit::SOFTWARE,
    }
}

fn tables_code(error: &TablesError) -> u8 {
    match error {
        TablesError::Abi(_) => exit::UNAVAILABLE,
        TablesError::Full(..) => exit::IO,
        TablesError::Map(..) | TablesError::Grace(_) => exit::OS,
    }
}

fn kernel_code(error: &KernelError) -> u8 {
    match error {
        KernelError::Memory { .. } | KernelError::NoInterface(_) => exit::CONFIG,
        KernelError::Machine(_) | KernelError::Load(_) => exit::UNAVAILABLE,
        KernelError::Tables(e) => tables_code(e),
        KernelError::Object => exit::SOFTWARE,
        _ => exit::OS,
    }
}

fn nfqueue_code(error: &NfqueueError) -> u8 {
    match error {
        NfqueueError::Queue(QueueError::Taken { .. }) => exit::TEMPORARY,
        NfqueueError::Queue(QueueError::Rights) | NfqueueError::Rules(RulesError::NotPermitted(_)) => {
            exit::NO_PERMISSION
        }
        NfqueueError::Queue(QueueError::Status(_, e)) | NfqueueError::System(_, e)
            if e.kind() == io::ErrorKind::PermissionDenied =>
        {
            exit::NO_PERMISSION
        }
        NfqueueError::Queue(QueueError::Unsupported)
        | NfqueueError::Rules(RulesError::Missing { .. } | RulesError::NoTool | RulesError::NoQueue(_)) => {
            exit::UNAVAILABLE
        }
        NfqueueError::Tables(e) => tables_code(e),
        NfqueueError::Rules(RulesError::Pattern(_) | RulesError::Queues { .. }) => exit::CONFIG,
        NfqueueError::Folder(..) => exit::CANNOT_CREATE,
        _ => exit::OS,
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(e) => e.fmt(f),
            Self::Daemon(e) => e.fmt(f),
            Self::Replay(e) => e.fmt(f),
        }
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(e) => {
            // Nowhere to say that it could not be printed.
            let _ = e.print();
            let asked = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(exit::USAGE) };
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("netamsd: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(Command::Replay(arguments)) = &arguments.command {
        return replay::run(arguments).map_err(Failure::Replay);
    }
    let config = Config::load(&arguments.config).map_err(Failure::Config)?;
    if arguments.check {
        return report(check::check(&config));
    }
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(config.log.level.as_str())
        .init();
    if arguments.cleanup {
        let held = daemon::cleanup(&config).map_err(Failure::Daemon)?;
        println!(
            "removed programs, netfilter rules, and flow tables in {} and {}; {held} packets were not stored",
            config.kernel.bpffs.display(),
            config.nfqueue.tables.display()
        );
        return Ok(());
    }
    daemon::run(&config).map_err(Failure::Daemon)
}

/// Prints the findings; the first obstacle decides the exit code.
fn report(findings: Vec<check::Finding>) -> Result<(), Failure> {
    let mut first = None;
    for finding in findings {
        let mark = if finding.error.is_some() { "fails" } else { "ok" };
        println!("{mark:<6}{:<15} {}", finding.what, finding.text);
        first = first.or(finding.error);
    }
    first.map_or(Ok(()), |error| Err(Failure::Daemon(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_one_code_wherever_it_is_met() {
        let full = || StoreError::Full { path: "netams.db".into() };
        let denied = || NfqueueError::System("/proc/net", io::ErrorKind::PermissionDenied.into());
        let room = || TablesError::Full("/dev/shm".into(), 1);
        let begin = |error: SwitchError| DaemonError::Begin(error);
        for (error, code) in [
            (DaemonError::Store(full()), exit::IO),
            (begin(full().into()), exit::IO),
            (begin(DrainError::Store(full()).into()), exit::IO),
            (DaemonError::Nfqueue(denied()), exit::NO_PERMISSION),
            (begin(DrainError::Nfqueue(denied()).into()), exit::NO_PERMISSION),
            (begin(NfqueueError::Tables(room()).into()), exit::IO),
            (DaemonError::Kernel(KernelError::Tables(TablesError::Abi("/sys".into()))), exit::UNAVAILABLE),
        ] {
            assert_eq!(Failure::Daemon(error).code(), code);
        }
    }
}
