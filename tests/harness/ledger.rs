//! The identity that holds after every scenario.

use std::ops::Deref;
use std::time::Duration;

use netams_proto::{Flows, Ledgers, SourceKind, Terms};

use crate::daemon::Daemon;
use crate::poll::wait_for;
use crate::truth::Traffic;

/// The ledgers of all sources as one, since the store was created.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Their terms, summed.
    pub terms: Terms,
    /// Batches committed.
    pub commits: u64,
    /// Why the store does not take batches now.
    pub store_error: Option<String>,
}

/// So that a scenario reads `ledger.missed`.
impl Deref for Ledger {
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.terms
    }
}

impl From<Ledgers> for Ledger {
    fn from(ledgers: Ledgers) -> Self {
        Self {
            terms: ledgers.ledgers.iter().fold(Terms::default(), |sum, ledger| sum.plus(&ledger.total)),
            commits: ledgers.ledgers.iter().map(|ledger| ledger.commits).sum(),
            store_error: ledgers.store_error,
        }
    }
}

/// Nothing seen is unaccounted for, and nothing was missed.
pub fn assert_ledger(ledger: &Ledger) {
    assert_identity(ledger);
    assert_eq!(ledger.missed, 0, "missed: {ledger:#?}");
}

/// The identity alone, for scenarios with a gap: nothing seen is unaccounted for.
pub fn assert_identity(ledger: &Ledger) {
    assert_eq!(ledger.lost, 0, "lost: {ledger:#?}");
    assert_explained(ledger);
}

/// The identity for scenarios in which queues lose packets: what is lost has a reason.
pub fn assert_explained(ledger: &Ledger) {
    let t = &ledger.terms;
    let not_queued = t.queue_lost + t.queue_full + t.bypassed;
    assert_eq!(t.unexplained, 0, "unexplained: {ledger:#?}");
    assert_eq!(t.lost, not_queued as i64, "lost: {ledger:#?}");
    assert_eq!(t.seen, t.packets_in + t.packets_out - t.already_counted + not_queued, "seen: {ledger:#?}");
    let accounted = t.flow_packets + t.overflow_packets + t.non_ip + t.malformed + t.dropped + not_queued;
    assert_eq!(t.seen, accounted, "the identity: {ledger:#?}");
    assert_eq!(ledger.store_error, None, "the store: {ledger:#?}");
}

/// The account of the rules in front of the queues once it is closed: what they have counted came out of a queue, or is lost
/// with a reason. Nothing may be sent meanwhile.
pub fn closed_account(daemon: &Daemon) -> Terms {
    wait_for("the account of the rules is closed", Duration::from_secs(10), || {
        let ledgers = daemon.ledgers().ledgers;
        let queues = ledgers.into_iter().find(|ledger| ledger.source == SourceKind::Nfqueue.name())?;
        let t = queues.total;
        let closed = t.reference == t.queued + t.queue_lost + t.queue_full + t.bypassed;
        (closed && queues.waiting == 0).then_some(t)
    })
}

/// The totals of flows that `ngctl flows` selects; they must not be stale.
pub fn flow_total(daemon: &Daemon, select: &[&str]) -> Traffic {
    let flows = daemon.flows(select);
    assert_eq!(flows.stale, None, "stale flows");
    total(&flows)
}

/// The totals of all flows that matched.
pub fn total(flows: &Flows) -> Traffic {
    Traffic { packets: flows.packets, bytes: flows.bytes }
}
