//! Quotas: how much is used, what that means, and who is told.
//!
//! The use of a quota is the sum of the unit's hours since the period began, as the store has it; here it is only kept up
//! with what is committed. So it is the unit's, whatever happens to the daemon, its configuration or the source.

use std::time::{Duration, Instant};

use tracing::warn;

use super::{meter::Meter, notify::Told};
use crate::{
    flow::UnitCharge,
    policy::{Engine, QuotaState, UnitId},
    source::unix_ms,
    store::{StoreError, Writer},
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
            let told = told.filter(|(start_ms, _)| *start_ms == one.start_ms);
            one.state = told
                .and_then(|(_, state)| QuotaState::ALL.get(usize::from(state)).copied())
                .unwrap_or_default();
            uses.push(one);
        }
        Ok(Self { uses, ..Self::default() })
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
    Ok(Use { used, start_ms, end_ms: period.end(engine.zone(), now_ms), state: QuotaState::Under })
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
        let mut changed = Vec::new();
        for (index, quota) in self.engine.quotas().iter().enumerate() {
            let one = &self.quotas.uses[index];
            let state = quota.config.state(one.used);
            if state != one.state {
                changed.push((index, state));
            }
        }
        for (index, state) in changed {
            self.tell(index, state)?;
        }
        self.enforce_quotas();
        Ok(())
    }

    fn tell(&mut self, index: usize, state: QuotaState) -> Result<(), StoreError> {
        let quota = &self.engine.quotas()[index];
        let one = self.quotas.uses[index];
        let name = quota.config.to_string();
        self.writer.set_quota(quota.unit.0, &name, one.start_ms, state as u8)?;
        let told = Told {
            unit: self.engine.units().names()[quota.unit.0 as usize].clone(),
            quota: name,
            state: state.name(),
            used: one.used,
            limit: quota.config.limit.0,
            hard: quota.config.hard,
            end: self.engine.zone().show(one.end_ms),
        };
        self.quotas.uses[index].state = state;
        let kind = match state {
            QuotaState::Under => "quota_return",
            QuotaState::Warned => "quota_warning",
            QuotaState::Over => "quota_over",
        };
        self.announce(kind, told.sentence());
        self.notify.tell(told);
        Ok(())
    }

    /// In mode tee nothing is blocked, but explained as if it were.
    fn enforce_quotas(&mut self) {
        let mut over = vec![false; self.engine.units().names().len()];
        for (quota, one) in self.engine.quotas().iter().zip(&self.quotas.uses) {
            over[quota.unit.0 as usize] |= quota.config.hard && one.state == QuotaState::Over;
        }
        let is_over = self.engine.over_quota();
        if is_over == over {
            return;
        }
        let set = |engine: &Engine| {
            for (unit, over) in (0..).map(UnitId).zip(&over) {
                engine.set_over_quota(unit, *over);
            }
        };
        if let Err(e) = self.change_verdicts(set) {
            warn!("quotas: {e}");
        }
    }
}
