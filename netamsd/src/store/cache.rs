//! The flows that are alive, and which record of the database each of them has.
//!
//! Decides for each batch which record is continued and which is begun. It changes only in [`FlowCache::confirm`], once
//! the transaction is committed; a plan that was not confirmed leaves no trace. Does no I/O.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::flow::{FlowDelta, FlowKey};

/// Flows that are remembered at most, about 200 bytes each. A flood of further ones makes a record a batch of each; their
/// counts are as exact.
const MOST: usize = 1 << 20;
/// Below this many flows memory is not given back.
const SMALL: usize = 4096;

/// The record of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// Row id, 0 where there is none yet.
    pub(super) row: i64,
    pub(super) first_ms: i64,
    pub(super) last_ms: i64,
}

/// What one batch does to one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// All deltas of the key, added.
    pub(super) delta: FlowDelta,
    /// The record as it will be. Whoever writes a new one fills in the row.
    pub(super) record: Record,
}

/// When a record ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) idle_ms: i64,
    pub(super) active_ms: i64,
}

impl Timeouts {
    /// Whether `delta` goes on with `record`.
    fn continues(&self, record: &Record, delta: &FlowDelta) -> bool {
        self.near(record.last_ms, delta.first_ms)
            && delta.last_ms.saturating_sub(record.first_ms) <= self.active_ms
    }

    /// Whether a packet at `now_ms` would go on with `record`.
    fn alive(&self, record: &Record, now_ms: i64) -> bool {
        self.near(record.last_ms, now_ms) && now_ms.saturating_sub(record.first_ms) <= self.active_ms
    }

    /// A distance, not a difference: after the clock was set back, old records lie in the future.
    fn near(&self, a_ms: i64, b_ms: i64) -> bool {
        a_ms.saturating_sub(b_ms).saturating_abs() <= self.idle_ms
    }
}

/// The alive flows. Hashed with the standard library's keyed hasher although a simpler one would make a large commit
/// a sixth shorter: keys are chosen by whoever sends packets, and must not be made to collide.
pub(super) struct FlowCache {
    timeouts: Timeouts,
    records: HashMap<FlowKey, Record>,
    /// The plan, until it is confirmed.
    changes: Vec<Change>,
    purged_ms: i64,
    most: usize,
}

impl FlowCache {
    pub(super) fn new(timeouts: Timeouts) -> Self {
        Self { timeouts, records: HashMap::new(), changes: Vec::new(), purged_ms: i64::MIN, most: MOST }
    }

    /// Forgets all records: no flow goes on in one of them.
    pub(super) fn forget(&mut self) {
        self.records.clear();
    }

    /// Takes up a record that is in the database. Of several of one key the newest counts.
    pub(super) fn adopt(&mut self, key: FlowKey, record: Record) {
        let newest = self.records.entry(key).or_insert(record);
        if record.row > newest.row {
            *newest = record;
        }
    }

    /// Says what `deltas` do: each key once, continued records by row id and then new ones by time, which is the
    /// order in which the database likes them best.
    pub(super) fn plan(&mut self, deltas: &[FlowDelta]) -> &mut [Change] {
        self.changes.clear();
        self.changes.reserve(deltas.len());
        // Where a key is in `changes`.
        let mut index: HashMap<FlowKey, usize> = HashMap::with_capacity(deltas.len());
        for &delta in deltas {
            match index.entry(delta.key) {
                Entry::Occupied(seen) => merge(&mut self.changes[*seen.get()].delta, &delta),
                Entry::Vacant(vacant) => {
                    vacant.insert(self.changes.len());
                    self.changes.push(Change { delta, record: new_record(&delta) });
                }
            }
        }
        for change in &mut self.changes {
            change.record = match self.records.get(&change.delta.key) {
                Some(old) if self.timeouts.continues(old, &change.delta) => Record {
                    row: old.row,
                    first_ms: old.first_ms.min(change.delta.first_ms),
                    last_ms: old.last_ms.max(change.delta.last_ms),
                },
                _ => new_record(&change.delta),
            };
        }
        self.changes.sort_unstable_by_key(|change| match change.record.row {
            0 => (true, change.record.first_ms),
            row => (false, row),
        });
        &mut self.changes
    }

    /// The last plan is committed: remembers its records, and forgets flows that ended.
    pub(super) fn confirm(&mut self, now_ms: i64) {
        for change in std::mem::take(&mut self.changes) {
            if self.records.len() < self.most || self.records.contains_key(&change.delta.key) {
                self.records.insert(change.delta.key, change.record);
            }
        }
        if now_ms.saturating_sub(self.purged_ms).saturating_abs() >= self.timeouts.idle_ms / 2 {
            self.purged_ms = now_ms;
            self.records.retain(|_, record| self.timeouts.alive(record, now_ms));
            if self.records.capacity() > SMALL.max(self.records.len() * 4) {
                self.records.shrink_to(self.records.len() * 2);
            }
        }
    }

    /// Flows that are neither idle nor cut at `now_ms`.
    pub(super) fn alive(&self, now_ms: i64) -> u64 {
        self.records.values().filter(|record| self.timeouts.alive(record, now_ms)).count() as u64
    }
}

/// The record that begins with `delta`.
pub(super) fn new_record(delta: &FlowDelta) -> Record {
    Record { row: 0, first_ms: delta.first_ms, last_ms: delta.last_ms.max(delta.first_ms) }
}

fn merge(sum: &mut FlowDelta, other: &FlowDelta) {
    sum.estimated |= other.estimated;
    sum.packets += other.packets;
    sum.bytes += other.bytes;
    sum.first_ms = sum.first_ms.min(other.first_ms);
    sum.last_ms = sum.last_ms.max(other.last_ms);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{delta, key};

    fn cache() -> FlowCache {
        FlowCache::new(Timeouts { idle_ms: 10_000, active_ms: 60_000 })
    }

    /// Plans, gives new records the rows from `row` on, and confirms.
    fn commit(cache: &mut FlowCache, deltas: &[FlowDelta], mut row: i64, now_ms: i64) -> Vec<Change> {
        let changes = cache.plan(deltas);
        for change in changes.iter_mut().filter(|c| c.record.row == 0) {
            change.record.row = row;
            row += 1;
        }
        let changes = changes.to_vec();
        cache.confirm(now_ms);
        changes
    }

    #[test]
    fn a_key_that_occurs_twice_is_one_change() {
        let mut cache = cache();
        let deltas = [delta(key(1), 1, 100, 1000, 3000), delta(key(1), 2, 200, 500, 2000)];
        let changes = commit(&mut cache, &deltas, 1, 3000);
        assert_eq!(
            changes,
            [Change {
                delta: delta(key(1), 3, 300, 500, 3000),
                record: Record { row: 1, first_ms: 500, last_ms: 3000 }
            }]
        );
    }

    #[test]
    fn a_key_is_estimated_when_any_of_its_deltas_is() {
        let exact = delta(key(1), 1, 100, 0, 0);
        let estimated = FlowDelta { estimated: true, ..exact };
        for (deltas, expected) in
            [([exact, exact], false), ([exact, estimated], true), ([estimated, exact], true)]
        {
            assert_eq!(cache().plan(&deltas)[0].delta.estimated, expected, "{deltas:?}");
        }
    }

    #[test]
    fn timeouts_cut_records() {
        let cases = [
            (10_000, 10_000, 1, "still within the idle timeout"),
            (10_001, 10_001, 2, "idle for too long"),
            (9_000, 60_000, 1, "as long as the active timeout"),
            (9_000, 60_001, 2, "longer than the active timeout"),
            (-10_001, -10_001, 2, "the clock was set back"),
        ];
        for (first_ms, last_ms, row, why) in cases {
            let mut cache = cache();
            commit(&mut cache, &[delta(key(1), 1, 1, 0, 0)], 1, 0);
            let changes = commit(&mut cache, &[delta(key(1), 1, 1, first_ms, last_ms)], 2, 0);
            assert_eq!(changes[0].record.row, row, "{why}");
        }
    }

    #[test]
    fn the_newest_record_of_a_key_is_adopted() {
        let records = [1, 3, 2].map(|row| Record { row, first_ms: 0, last_ms: 0 });
        let mut cache = cache();
        for record in records {
            cache.adopt(key(1), record);
        }
        assert_eq!(cache.plan(&[delta(key(1), 1, 1, 0, 0)])[0].record, records[1]);
    }

    #[test]
    fn a_plan_that_is_not_confirmed_leaves_no_trace() {
        let mut cache = cache();
        commit(&mut cache, &[delta(key(1), 1, 1, 0, 0)], 1, 0);
        let deltas = [delta(key(1), 5, 5, 900, 1000), delta(key(2), 7, 7, 800, 1000)];
        let first = cache.plan(&deltas).to_vec();
        assert_eq!(cache.alive(0), 1);
        assert_eq!(cache.plan(&deltas), first);
        assert_eq!(
            first[0].record,
            Record { row: 1, first_ms: 0, last_ms: 1000 },
            "continued ones come first"
        );
        assert_eq!(first[1].record.row, 0);
    }

    #[test]
    fn a_flood_is_recorded_and_not_remembered() {
        let mut cache = FlowCache { most: 10, ..cache() };
        let flood: Vec<_> = (0..20).map(|n| delta(key(n), 1, 1, 0, 0)).collect();
        assert_eq!(commit(&mut cache, &flood, 1, 0).len(), 20);
        assert_eq!(cache.alive(0), 10);
        let again = commit(&mut cache, &flood, 21, 0);
        let continued = again.iter().filter(|change| change.record.row <= 20).count();
        assert_eq!((again.len(), continued), (20, 10));
    }

    #[test]
    fn ended_flows_are_forgotten_and_their_memory_given_back() {
        let mut cache = cache();
        let flood: Vec<_> = (0..100_000).map(|n| delta(key(n), 1, 1, 0, 0)).collect();
        commit(&mut cache, &flood, 1, 0);
        assert_eq!(cache.alive(10_000), 100_000);
        assert_eq!(cache.alive(10_001), 0, "not counted even before they are purged");
        commit(&mut cache, &[delta(key(1), 1, 1, 20_000, 20_000)], 200_000, 20_000);
        assert_eq!(cache.records.len(), 1);
        assert!(cache.records.capacity() < 2 * SMALL);
    }
}
