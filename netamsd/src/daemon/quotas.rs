//! Quotas: how much is used, what that means, and who is told.
//!
//! The use of a quota is the sum of the unit's hours since the period began, as the store has it; here it is only kept up
//! with what is committed. So it is the unit's, whatever happens to the daemon, its configuration or the source.

use std::time::{Duration, Instant};

use tracing::warn;

use super::{meter::Meter, notify::Told};
use crate::{
    config::Mode,
    flow::UnitCharge,
    policy::{Engine, Quota, QuotaState},
    source::{
        kernel::{KernelSource, Limit},
        unix_ms,
    },
    store::{StoreError, ToldQuota, Writer},
};

/// A wall clock that leaves the monotonic one by more than this between two looks has jumped.
const JUMP_MS: u64 = 10_000;
/// After that no period begins or ends for so long.
const SETTLE: Duration = Duration::from_secs(60);

/// The use of one quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes used in the period.
    pub used: u64,
    /// When the period began, milliseconds UTC since 1970.
    pub start_ms: i64,
    /// When it ends.
    pub end_ms: i64,
    /// What that means, as it was told last.
    pub state: QuotaState,
    /// A packet has found no room in it: the use stays a little below the limit then.
    reached: bool,
}

/// The uses of all quotas, in the order of the engine.
#[derive(Default)]
pub struct Quotas {
    uses: Vec<Use>,
    /// Both clocks at the last look.
    last: Option<(i64, Instant)>,
    jumped: Option<Instant>,
}

impl Quotas {
    /// As the store has them.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(engine: &Engine, writer: &Writer, now_ms: i64) -> Result<Self, StoreError> {
        let mut uses = Vec::new();
        for quota in engine.quotas() {
            let mut one = begin(engine, uses.len(), writer, now_ms)?;
            let told = writer.quota(quota.unit.0, &quota.config.to_string())?;
            let same = |told: &ToldQuota| told.start_ms == one.start_ms && told.limit == quota.config.limit.0;
            let state =
                told.filter(same).and_then(|told| QuotaState::ALL.get(usize::from(told.state)).copied());
            one.state = state.unwrap_or_default();
            one.reached = one.state == QuotaState::Over;
            uses.push(one);
        }
        Ok(Self { uses, ..Self::default() })
    }

    /// Which units are over a hard quota.
    pub fn over(&self, engine: &Engine) -> Vec<bool> {
        let mut over = vec![false; engine.units().names().len()];
        for (quota, one) in engine.quotas().iter().zip(&self.uses) {
            over[quota.unit.0 as usize] |= quota.config.hard && one.state == QuotaState::Over;
        }
        over
    }

    /// How the hard ones stand, for the programs.
    pub fn limits(&self, engine: &Engine) -> Vec<Limit> {
        let hard = engine.quotas().iter().zip(&self.uses).filter(|(quota, _)| quota.config.hard);
        let limit = |(quota, one): (&Quota, &Use)| Limit {
            limit: quota.config.limit.0,
            used: one.used,
            start_ms: one.start_ms,
        };
        hard.map(limit).collect()
    }

    /// The uses.
    pub fn uses(&self) -> &[Use] {
        &self.uses
    }

    /// Adds what was committed, if a period that is counted now has it.
    pub fn add(&mut self, engine: &Engine, charges: &[UnitCharge]) {
        for (quota, one) in engine.quotas().iter().zip(&mut self.uses) {
            let from = charges.partition_point(|charge| charge.unit < quota.unit.0);
            let its = charges[from..].iter().take_while(|charge| charge.unit == quota.unit.0);
            let counted =
                its.filter(|charge| charge.account == quota.account && charge.hour_ms >= one.start_ms);
            one.used += counted.map(|charge| quota.config.direction.bytes(&charge.counts)).sum::<u64>();
        }
    }

    /// Whether periods may begin and end by the wall clock now.
    fn is_sane(&mut self, now_ms: i64) -> bool {
        let now = Instant::now();
        let expected =
            |(last_ms, last): (i64, Instant)| last_ms + now.duration_since(last).as_millis() as i64;
        if self.last.is_some_and(|last| expected(last).abs_diff(now_ms) > JUMP_MS) {
            self.jumped = Some(now);
        }
        self.last = Some((now_ms, now));
        self.jumped.is_none_or(|jumped| now.duration_since(jumped) >= SETTLE)
    }
}

/// The period that contains `now_ms`, and what was used in it.
fn begin(engine: &Engine, index: usize, writer: &Writer, now_ms: i64) -> Result<Use, StoreError> {
    let quota = &engine.quotas()[index];
    let period = quota.config.period();
    let start_ms = period.start(engine.zone(), now_ms);
    let counts = writer.used(quota.unit.0, quota.account, start_ms)?;
    let used = quota.config.direction.bytes(&counts);
    let end_ms = period.end(engine.zone(), now_ms);
    Ok(Use { used, start_ms, end_ms, ..Use::default() })
}

impl Meter {
    /// Lets periods begin and end, tells what has changed, and has units blocked that are over a hard quota, or no longer.
    pub(super) fn watch_quotas(&mut self) {
        if self.engine.quotas().is_empty() {
            return;
        }
        if let Err(e) = self.try_watch_quotas() {
            warn!("quotas: {e}");
        }
    }

    fn try_watch_quotas(&mut self) -> Result<(), StoreError> {
        let now = unix_ms();
        if self.quotas.is_sane(now) {
            for index in 0..self.quotas.uses.len() {
                let one = &mut self.quotas.uses[index];
                if !(one.start_ms..one.end_ms).contains(&now) {
                    let told = one.state;
                    // What it was is told with what it is now.
                    *one = Use { state: told, ..begin(&self.engine, index, &self.writer, now)? };
                }
            }
        }
        self.settle_quotas(None);
        self.see_reached();
        let mut changed = Vec::new();
        for (index, quota) in self.engine.quotas().iter().enumerate() {
            let one = &self.quotas.uses[index];
            let state = if one.reached { QuotaState::Over } else { quota.config.state(one.used) };
            if state != one.state {
                changed.push((index, state));
            }
        }
        for (index, state) in changed {
            self.tell(index, state);
        }
        self.enforce_quotas();
        Ok(())
    }

    /// Also when the store does not take it: then it is told again after a restart.
    fn tell(&mut self, index: usize, state: QuotaState) {
        let quota = &self.engine.quotas()[index];
        let one = self.quotas.uses[index];
        let name = quota.config.to_string();
        let limit = quota.config.limit.0;
        let kept = ToldQuota { start_ms: one.start_ms, state: state as u8, limit };
        if let Err(e) = self.writer.set_quota(quota.unit.0, &name, kept) {
            warn!("what is told of a quota is not kept: {e}");
        }
        let told = Told {
            unit: self.engine.units().names()[quota.unit.0 as usize].clone(),
            quota: name,
            state: state.name(),
            used: one.used,
            limit,
            hard: quota.config.hard && self.mode == Mode::Divert,
            end: self.engine.zone().show(one.end_ms),
        };
        self.quotas.uses[index].state = state;
        self.quotas.uses[index].reached |= state == QuotaState::Over;
        let kind = match state {
            QuotaState::Under => "quota_return",
            QuotaState::Warned => "quota_warning",
            QuotaState::Over => "quota_over",
        };
        self.announce(kind, told.sentence());
        self.notify.tell(told);
    }

    /// In mode tee nothing is blocked, but explained as if it were.
    fn enforce_quotas(&mut self) {
        let over = self.quotas.over(&self.engine);
        if self.engine.over_quota() == over && !self.over_unsaid {
            return;
        }
        self.over_unsaid = false;
        if let Err(e) = self.change_verdicts(|engine| {
            engine.set_over_quota(&over);
        }) {
            warn!("quotas: {e}");
        }
    }

    /// Tells the programs how much room there is; the half is one whose counts have just been committed.
    pub(super) fn settle_quotas(&mut self, half: Option<u8>) {
        let limits = self.quotas.limits(&self.engine);
        if let Some(kernel) = self.kernel.as_mut().filter(|_| !limits.is_empty()) {
            kernel.settle_quotas(half, &limits);
        }
    }

    /// Learns which quotas the programs have found without room: packets are dropped by them that no state accounts for yet.
    pub(super) fn see_reached(&mut self) {
        let reached = self.kernel.as_ref().map(KernelSource::reached_quotas).unwrap_or_default();
        let hard = |(quota, _): &(&Quota, &mut Use)| quota.config.hard;
        let uses = self.engine.quotas().iter().zip(&mut self.quotas.uses).filter(hard);
        let mut over = self.engine.over_quota();
        for ((quota, one), reached) in uses.zip(reached) {
            if reached && !one.reached {
                one.reached = true;
                over[quota.unit.0 as usize] = true;
            }
        }
        // At once, so that what is committed next is dropped by it; the programs do so already.
        self.over_unsaid |= self.engine.set_over_quota(&over);
    }
}
