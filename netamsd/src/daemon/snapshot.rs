//! The meter's numbers at one moment, for the answers.

use tracing::warn;

use super::{meter::Meter, quotas::Use};
use crate::{
    config::{DataSource, DefaultPolicy},
    flow::{Counters, Source},
    source::{
        kernel::HookInfo,
        nfqueue::{GsoMode, LaneInfo, Reading},
        unix_ms,
    },
    store::Ledger,
};

/// The meter's numbers at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Which source counts.
    pub active: DataSource,
    /// Since when, milliseconds UTC since 1970.
    pub since_ms: i64,
    /// How often that has changed since the daemon's start.
    pub switches: u64,
    /// What happens to packets that no policy decides.
    pub default_policy: DefaultPolicy,
    /// Whether each unit is blocked.
    pub blocked: Vec<bool>,
    /// The use of each quota.
    pub quotas: Vec<Use>,
    /// The ledger of each source, in the order of [`Source::ALL`].
    pub ledgers: [SourceLedger; Source::ALL.len()],
    /// When the source was switched last, milliseconds UTC since 1970.
    pub switched_ms: Option<i64>,
    /// Wire packets and bits a second, over the last seconds.
    pub rates: (f64, f64),
    /// Flows that have not ended.
    pub active_flows: u64,
    /// Flow records ever.
    pub total_flows: u64,
    /// The attached programs.
    pub hooks: Vec<HookInfo>,
    /// The queues while they are in use.
    pub queues: Option<Queues>,
    /// Why the store takes nothing now.
    pub trouble: Option<String>,
}

/// A source's cumulative counters; while the store is in trouble, those of the tables are included, but for the bytes of
/// flows, which are only known once a half is read.
#[derive(Debug, Clone, Copy)]
pub struct SourceLedger {
    /// Which source.
    pub source: Source,
    /// Counters, and packets that passed while nobody was there.
    pub total: (Counters, u64),
    /// The same when the daemon started.
    pub at_start: (Counters, u64),
    /// The same when the source was switched last, or the daemon started.
    pub at_switch: (Counters, u64),
    /// Packets that wait in queues.
    pub waiting: u64,
    /// Batches committed.
    pub commits: u64,
    /// Last commit, milliseconds UTC since 1970.
    pub last_commit_ms: i64,
}

/// The source in user space.
#[derive(Debug, Clone)]
pub struct Queues {
    /// The tool for the rules.
    pub backend: &'static str,
    /// How super-packets are counted.
    pub gso: GsoMode,
    /// The queues.
    pub lanes: Vec<LaneInfo>,
    /// The rules, when they could be read.
    pub rules: Option<Reading>,
}

impl Meter {
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            active: self.active,
            since_ms: self.since_ms,
            switches: self.switches,
            default_policy: self.default_policy,
            blocked: self.engine.blocked(),
            quotas: self.quotas.uses().to_vec(),
            ledgers: Source::ALL.map(|source| self.source_ledger(source)),
            switched_ms: self.at_switch.as_ref().map(|(time, _)| *time),
            rates: self.rates.per_second(),
            active_flows: self.writer.active_flows(unix_ms()),
            total_flows: self.writer.total_flows(),
            hooks: self.kernel.as_ref().map(|kernel| kernel.hooks()).unwrap_or_default(),
            queues: self.ruled.then(|| self.queues()),
            trouble: self.trouble.clone(),
        }
    }

    fn queues(&self) -> Queues {
        let or_warn = |e: &dyn std::fmt::Display| warn!("cannot tell how the queues stand: {e}");
        let read = || self.nfqueue.read_rules().inspect_err(|e| or_warn(e)).unwrap_or_default();
        Queues {
            backend: self.nfqueue.backend().map_or("", |backend| backend.name()),
            gso: self.nfqueue.gso(),
            lanes: self.nfqueue.list().inspect_err(|e| or_warn(e)).unwrap_or_default(),
            rules: self.reading.clone().or_else(read),
        }
    }

    fn source_ledger(&self, source: Source) -> SourceLedger {
        let ledger = self.writer.ledger(source);
        let of = |baselines: &[(Counters, u64); Source::ALL.len()]| baselines[source as usize];
        let at_start = of(&self.at_start);
        SourceLedger {
            source,
            total: (self.total(source), ledger.missed),
            at_start,
            at_switch: self.at_switch.as_ref().map_or(at_start, |(_, baselines)| of(baselines)),
            waiting: if source == Source::Nfqueue { self.waiting() } else { 0 },
            commits: ledger.commits,
            last_commit_ms: ledger.last_commit_ms,
        }
    }

    /// What a source has counted, whether committed or not.
    fn total(&self, source: Source) -> Counters {
        let Ledger { mut counters, .. } = *self.writer.ledger(source);
        if self.trouble.is_some() {
            let live = match source {
                Source::Kernel => self.kernel.as_ref().map(|kernel| kernel.live_counters()),
                Source::Nfqueue => self.nfqueue.live_counters(),
                Source::Replay => None,
            };
            counters.add(&live.unwrap_or_default());
        }
        counters
    }

    /// What both sources have counted.
    pub(super) fn totals(&self) -> Counters {
        let mut sum = Counters::default();
        Source::ALL.iter().for_each(|source| sum.add(&self.total(*source)));
        sum
    }

    /// The ledgers as they are now, to tell later what was added.
    pub(super) fn baselines(&self) -> [(Counters, u64); Source::ALL.len()] {
        Source::ALL.map(|source| (self.total(source), self.writer.ledger(source).missed))
    }
}
