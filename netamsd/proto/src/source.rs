//! The source of packets: which one counts, how its queues do, and the netfilter rules that feed them.

use serde::{Deserialize, Serialize};

/// Where packets are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// In the kernel, by eBPF programs on tc hooks.
    Kernel,
    /// In the daemon, from netfilter queues.
    Nfqueue,
    /// Nowhere.
    Off,
}

impl SourceKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Nfqueue, Self::Off];

    /// As it is configured, typed and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Nfqueue => "nfqueue",
            Self::Off => "off",
        }
    }
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It does not.
    Drop,
}

impl Verdict {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Pass, Self::Drop];

    /// As it is configured, typed and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
        }
    }
}

/// The source that counts now, and what it does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Which one.
    pub source: SourceKind,
    /// Since when, milliseconds UTC since 1970.
    pub since_ms: i64,
    /// How often it was switched since the daemon's start.
    pub switches: u64,
    /// `tee` counts and never drops, `divert` also enforces.
    pub mode: String,
    /// What happens in mode `divert` to a packet that no policy decides.
    pub default_policy: Verdict,
    /// Wire packets a second, a mean over the last seconds.
    pub packets_per_s: f64,
    /// Layer-3 bits a second, a mean over the same time.
    pub bits_per_s: f64,
    /// Present when `source` is [`SourceKind::Nfqueue`].
    pub nfqueue: Option<NfqueueStatus>,
}

/// How packets get from the kernel to the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfqueueStatus {
    /// The tool that sets the rules: `nft` or `iptables`.
    pub backend: String,
    /// What becomes of super-packets: `auto`, `exact` or `estimate`.
    pub gso: String,
    /// What happens to packets while no daemon listens, or a queue is full: `open` lets them pass, `closed` drops them.
    pub fail: String,
    /// Whether only packets of undecided connections are queued.
    pub offload: bool,
    /// Netfilter chains whose packets are queued.
    pub chains: Vec<String>,
    /// Packets that wait for a verdict, in all queues. A super-packet is one.
    pub waiting: u64,
    /// In order of their numbers.
    pub queues: Vec<Queue>,
}

/// One netfilter queue. A super-packet is one packet here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its number, as the rules name it.
    pub number: u16,
    /// Whether super-packets come whole; otherwise the kernel cuts them into segments before.
    pub gso: bool,
    /// Packets that wait for a verdict.
    pub waiting: u64,
    /// Packets that came out.
    pub received: u64,
    /// Packets that did not because the socket's buffer was full: gaps in their ids.
    pub lost: u64,
    /// Packets that did not because the queue was full.
    pub full: u64,
    /// How often its thread had to open it anew.
    pub restarts: u64,
    /// Open since, milliseconds UTC since 1970.
    pub since_ms: i64,
}

/// The netfilter rules that the daemon has installed; none while the source is another one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The tool that sets them: `nft` or `iptables`.
    pub backend: String,
    /// In the order in which packets meet them, chain by chain.
    pub rules: Vec<Rule>,
}

/// One netfilter rule with its own counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Counting from 1.
    pub number: u32,
    /// The chain it is in.
    pub chain: String,
    /// The rule as the tool shows it.
    pub rule: String,
    /// Packets that matched; a super-packet is one.
    pub packets: u64,
    /// Their layer-3 bytes, which for a super-packet lack the headers of all segments but one.
    pub bytes: u64,
    /// Whether it sends packets to a queue: these are the reference of the ledger.
    pub queue: bool,
}
