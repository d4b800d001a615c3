//! The policy engine: which units and policies a packet belongs to, and whether it passes.
//!
//! Compiled once from a configuration. What changes meanwhile is its [`State`]: who is blocked, which schedules hold, what
//! becomes of packets that nobody decides.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use kmod_bpf::{unit_flag, word};

use super::compile::{Compiled, Files, TooLong, compile};
use super::conditions::{PolicyConfig, Reference};
use super::program::{Program, Side, State, Subject, UnitSays, Verdict};
use super::quota::QuotaConfig;
use super::schedule::Schedule;
use super::unit::UnitConfig;
use super::units::UnitId;
use super::{Units, Zone};
use crate::flow::{Account, FlowKey, Prefix, Source};

/// What an engine is made of.
#[derive(Debug, Clone, Copy)]
pub struct EngineSetup<'a> {
    /// The units, in the order of the configuration.
    pub units: &'a [UnitConfig],
    /// The policies, in the order of the configuration.
    pub policies: &'a [PolicyConfig],
    /// The files that policies name.
    pub files: &'a Files,
    /// By whose clock schedules hold.
    pub zone: Zone,
    /// What becomes of packets that nobody decides.
    pub undecided: Undecided,
}

/// Whether packets that no list decides are dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undecided {
    /// If neither side is a unit.
    pub drop_all: bool,
    /// If a side is a unit.
    pub drop_local: bool,
}

impl Undecided {
    fn flags(self) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.drop_all, unit_flag::DROP_ALL) | flag(self.drop_local, unit_flag::DROP_LOCAL)
    }
}

/// A policy in the list of a unit, by which traffic is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    /// The policy's place in the configuration.
    pub policy: u32,
    pub not: bool,
    pub stop: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Engine {
    units: Units,
    program: Program,
    state: RwLock<State>,
    /// Before the last change.
    former: RwLock<State>,
    pub(super) zone: Zone,
    pub(super) schedules: Vec<Schedule>,
    policy_names: Vec<String>,
    /// First rule of each policy.
    policies: Vec<u32>,
    /// Of each unit.
    accounts: Vec<Vec<Listed>>,
    fw_lists: Vec<Vec<String>>,
    quotas: Vec<Quota>,
    denied: Vec<bool>,
}

/// A quota of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Whose.
    pub unit: UnitId,
    /// Which account of it.
    pub account: Account,
    /// How much of that, and when.
    pub config: QuotaConfig,
}

impl Engine {
    /// Compiles a configuration; nobody is blocked, and no schedule holds until [`tick`](Self::tick).
    ///
    /// # Errors
    /// When a policy is too long.
    pub fn new(setup: EngineSetup<'_>) -> Result<Self, TooLong> {
        let Compiled { program, policies, mut flags, schedules } =
            compile(setup.policies, setup.units, setup.files)?;
        let places: HashMap<&str, u32> =
            (0..).zip(setup.policies).map(|(place, policy)| (policy.name.as_str(), place)).collect();
        let accounts = |unit: &UnitConfig| {
            let account = |r: &Reference| {
                Some(Listed { policy: *places.get(r.name.as_str())?, not: r.not, stop: r.stop })
            };
            unit.acct_policy.iter().filter_map(account).collect()
        };
        let fw_list = |unit: &UnitConfig| unit.fw_policy.iter().flatten().map(ToString::to_string).collect();
        let quota = |(unit, quota): (UnitId, &QuotaConfig)| {
            let account = match &quota.policy {
                Some(policy) => Account::Policy(*places.get(policy.as_str())?),
                None => Account::Traffic,
            };
            Some(Quota { unit, account, config: quota.clone() })
        };
        let of_units = (0..).map(UnitId).zip(setup.units);
        let quotas = of_units.flat_map(|(id, unit)| unit.quotas.iter().map(move |quota| (id, quota)));
        let quotas = quotas.filter_map(quota).collect();
        flags[0] = setup.undecided.flags();
        let state = State { flags, schedules: vec![false; schedules.len()] };
        Ok(Self {
            units: Units::new(setup.units),
            program,
            former: RwLock::new(state.clone()),
            state: RwLock::new(state),
            zone: setup.zone,
            schedules,
            policy_names: setup.policies.iter().map(|policy| policy.name.clone()).collect(),
            policies,
            accounts: setup.units.iter().map(accounts).collect(),
            fw_lists: setup.units.iter().map(fw_list).collect(),
            quotas,
            denied: setup.units.iter().map(|unit| unit.deny).collect(),
        })
    }

    /// Who has which addresses.
    pub fn units(&self) -> &Units {
        &self.units
    }

    /// The compiled policies.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Names of the policies, in the order of the configuration.
    pub fn policy_names(&self) -> &[String] {
        &self.policy_names
    }

    /// The quotas of all units, in the order of the configuration.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// By whose clock hours and schedules are.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// What is in force now.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        // A writer does not panic half-way: it sets single values.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; whether that makes a difference.
    fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = state.clone();
        change(&mut state);
        let changed = *state != before;
        if changed {
            *self.former.write().unwrap_or_else(PoisonError::into_inner) = before;
        }
        changed
    }

    /// Why packets of this flow have been dropped, now or before the last change; `None` if it must have been before that.
    pub(super) fn reason(&self, subject: &Subject<'_>) -> Option<Verdict> {
        // In the order of `change`.
        let state = self.state();
        let former = self.former.read().unwrap_or_else(PoisonError::into_inner);
        let mut verdicts = [&*state, &*former].into_iter().map(|state| self.program.verdict(subject, state));
        verdicts.find(|verdict| *verdict != Verdict::Pass)
    }

    /// Blocks a unit, or no longer; whether that changes something.
    pub fn set_blocked(&self, unit: UnitId, blocked: bool) -> bool {
        self.change(|state| set(&mut state.flags, unit, unit_flag::BLOCKED, blocked))
    }

    /// Whether the configuration has a unit blocked.
    pub fn is_denied(&self, unit: UnitId) -> bool {
        self.denied.get(unit.0 as usize).copied().unwrap_or(false)
    }

    /// Whether each unit is blocked.
    pub fn blocked(&self) -> Vec<bool> {
        self.with_flag(unit_flag::BLOCKED)
    }

    /// Whether each unit is over its quota.
    pub fn over_quota(&self) -> Vec<bool> {
        self.with_flag(unit_flag::OVER_QUOTA)
    }

    fn with_flag(&self, flag: u32) -> Vec<bool> {
        self.state().flags.iter().skip(1).map(|flags| flags & flag != 0).collect()
    }

    /// Says which units are over a quota; whether that changes something.
    pub fn set_over_quota(&self, over: &[bool]) -> bool {
        self.change(|state| {
            for (unit, over) in (0..).map(UnitId).zip(over) {
                set(&mut state.flags, unit, unit_flag::OVER_QUOTA, *over);
            }
        })
    }

    /// Says what becomes of packets that nobody decides.
    pub fn set_undecided(&self, undecided: Undecided) {
        self.change(|state| state.flags[0] = undecided.flags());
    }

    /// Lets the schedules hold as they do at `now_ms`.
    pub fn tick(&self, now_ms: i64) {
        self.change(|state| state.schedules = self.schedules_at(now_ms));
    }

    /// Whether [`tick`](Self::tick) would change something.
    pub fn would_tick(&self, now_ms: i64) -> bool {
        self.state().schedules != self.schedules_at(now_ms)
    }

    /// Which schedules hold at a time, milliseconds UTC since 1970.
    pub(super) fn schedules_at(&self, ms: i64) -> Vec<bool> {
        self.schedules.iter().map(|schedule| schedule.holds(&self.zone, ms)).collect()
    }

    /// The first time after `ms` at which a schedule may change.
    pub fn next_change(&self, ms: i64) -> Option<i64> {
        self.schedules.iter().filter_map(|schedule| schedule.next_change(&self.zone, ms)).min()
    }

    /// A packet of this flow, with the units of its sides.
    pub fn subject<'a>(&self, key: &'a FlowKey, source: Source) -> Subject<'a> {
        let scope = key.scope();
        Subject { key, source, units: [self.units.of(scope, key.src), self.units.of(scope, key.dst)] }
    }

    /// What becomes of a packet of this flow.
    pub fn verdict(&self, key: &FlowKey, source: Source) -> Verdict {
        self.program.verdict(&self.subject(key, source), &self.state())
    }

    /// Whether any unit counts traffic by policies.
    pub(super) fn has_accounts(&self) -> bool {
        self.accounts.iter().any(|accounts| !accounts.is_empty())
    }

    /// The policies, by their places in the configuration, by which a unit counts a packet on its side.
    pub(super) fn counted_by(
        &self,
        unit: UnitId,
        subject: &Subject<'_>,
        side: Side,
        schedules: &[bool],
        found: &mut Vec<u32>,
    ) {
        found.clear();
        for account in self.accounts.get(unit.0 as usize).into_iter().flatten() {
            let first = self.policies[account.policy as usize];
            if self.program.policy_holds(first, subject, side, schedules) == account.not {
                continue;
            }
            found.push(account.policy);
            if account.stop {
                break;
            }
        }
    }

    /// For each class of the kernel's tables, by number: where its units begin among the words, 0 if there are none; and the
    /// words, those of the program first. `prefixes` are those of the classes, from 1.
    pub fn class_words(&self, prefixes: &[Prefix]) -> (Vec<u32>, Vec<u32>) {
        let mut words = self.program.words.clone();
        let mut begins = vec![0];
        for prefix in prefixes {
            let units = self.units.of_class(self.units.class_in(prefix.scope, prefix.address));
            begins.push(if units.is_empty() { 0 } else { words.len() as u32 });
            let begin = words.len();
            words.extend(units.iter().map(|(unit, _)| unit.0 + 1));
            if let Some(last) = words[begin..].last_mut() {
                *last |= word::LAST;
            }
        }
        (begins, words)
    }

    /// Why a packet of this flow is counted and judged as it is at `ms`.
    pub fn explain(&self, key: &FlowKey, source: Source, ms: i64) -> Explanation {
        let subject = self.subject(key, source);
        let state = State { schedules: self.schedules_at(ms), ..self.state().clone() };
        let mut units = Vec::new();
        let mut counted = Vec::new();
        for side in Side::BOTH {
            for unit in subject.units_of(side) {
                self.counted_by(*unit, &subject, side, &state.schedules, &mut counted);
                let says = self.program.unit_says(*unit, &subject, side, &state);
                let list = &self.fw_lists[unit.0 as usize];
                units.push(UnitExplanation {
                    unit: *unit,
                    side,
                    says,
                    policy: match says {
                        UnitSays::Pass(place) => list.get(place).cloned(),
                        _ => None,
                    },
                    counted_by: counted.iter().map(|p| self.policy_names[*p as usize].clone()).collect(),
                });
            }
        }
        Explanation { verdict: self.program.verdict(&subject, &state), units }
    }
}

/// Sets a flag of a unit or takes it away; that of unit 0 is the first.
fn set(flags: &mut [u32], unit: UnitId, flag: u32, on: bool) {
    if let Some(flags) = flags.get_mut(unit.0 as usize + 1) {
        *flags = if on { *flags | flag } else { *flags & !flag };
    }
}

/// Why a packet is counted and judged as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What becomes of it.
    pub verdict: Verdict,
    /// What each of its units says, those of the source first.
    pub units: Vec<UnitExplanation>,
}

/// What one unit has to do with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitExplanation {
    /// Which unit.
    pub unit: UnitId,
    /// Whose address belongs to it.
    pub side: Side,
    /// What it says.
    pub says: UnitSays,
    /// The policy that lets the packet pass, as in the list.
    pub policy: Option<String>,
    /// Names of the policies by which it counts the packet.
    pub counted_by: Vec<String>,
}
