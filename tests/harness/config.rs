//! The daemon's configuration file, written from a test.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What a test sets; the rest is the daemon's default or belongs to [`crate::daemon::Daemon`].
#[derive(Debug, Clone)]
pub struct Config {
    /// `source`.
    pub source: &'static str,
    /// Further lines of the top level.
    pub top: String,
    /// Lines of `[nfqueue]`.
    pub nfqueue: String,
    /// `kernel.interfaces`.
    pub interfaces: Vec<&'static str>,
    /// `kernel.attach`.
    pub attach: &'static str,
    /// `kernel.flows`.
    pub flows: u32,
    /// `kernel.spill`.
    pub spill: u32,
    /// `kernel.on_exit`.
    pub on_exit: &'static str,
    /// `kernel.tunnels`.
    pub tunnels: &'static str,
    /// `accounting.charge`.
    pub charge: &'static str,
    /// `accounting.interval_ms`.
    pub interval_ms: u32,
    /// `state`, when it is not to be in the daemon's own folder.
    pub state: Option<PathBuf>,
    /// Appended as it is, after everything else.
    pub extra: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            source: "kernel",
            top: String::new(),
            nfqueue: String::new(),
            interfaces: vec!["cl0", "sv0"],
            attach: "auto",
            flows: 4096,
            spill: 16384,
            on_exit: "detach",
            tunnels: "outer",
            charge: "outer",
            interval_ms: 200,
            state: None,
            extra: String::new(),
        }
    }
}

impl Config {
    /// Queues as the source, super-packets counted in this way.
    pub fn nfqueue(gso: &str) -> Self {
        Self { source: "nfqueue", nfqueue: format!("gso = {gso:?}"), ..Self::default() }
    }

    /// Rules are made with this tool.
    pub fn backend(mut self, name: &str) -> Self {
        self.nfqueue.push_str(&format!("\nbackend = {name:?}"));
        self
    }

    /// Verdicts are enforced.
    pub fn divert(mut self) -> Self {
        self.top.push_str("mode = \"divert\"\n");
        self
    }

    /// Adds a unit; `kind` is `host`, `cluster` or `net`, `members` its addresses, or `group` and the names of units.
    pub fn unit(mut self, name: &str, kind: &str, members: &[&str]) -> Self {
        let key = if kind == "group" { "members" } else { "addresses" };
        let unit = format!("[[unit]]\nname = {name:?}\nkind = {kind:?}\n{key} = {members:?}\n");
        self.extra.push_str(&unit);
        self
    }

    /// Lines for the unit that was added last, such as `vlan = 10`.
    pub fn selector(mut self, lines: &str) -> Self {
        self.extra.push_str(lines);
        self.extra.push('\n');
        self
    }

    /// The file's text, for a daemon that keeps everything below `place`.
    pub fn toml(&self, place: &Path) -> String {
        let state = self.state.clone().unwrap_or_else(|| place.join("state"));
        let mut text = String::new();
        // Debug of paths and strings is a TOML basic string as long as they are plain ASCII, which they are.
        let written = write!(
            text,
            "state = {state:?}\nsource = {:?}\n{}\
             [kernel]\ninterfaces = {:?}\nattach = {:?}\nflows = {}\nspill = {}\non_exit = {:?}\ntunnels = {:?}\n\
             bpffs = {:?}\n\
             [accounting]\ninterval_ms = {}\ncharge = {:?}\n\
             [nfqueue]\ntables = {:?}\n{}\n\
             [control]\nsocket = {:?}\ngroup = \"netams\"\n\
             {}",
            self.source,
            self.top,
            self.interfaces,
            self.attach,
            self.flows,
            self.spill,
            self.on_exit,
            self.tunnels,
            place.join("bpf"),
            self.interval_ms,
            self.charge,
            place.join("tables"),
            self.nfqueue,
            place.join("control.sock"),
            self.extra,
        );
        written.expect("writing to a string");
        text
    }
}
