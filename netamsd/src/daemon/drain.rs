//! From the flow tables into the store: one batch, one transaction.
//!
//! Only when a batch is committed are the tables told. When the store does not take it (disk full, locked), the tables are
//! not turned over again: they keep the batch and go on counting, up to overflow by unit, and it is read and offered again
//! at each tick until it is taken.
//!
//! For queues there is a second account, kept by the rules in front of them ([`Reference`]): what they have counted has come
//! out of a queue, is lost with a reason, or waits. What for some time is in none of these was never queued, and when nothing
//! moves any more, nothing may wait either.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use tracing::{debug, info, warn};

use super::{meter::Meter, quotas::Quotas};
use crate::{
    config::DataSource,
    flow::{Batch, Counters, Source},
    policy::Engine,
    source::{
        Clock,
        kernel::{KernelError, maps},
        nfqueue::{self, LaneInfo, NfqueueError, NfqueueSource, Reading},
        tables::{Backing, Tables, TablesError},
        unix_ms,
    },
    store::{RuleCounter, StoreError, Writer},
};

/// How long packets are nowhere until they are not on their way to a queue any more.
const STILL: Duration = Duration::from_millis(300);

/// Why a drain did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The kernel source.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The source in user space.
    #[error(transparent)]
    Nfqueue(#[from] NfqueueError),
    /// Flow tables.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the rules in front of the queues had counted when that was last committed.
pub struct Reference {
    /// Packets by rule.
    rules: HashMap<String, u64>,
    /// Packets that queues had been too full for, since they were bound.
    full: u64,
    /// Since when nothing moves, and how many packets have waited for all that time, by this account.
    still: Option<(Instant, i64)>,
    /// The fewest packets that were in no queue and nowhere else at each look since then.
    nowhere: Option<(Instant, i64)>,
}

/// A look at that account.
pub struct Look {
    /// `None` when the rules are not there.
    rules: Option<Vec<RuleCounter>>,
    /// Packets that the rules have counted since the last commit.
    packets: u64,
    full: u64,
    waiting: u64,
}

impl Reference {
    /// As the store has it.
    pub fn new(rules: Vec<RuleCounter>) -> Self {
        let rules = rules.into_iter().map(|rule| (rule.name, rule.packets)).collect();
        Self { rules, full: 0, still: None, nowhere: None }
    }

    /// Whether the last daemon had rules.
    pub fn is_known(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether the counter of this rule is in the account.
    fn knows(&self, rule: &nfqueue::RuleCounter) -> bool {
        self.rules.contains_key(&name(rule))
    }

    /// All counters begin at zero.
    pub fn restart(&mut self) {
        self.rules.clear();
    }

    /// Counters that are in no account of ours begin where they are, which is to be kept.
    pub fn begin_at(&mut self, reading: Option<Reading>) -> Vec<RuleCounter> {
        let look = self.look(reading.as_ref(), self.full, 0);
        let counters = look.rules.clone().unwrap_or_default();
        self.committed(look);
        counters
    }

    /// The queues' own counters begin at zero.
    pub fn rebound(&mut self) {
        self.full = 0;
    }

    /// Packets that have come to rules since they were last committed. A counter that went down was reset.
    fn look(&self, reading: Option<&Reading>, full: u64, waiting: u64) -> Look {
        self.look_at(reading.map(|reading| reading.rules.as_slice()), full, waiting)
    }

    fn look_at(&self, rules: Option<&[nfqueue::RuleCounter]>, full: u64, waiting: u64) -> Look {
        let named = |rule: &nfqueue::RuleCounter| RuleCounter {
            name: name(rule),
            packets: rule.packets,
            bytes: rule.bytes,
        };
        let rules = rules
            .map(|rules| rules.iter().filter(|rule| rule.queue).map(named).collect::<Vec<RuleCounter>>());
        let since = |rule: &RuleCounter| {
            let before = self.rules.get(&rule.name).copied().unwrap_or(0);
            rule.packets.checked_sub(before).unwrap_or(rule.packets)
        };
        let packets = rules.iter().flatten().map(since).sum();
        // The kernel's counters are 32 bits wide and wrap. A queue that was lost may have had more than was seen last.
        let full = match full.wrapping_sub(self.full) as u32 {
            back if back > i32::MAX as u32 => 0,
            ahead => ahead.into(),
        };
        Look { rules, packets, full, waiting }
    }

    /// What was settled is in no account.
    fn unsettled(&mut self) {
        (self.still, self.nowhere) = (None, None);
    }

    fn committed(&mut self, look: Look) {
        self.full += look.full;
        if let Some(rules) = look.rules {
            self.rules = rules.into_iter().map(|rule| (rule.name, rule.packets)).collect();
        }
    }

    /// Adds to `batch` what the rules have counted. When nothing moves, or the queues are empty for good (`last`), what
    /// still waits by this account was never queued; less than nothing are segments of super-packets that the rules have
    /// counted as one, or rules that somebody has reset. While packets come and go, as many were never queued as have been
    /// in no queue all the time: a look later than [`STILL`], none of them is on its way.
    fn settle(&mut self, before: &Counters, batch: &mut Counters, look: &Look, last: bool, now: Instant) {
        batch.reference += look.packets;
        batch.queue_full += look.full;
        let waits = outstanding(before) + outstanding(batch);
        let still = look.packets == 0 && batch.queued == 0 && look.waiting == 0;
        let since_still = self.still.filter(|(_, waited)| still && *waited == waits).map(|(since, _)| since);
        if last || since_still.is_some_and(|since| now.duration_since(since) >= STILL) {
            match u64::try_from(waits) {
                Ok(waits) => batch.bypassed += waits,
                Err(_) => batch.reference += waits.unsigned_abs(),
            }
            (self.still, self.nowhere) = (None, None);
            return;
        }
        let mut waits = waits;
        let nowhere = waits.saturating_sub_unsigned(look.waiting);
        let (since, fewest) = self.nowhere.map_or((now, nowhere), |(since, then)| (since, then.min(nowhere)));
        self.nowhere = Some((since, fewest));
        if now.duration_since(since) >= STILL {
            let never = u64::try_from(fewest).unwrap_or(0);
            batch.bypassed += never;
            waits = waits.saturating_sub_unsigned(never);
            self.nowhere = Some((now, nowhere.saturating_sub_unsigned(never)));
        }
        self.still = still.then(|| (since_still.unwrap_or(now), waits));
    }
}

/// The name of a rule in the account.
fn name(rule: &nfqueue::RuleCounter) -> String {
    format!("{} {} {}", rule.family.name(), rule.chain, rule.text)
}

/// Packets that the rules have counted and that are nowhere yet.
pub fn outstanding(counters: &Counters) -> i64 {
    counters.reference.wrapping_sub(counters.queued + counters.not_queued()) as i64
}

impl Meter {
    /// Moves everything counted so far into the store; afterwards `trouble` says whether that went well. `look` asks the
    /// rules for their counters too.
    pub(super) fn drain(&mut self, look: bool) {
        self.reading = None;
        let trouble = self.try_drain(look).err().map(|e| e.to_string());
        match (&self.trouble, &trouble) {
            (Some(old), None) => info!("the store takes batches again; it did not because: {old}"),
            (old, Some(new)) if old.as_ref() != Some(new) => {
                warn!("{new}; counting goes on in the flow tables and nothing is lost");
            }
            _ => {}
        }
        self.trouble = trouble;
        self.settle_verdicts();
        self.rates.sample(&self.totals());
    }

    fn try_drain(&mut self, look: bool) -> Result<(), DrainError> {
        if !self.notices.is_empty() {
            self.remember_metered();
        }
        while let Some((time, source, notice)) = self.notices.first() {
            self.writer.record(*source, notice.kind, &notice.detail, notice.missed, *time)?;
            self.notices.remove(0);
        }
        self.drain_former()?;
        self.drain_kernel()?;
        self.drain_queues(look, false)
    }

    fn drain_former(&mut self) -> Result<(), DrainError> {
        let (engine, quotas, writer, now) = (&self.engine, &mut self.quotas, &mut self.writer, unix_ms());
        while let (Some(tables), Some(kernel)) = (self.former.last_mut(), &self.kernel) {
            empty(tables, || Ok(kernel.clock()?), engine, quotas, writer, now)?;
            if let Some(tables) = self.former.pop() {
                maps::remove(tables.dir()).unwrap_or_else(|e| warn!("cannot remove former tables: {e}"));
            }
        }
        while let Some(tables) = self.nfqueue.former().last_mut() {
            empty(tables, || Ok(NfqueueSource::clock()), engine, quotas, writer, now)?;
            if let Some(tables) = self.nfqueue.former().pop() {
                nfqueue::remove(&tables).unwrap_or_else(|e| warn!("cannot remove former tables: {e}"));
            }
        }
        Ok(())
    }

    fn drain_kernel(&mut self) -> Result<(), DrainError> {
        // A half that was kept back is committed alone; what was counted since is in the other one.
        if self.kernel.as_mut().is_some_and(|kernel| kernel.tables().owes()) {
            self.commit_kernel()?;
        }
        match &self.kernel {
            Some(kernel) if kernel.live_counters() != Counters::default() => self.commit_kernel(),
            _ => Ok(()),
        }
    }

    /// Commits the half that is owed, or else the one that was being filled.
    fn commit_kernel(&mut self) -> Result<(), DrainError> {
        self.remember_metered();
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        kernel.tables().turn()?;
        let clock = kernel.clock()?;
        let half = kernel.tables().half_read();
        let batch = read(kernel.tables(), &clock)?;
        self.see_reached();
        commit(&batch, &self.engine, &mut self.quotas, &mut self.writer, unix_ms())?;
        self.settle_quotas(half);
        match &mut self.kernel {
            Some(kernel) => Ok(kernel.tables().committed()?),
            None => Ok(()),
        }
    }

    /// `last`: no packet comes to the queues any more, and they are empty.
    pub(super) fn drain_queues(&mut self, look: bool, last: bool) -> Result<(), DrainError> {
        let Some(tables) = self.nfqueue.tables() else { return Ok(()) };
        if tables.owes() {
            self.commit_queues(None, last)?;
        }
        let look = if look && self.queues_count() { self.try_look() } else { None };
        if look.is_some() {
            self.nfqueue.catch_up()?;
        }
        let live = self.nfqueue.tables().map(|tables| tables.live_counters()).unwrap_or_default();
        let before = &self.writer.ledger(Source::Nfqueue).counters;
        let moved =
            look.as_ref().is_some_and(|look| look.packets + look.full > 0 || outstanding(before) != 0);
        if live == Counters::default() && !moved {
            return Ok(());
        }
        self.commit_queues(look, last)
    }

    /// Closes the account of rules that are there and that no queue of ours is behind; says whether there are such. The rules
    /// of others than the store's last daemon have no account here.
    pub(super) fn close_former_account(&mut self) -> Result<bool, DrainError> {
        let mut rules = self.nfqueue.find_queue_rules()?;
        let mut seen = HashSet::new();
        rules.retain(|rule| self.reference.knows(rule) && seen.insert(name(rule)));
        if rules.is_empty() {
            return Ok(false);
        }
        self.drain_former()?;
        if self.nfqueue.tables().is_some_and(|tables| tables.owes()) {
            self.commit_queues(None, true)?;
        }
        self.commit_queues(Some(self.reference.look_at(Some(&rules), 0, 0)), true)?;
        Ok(true)
    }

    /// The rules are read before the tables: what has been counted by a rule is then in the tables, lost, or waits.
    fn look(&self) -> Result<(Look, Option<Reading>), NfqueueError> {
        let reading = self.nfqueue.read_rules()?;
        let queues = self.nfqueue.list()?;
        let full = queues.iter().map(|queue| queue.full).sum();
        let waiting = queues.iter().map(LaneInfo::pending).sum();
        Ok((self.reference.look(reading.as_ref(), full, waiting), reading))
    }

    /// What has been counted is committed also when the rules cannot be asked: they go on counting until they can.
    fn try_look(&mut self) -> Option<Look> {
        match self.look() {
            Ok((look, reading)) => {
                self.blind = None;
                self.reading = reading;
                Some(look)
            }
            Err(e) => {
                let e = e.to_string();
                if self.blind.as_ref() != Some(&e) {
                    warn!(
                        "cannot look at the netfilter rules: {e}; what passes the queues by is not told until then"
                    );
                }
                self.blind = Some(e);
                None
            }
        }
    }

    fn commit_queues(&mut self, look: Option<Look>, last: bool) -> Result<(), DrainError> {
        let before = self.writer.ledger(Source::Nfqueue).counters;
        if self.active != DataSource::Kernel {
            self.remember_metered();
        }
        let Some(tables) = self.nfqueue.tables() else { return Ok(()) };
        tables.turn()?;
        let mut batch = read(tables, &NfqueueSource::clock())?;
        let mut former = None;
        if let Some(look) = &look {
            self.reference.settle(&before, &mut batch.counters, look, last, Instant::now());
            former = look.rules.clone().map(|rules| self.writer.set_rule_counters(rules));
        }
        if let Err(e) = commit(&batch, &self.engine, &mut self.quotas, &mut self.writer, unix_ms()) {
            // The batch is offered again without what the rules have counted, which is asked anew then.
            self.reference.unsettled();
            if let Some(former) = former {
                self.writer.set_rule_counters(former);
            }
            return Err(e);
        }
        if let Some(look) = look {
            self.reference.committed(look);
        }
        match self.nfqueue.tables() {
            Some(tables) => Ok(tables.committed()?),
            None => Ok(()),
        }
    }
}

fn read<B: Backing>(tables: &Tables<B>, clock: &Clock) -> Result<Batch, DrainError> {
    let started = Instant::now();
    let batch = tables.read(clock)?;
    debug!("read {} flows of epoch {} in {:?}", batch.flows.len(), batch.epoch, started.elapsed());
    Ok(batch)
}

fn commit(
    batch: &Batch,
    engine: &Engine,
    quotas: &mut Quotas,
    writer: &mut Writer,
    now: i64,
) -> Result<(), DrainError> {
    let charges = engine.charge(batch, now);
    if writer.commit(batch, &charges, now)? {
        quotas.add(engine, &charges);
    }
    Ok(())
}

/// Commits both halves of tables that nobody fills any more.
fn empty<B: Backing>(
    tables: &mut Tables<B>,
    clock: impl Fn() -> Result<Clock, DrainError>,
    engine: &Engine,
    quotas: &mut Quotas,
    writer: &mut Writer,
    now: i64,
) -> Result<(), DrainError> {
    let halves = if tables.owes() { 2 } else { 1 };
    for _ in 0..halves {
        tables.turn()?;
        commit(&read(tables, &clock()?)?, engine, quotas, writer, now)?;
        tables.committed()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
