//! The store: flow records, hourly summaries of units, the ledger and events, in one SQLite database.
//!
//! Owns `netams.db` in the state folder, and is the only module that sees rusqlite. Its schema is in `/schema`.
//! One [`Writer`] per database (the daemon's lock sees to that), on one thread; any number of [`Reader`]s beside it.
//!
//! # What it promises
//!
//! * **Exactly once.** A batch is named by `(table, epoch)`. Its flows, its charges, its ledger terms and its epoch
//!   number go into one transaction, and a batch whose epoch is already there is accepted without effect. So whoever
//!   holds a batch may commit it again after any error or crash; [`Writer::committed_epoch`] says whether it need be.
//! * **A ledger a source.** Each data source has a ledger of its own; flow records and units are shared, so that a flow
//!   goes on in its record when another source counts it.
//! * **A failed commit changes nothing**, neither in the file nor in memory, and leaves the writer usable:
//!   [`StoreError::is_temporary`] says whether trying again makes sense. An I/O error may come after the transaction
//!   reached the disk; then a crash before the retry finds it committed, and the epoch number says so.
//! * **`kill -9` loses no committed batch; neither does a power cut.** In WAL mode with `synchronous = FULL` each
//!   commit is synced before it returns. `NORMAL` would save that one sync per drain interval, but syncs only at
//!   checkpoints, so that a power cut could undo many commits; one interval is all that may be lost.
//! * **Bounded.** Flow records are deleted in small steps once they are older than `keep_flows_days`; only the newest
//!   10,000 events stay; memory holds the flows that are neither idle nor cut. Hourly summaries stay for ever. Freed
//!   pages are used again, the file does not shrink.
//!
//! # Flow records
//!
//! A delta continues the newest record of its key unless that has been idle for longer than the idle timeout, or the
//! record would last longer than the active timeout; then it begins a new record. One batch never makes two records
//! of one key, so a batch that was kept back for long may make a longer one. A record is estimated from the first delta
//! that is.
//!
//! # Clocks
//!
//! Times come from the caller. A clock that jumps may cut a record in two, and puts retention off; it moves no count.

mod cache;
mod error;
mod ledger;
mod reader;
mod retention;
mod rows;
mod schema;
mod selection;
#[cfg(test)]
mod tests;
mod writer;

pub use error::StoreError;
pub use ledger::Ledger;
pub use reader::{EventRecord, FlowRecord, FlowSum, Flows, PartTotals, Reader};
pub use selection::{AddressRange, FlowOrder, FlowSelection};
pub use writer::Writer;

/// What the store has to know of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// A flow without packets for this many seconds ends.
    pub idle_timeout_s: u32,
    /// A flow that lasts longer than this many seconds is cut into records.
    pub active_timeout_s: u32,
    /// Flow records are deleted this many days after their last packet; 0 keeps them for ever.
    pub keep_flows_days: u32,
    /// The units, in the order to which `UnitCharge::unit` refers.
    pub units: Vec<StoreUnit>,
    /// Names of the policies, in the order to which `Account::Policy` refers.
    pub policies: Vec<String>,
}

/// What of a store survives a power failure. `kill -9` it survives in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Each commit: it waits for the disk.
    EachCommit,
    /// All but the newest commits.
    OlderCommits,
    /// Nothing: it is thrown away.
    None,
}

impl Durability {
    fn pragma(self) -> &'static str {
        match self {
            Self::EachCommit => "full",
            Self::OlderCommits => "normal",
            Self::None => "off",
        }
    }
}

/// A metered interface, and how far its own counter was: what it has moved on by when nobody meters any more, is missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metered {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub ifindex: u32,
    /// Packets received and sent by then.
    pub packets: u64,
    /// When, milliseconds UTC since 1970.
    pub time_ms: i64,
    /// The kernel's boot id: counters of another boot say nothing.
    pub boot: String,
}

/// How far the counter of a netfilter rule was: what it has moved on by since, is not in the ledger yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleCounter {
    /// Unique name of the rule.
    pub name: String,
    /// Packets that it has counted; a super-packet is one.
    pub packets: u64,
    /// Bytes that it has counted.
    pub bytes: u64,
}

/// What was told of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldQuota {
    /// When its period began, milliseconds UTC since 1970.
    pub start_ms: i64,
    /// Number of its state.
    pub state: u8,
    /// Bytes that could be used.
    pub limit: u64,
}

/// A unit as the store knows it. The name is its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUnit {
    /// Unique name.
    pub name: String,
    /// `host`, `user`, `cluster`, `net` or `group`.
    pub kind: String,
}
