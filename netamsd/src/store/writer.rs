//! The writer: commits batches and events, and answers from memory what it wrote.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};

use super::cache::{FlowCache, Timeouts};
use super::ledger::Ledgers;
use super::retention::{self, SteadyClock};
use super::rows::{self, Meta};
use super::{Durability, Ledger, Metered, RuleCounter, StoreConfig, StoreError, ToldQuota, schema};
use crate::flow::{Account, Batch, InOut, Source, UnitCharge};

/// Older events are deleted.
const EVENTS_KEPT: i64 = 10_000;
const DAY_MS: i64 = 86_400_000;

/// The one writer of a database. It may move between threads, but serves one at a time.
pub struct Writer {
    conn: Connection,
    path: PathBuf,
    keep_ms: Option<i64>,
    /// Row ids of the configured units.
    units: Vec<i64>,
    /// Row ids of the configured policies.
    policies: Vec<i64>,
    metered: Vec<Metered>,
    rule_counters: Vec<RuleCounter>,
    /// The batch that counts up to `rule_counters` was not taken yet.
    rules_ahead: bool,
    // The rest mirrors the database, and changes only after a transaction has committed.
    epochs: HashMap<u64, u64>,
    cache: FlowCache,
    ledgers: Ledgers,
    meta: Meta,
    clock: SteadyClock,
    opened: Instant,
}

impl Writer {
    /// Opens the database in the folder `dir`, which must exist; makes or migrates it when needed.
    ///
    /// # Errors
    /// Any [`StoreError`]; `Newer` leaves the file as it is.
    pub fn open(dir: &Path, config: StoreConfig) -> Result<Self, StoreError> {
        Self::open_with(dir, config, Durability::EachCommit)
    }

    /// [`Self::open`] for a store that need not survive a power failure as well.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(dir: &Path, config: StoreConfig, durability: Durability) -> Result<Self, StoreError> {
        let path = schema::path(dir);
        let conn = schema::open_writer(&path, durability)?;
        Self::load(conn, path.clone(), &config).map_err(|e| StoreError::sql(&path, &e))
    }

    fn load(mut conn: Connection, path: PathBuf, config: &StoreConfig) -> rusqlite::Result<Self> {
        let timeouts = Timeouts {
            idle_ms: i64::from(config.idle_timeout_s) * 1000,
            active_ms: i64::from(config.active_timeout_s) * 1000,
        };
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let units = rows::save_units(&tx, &config.units)?;
        let policies = rows::save_policies(&tx, &config.policies)?;
        let ledgers = Ledgers::load(&tx)?;
        let epochs = rows::load_epochs(&tx)?;
        let meta = Meta::load(&tx)?;
        let metered = rows::load_metered(&tx)?;
        let rule_counters = rows::load_rule_counters(&tx)?;
        let mut cache = FlowCache::new(timeouts);
        rows::load_alive(&tx, &mut cache, timeouts)?;
        tx.commit()?;
        let keep_ms = (config.keep_flows_days > 0).then(|| i64::from(config.keep_flows_days) * DAY_MS);
        Ok(Self {
            conn,
            path,
            keep_ms,
            units,
            policies,
            metered,
            rule_counters,
            rules_ahead: false,
            epochs,
            cache,
            ledgers,
            meta,
            clock: SteadyClock::default(),
            opened: Instant::now(),
        })
    }

    /// Has no flow go on in a record that is there already: what is committed from now on has records of its own.
    pub fn begin_anew(&mut self) {
        self.cache.forget();
    }

    /// The last epoch of `table` that is committed, if any.
    pub fn committed_epoch(&self, table: u64) -> Option<u64> {
        self.epochs.get(&table).copied()
    }

    /// Commits `batch` and its `charges` in one transaction, unless that epoch of that table, or a later one, is
    /// committed already. A batch without flows has its counters go to the ledger of its source all the same. `now_ms` is
    /// milliseconds UTC since 1970. Says whether it was not there already.
    ///
    /// # Errors
    /// After any error nothing has changed, and the same batch may be committed again.
    pub fn commit(&mut self, batch: &Batch, charges: &[UnitCharge], now_ms: i64) -> Result<bool, StoreError> {
        self.commit_at(batch, charges, now_ms, self.opened.elapsed())
    }

    /// [`Self::commit`] with the monotonic time as an argument.
    pub(super) fn commit_at(
        &mut self,
        batch: &Batch,
        charges: &[UnitCharge],
        now_ms: i64,
        uptime: Duration,
    ) -> Result<bool, StoreError> {
        if self.committed_epoch(batch.table).is_some_and(|last| batch.epoch <= last) {
            return Ok(false);
        }
        let known = self.units.len();
        if let Some(&UnitCharge { unit: index, .. }) = charges.iter().find(|c| c.unit as usize >= known) {
            return Err(StoreError::UnknownUnit { index, known });
        }
        let steady = self.clock.observe(now_ms, uptime);
        let cutoff_ms = self.keep_ms.filter(|_| steady).map(|keep_ms| now_ms.saturating_sub(keep_ms));
        let written = self.write(batch, charges, now_ms, cutoff_ms);
        self.rules_ahead = written.is_err();
        let (ledger, meta) = written.map_err(|error| StoreError::sql(&self.path, &error))?;
        self.cache.confirm(now_ms);
        self.epochs.insert(batch.table, batch.epoch);
        self.ledgers.replace(ledger);
        self.meta = meta;
        Ok(true)
    }

    /// The transaction of a commit. Returns what memory has to become.
    fn write(
        &mut self,
        batch: &Batch,
        charges: &[UnitCharge],
        now_ms: i64,
        cutoff_ms: Option<i64>,
    ) -> rusqlite::Result<(Ledger, Meta)> {
        let changes = self.cache.plan(&batch.flows);
        let mut ledger = self.ledgers.of(batch.source).clone();
        ledger.counters.add(&batch.counters);
        ledger.commits += 1;
        ledger.last_commit_ms = now_ms;
        let mut meta = self.meta;

        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let added = rows::write_flows(&tx, changes, &mut meta)?;
        for charge in charges {
            rows::write_charge(&tx, self.units[charge.unit as usize], &self.policies, charge)?;
        }
        ledger.save(&tx)?;
        if meta != self.meta {
            meta.save(&tx)?;
        }
        rows::write_epoch(&tx, batch.table, batch.epoch)?;
        rows::save_metered(&tx, &self.metered)?;
        rows::save_rule_counters(&tx, &self.rule_counters)?;
        if let Some(cutoff_ms) = cutoff_ms {
            retention::expire(&tx, cutoff_ms, added)?;
        }
        tx.commit()?;
        Ok((ledger, meta))
    }

    /// Records an event at `time_ms` (milliseconds UTC since 1970), and adds the packets it may have cost to the
    /// ledger of `source`. `kind` is a short name, `detail` one sentence.
    ///
    /// # Errors
    /// After any error nothing has changed.
    pub fn record(
        &mut self,
        source: Source,
        kind: &str,
        detail: &str,
        missed: u64,
        time_ms: i64,
    ) -> Result<(), StoreError> {
        let ledger = self
            .write_event(source, kind, detail, missed, time_ms)
            .map_err(|error| StoreError::sql(&self.path, &error))?;
        self.ledgers.replace(ledger);
        Ok(())
    }

    fn write_event(
        &mut self,
        source: Source,
        kind: &str,
        detail: &str,
        missed: u64,
        time_ms: i64,
    ) -> rusqlite::Result<Ledger> {
        let mut ledger = self.ledgers.of(source).clone();
        ledger.missed += missed;
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.prepare_cached("INSERT INTO event (time_ms, kind, detail, missed) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![time_ms, kind, detail, missed as i64])?;
        tx.prepare_cached("DELETE FROM event WHERE id <= ?1")?
            .execute([tx.last_insert_rowid() - EVENTS_KEPT])?;
        ledger.save(&tx)?;
        rows::save_metered(&tx, &self.metered)?;
        if !self.rules_ahead {
            rows::save_rule_counters(&tx, &self.rule_counters)?;
        }
        tx.commit()?;
        Ok(ledger)
    }

    /// The interfaces that were metered at the last commit or event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn last_metered(&self) -> Result<Vec<Metered>, StoreError> {
        rows::load_metered(&self.conn).map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// Says how far the counters of the metered interfaces are; the next commit or event writes it along.
    pub fn set_metered(&mut self, metered: Vec<Metered>) {
        self.metered = metered;
    }

    /// The counters of the rules as they were written last, by name.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn last_rule_counters(&self) -> Result<Vec<RuleCounter>, StoreError> {
        rows::load_rule_counters(&self.conn).map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// Says how far the counters of the rules are; the next commit or event writes them along. Whoever commits a batch that
    /// counts up to them sets them just before: an event in between would write them without it. After a commit that failed
    /// no event writes them, until one succeeds. Returns those that were set before: who offers the batch again without
    /// what the rules have counted sets them again. No name may occur twice.
    pub fn set_rule_counters(&mut self, counters: Vec<RuleCounter>) -> Vec<RuleCounter> {
        std::mem::replace(&mut self.rule_counters, counters)
    }

    /// Writes the counters of the rules at once, where they count nothing that a batch is still to bring.
    ///
    /// # Errors
    /// After any error nothing has changed.
    pub fn keep_rule_counters(&mut self, counters: Vec<RuleCounter>) -> Result<(), StoreError> {
        let written = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
            rows::save_rule_counters(&tx, &counters)?;
            tx.commit()
        });
        written.map_err(|error| StoreError::sql(&self.path, &error))?;
        self.rule_counters = counters;
        self.rules_ahead = false;
        Ok(())
    }

    /// Whether each configured unit was said to be blocked, if something was said.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn blocked(&self) -> Result<Vec<Option<bool>>, StoreError> {
        rows::load_blocked(&self.conn, &self.units).map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// Keeps whether a unit, by its place in the configuration, is blocked, or that it is as configured.
    ///
    /// # Errors
    /// After any error nothing has changed.
    pub fn set_blocked(&mut self, unit: u32, blocked: Option<bool>) -> Result<(), StoreError> {
        let known = self.units.len();
        let id = self.units.get(unit as usize).ok_or(StoreError::UnknownUnit { index: unit, known })?;
        rows::save_blocked(&self.conn, *id, blocked).map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// What a unit, by its place in the configuration, has in an account in the hours that begin at or after `from_ms`.
    ///
    /// # Errors
    /// When the database cannot be read; so it is below.
    pub fn used(&self, unit: u32, account: Account, from_ms: i64) -> Result<InOut, StoreError> {
        let used = rows::used(&self.conn, self.units[unit as usize], &self.policies, account, from_ms);
        used.map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// What was last told of a quota of a unit.
    pub fn quota(&self, unit: u32, name: &str) -> Result<Option<ToldQuota>, StoreError> {
        rows::load_quota(&self.conn, self.units[unit as usize], name)
            .map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// Keeps what is told of a quota.
    pub fn set_quota(&mut self, unit: u32, name: &str, told: ToldQuota) -> Result<(), StoreError> {
        rows::save_quota(&self.conn, self.units[unit as usize], name, told)
            .map_err(|error| StoreError::sql(&self.path, &error))
    }

    /// Flows that are neither idle nor cut by the active timeout at `now_ms`.
    pub fn active_flows(&self, now_ms: i64) -> u64 {
        self.cache.alive(now_ms)
    }

    /// Flow records since the store was created, expired ones included.
    pub fn total_flows(&self) -> u64 {
        self.meta.total_flows
    }

    /// What `source` has counted since the store was created.
    pub fn ledger(&self, source: Source) -> &Ledger {
        self.ledgers.of(source)
    }

    /// The id under which this store's node is shown; never 0.
    pub fn node_id(&self) -> u32 {
        self.meta.node_id
    }

    /// The connection, for tests that make it fail.
    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.conn
    }
}
