//! The configuration file: its keys, how it is read, and what is refused.
//!
//! TOML; a key that is not listed here is refused. [`Config::load`] returns a configuration that has passed
//! [`Config::validate`], so no one else checks it again; what only the system can answer (does the interface exist, does
//! the table fit in memory) is not asked here. Defaults are in `defaults.rs`; `netamsd/netams.toml` is the annotated
//! sample.

mod check;
mod cycle;
mod defaults;
mod error;
mod files;
mod interfaces;
mod nfqueue;
mod policies;
mod units;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

pub use error::{ConfigError, PolicyProblem, Position, Problem, UnitProblem};
pub use interfaces::{interface_matches, netfilter_pattern};
pub use nfqueue::{Backend, Chain, Fail, Gso, NfqueueConfig};

use crate::policy::{Files, Zone};
pub use crate::policy::{PolicyConfig, UnitConfig, UnitKind};

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of the database and the lock.
    pub state: PathBuf,
    /// Zone in which times are shown and days are cut.
    pub timezone: Zone,
    /// What counts packets.
    pub source: DataSource,
    /// Whether verdicts are enforced.
    pub mode: Mode,
    /// What becomes of a packet that no policy decides, in [`Mode::Divert`].
    pub default_policy: DefaultPolicy,
    /// The same, if one of its sides is a unit; `None` is as `default_policy`.
    pub local_policy: Option<DefaultPolicy>,
    /// The kernel source, and what both sources have in common: interfaces, sizes of the tables, tunnels.
    pub kernel: KernelConfig,
    /// The source of netfilter queues.
    pub nfqueue: NfqueueConfig,
    /// Draining, flow records, retention.
    pub accounting: AccountingConfig,
    /// The control socket.
    pub control: ControlConfig,
    /// The daemon's own messages.
    pub log: LogConfig,
    /// What happens when a quota is used up.
    pub quota: QuotasConfig,
    /// Who traffic is charged to, in the order of the file.
    #[serde(rename = "unit")]
    pub units: Vec<UnitConfig>,
    /// What units count and let pass, in the order of the file.
    #[serde(rename = "policy")]
    pub policies: Vec<PolicyConfig>,
    /// File of prefixes and the autonomous systems that they are in.
    pub as_file: Option<PathBuf>,
    /// Contents of the files that policies name; not a key.
    #[serde(skip)]
    pub files: Files,
}

/// `[kernel]`: where packets are counted, and how by the kernel source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KernelConfig {
    /// Patterns for [`interface_matches`]. The one key without a default.
    pub interfaces: Vec<String>,
    /// How the program is attached.
    pub attach: Attach,
    /// Flow slots per CPU in each half of the first-level table; a power of two.
    pub flows: u32,
    /// Slots of the second-level table, which all CPUs share.
    pub spill: u32,
    /// Whether packets in tunnels are accounted as well.
    pub tunnels: Tunnels,
    /// What becomes of the attached program when the daemon ends.
    pub on_exit: OnExit,
    /// Where the BPF filesystem is, or is mounted if absent.
    pub bpffs: PathBuf,
}

/// `source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataSource {
    /// eBPF programs on tc hooks.
    Kernel,
    /// The daemon itself, from netfilter queues.
    Nfqueue,
    /// Nothing is counted.
    Off,
}

/// `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Count; never drop.
    Tee,
    /// Count what passes, and drop what policies say.
    Divert,
}

/// `default_policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultPolicy {
    /// Let it pass.
    Pass,
    /// Drop it.
    Drop,
}

/// `kernel.attach`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// tcx where the kernel has it (6.6), else clsact.
    Auto,
    /// tcx links.
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

/// `kernel.tunnels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tunnels {
    /// Packets as they are on the wire.
    Outer,
    /// Beside them the innermost packets of tunnels.
    Inner,
}

/// `kernel.on_exit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// Take the program off the interfaces.
    Detach,
    /// Go on counting in the kernel while the daemon is away.
    Stay,
}

/// `[accounting]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccountingConfig {
    /// Milliseconds between two drains of the kernel tables.
    pub interval_ms: u32,
    /// A flow without packets for this many seconds ends.
    pub idle_timeout_s: u32,
    /// A flow is cut into records of at most this many seconds.
    pub active_timeout_s: u32,
    /// Flow records are deleted this many days after their last packet; unit totals stay.
    pub keep_flows_days: u32,
    /// By whose addresses units are charged.
    pub charge: Charge,
}

/// `accounting.charge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charge {
    /// Those of packets as they are on the wire.
    Outer,
    /// Those of the innermost packets of tunnels, and of packets that no tunnel carries.
    Inner,
}

/// `[quota]`: who is told of quotas.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotasConfig {
    /// A program and its arguments, run when a quota's state changes; none if empty.
    pub notify: Vec<String>,
    /// It is ended after this many seconds.
    pub notify_timeout_s: u32,
}

/// `[control]`: the socket for `ngctl`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlConfig {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Members may ask and change; the group need not exist.
    pub group: String,
    /// Everyone else may ask, but not change.
    pub others_may_read: bool,
    /// Clients served at the same time.
    pub max_connections: u32,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The least severe messages to write.
    pub level: LogLevel,
}

/// `log.level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Accounting is lost.
    Error,
    /// Degraded, nothing is lost.
    Warn,
    /// Changes of state.
    Info,
    /// Each drain.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The word for it in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Config {
    /// Reads and checks a file. The error names the file and, where there is one, the place in it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| Problem::Read(error.to_string()));
        let mut config = text
            .map_err(ConfigError::from)
            .and_then(|text| Self::parse(&text))
            .map_err(|error| error.in_file(path))?;
        config.files = files::read(&config, path.parent().unwrap_or(Path::new("")))?;
        Ok(config)
    }

    /// Reads and checks the text of a file. The error names the place in it.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let document = DeTable::parse(text).map_err(|error| ConfigError::syntax(text, &error))?;
        let config = Self::deserialize(Deserializer::from(document.clone()))
            .map_err(|error| ConfigError::types(text, &document, &error))?;
        interfaces_given(&document)
            .and_then(|()| config.validate())
            .map_err(|problem| ConfigError::new(text, &document, problem))?;
        Ok(config)
    }
}

/// Serde fills every missing key from `Default`; this one has none.
fn interfaces_given(document: &Spanned<DeTable<'_>>) -> Result<(), Problem> {
    let kernel = document.get_ref().get("kernel");
    match kernel.and_then(|kernel| kernel.get_ref().get("interfaces")) {
        Some(_) => Ok(()),
        None => Err(Problem::NoInterfaces),
    }
}

#[cfg(test)]
mod tests;
