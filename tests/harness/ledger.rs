//! The identity that holds after every scenario.

use netams_proto::{Flows, Ledger};

use crate::daemon::Daemon;
use crate::truth::Traffic;

/// Nothing seen is unaccounted for, and nothing was missed.
pub fn assert_ledger(ledger: &Ledger) {
    assert_identity(ledger);
    assert_eq!(ledger.missed, 0, "missed: {ledger:#?}");
}

/// The identity alone, for scenarios with a gap: nothing seen is unaccounted for.
pub fn assert_identity(ledger: &Ledger) {
    assert_eq!(ledger.lost, 0, "lost: {ledger:#?}");
    assert_eq!(
        ledger.seen,
        ledger.packets_in + ledger.packets_out - ledger.already_counted,
        "seen: {ledger:#?}"
    );
    let accounted = ledger.flow_packets + ledger.overflow_packets + ledger.non_ip + ledger.malformed;
    assert_eq!(ledger.seen, accounted, "the identity: {ledger:#?}");
    assert_eq!(ledger.store_error, None, "the store: {ledger:#?}");
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
