//! Checks of the policies: each by itself, then how they, and units, refer to each other.

use std::collections::{HashMap, HashSet};

use super::{Config, PolicyConfig, PolicyProblem, Problem, UnitConfig, UnitProblem, cycle};
use crate::policy::{
    Engine, EngineSetup, MAX_FLOW_QUOTAS, MAX_LIST, MAX_UNITS, PeriodName, Reference, Undecided, UnitId,
};

/// Hard quotas of all units of an address.
pub(super) const MAX_SIDE_QUOTAS: usize = MAX_FLOW_QUOTAS / 2;

/// The largest number of each key of numbers.
fn largest(key: &str) -> u32 {
    match key {
        "vlan" | "vlan_inner" => 4094,
        "vni" => 0xff_ffff,
        "gre_key" | "as" => u32::MAX,
        _ => u16::MAX.into(),
    }
}

/// Checks all policies, and the lists of units.
pub(super) fn check(config: &Config) -> Result<(), Problem> {
    let fault = |policy: &PolicyConfig| {
        let name = policy.name.clone();
        move |problem| Problem::Policy { name, problem }
    };
    let mut by_name = HashMap::new();
    for policy in &config.policies {
        check_one(policy, config).map_err(fault(policy))?;
        if by_name.insert(policy.name.as_str(), policy).is_some() {
            return Err(fault(policy)(PolicyProblem::Duplicate));
        }
    }
    for policy in &config.policies {
        let parts = policy.policy_or.iter().chain(&policy.policy_and);
        if let Some(unknown) = parts.clone().find(|part| !by_name.contains_key(part.name.as_str())) {
            return Err(fault(policy)(PolicyProblem::UnknownPolicy(unknown.name.clone())));
        }
        if let Some(part) = parts.clone().find(|part| part.stop) {
            return Err(fault(policy)(PolicyProblem::Stop(part.to_string())));
        }
    }
    let parts = |name: &str| {
        let parts = by_name.get(name).map(|policy| policy.policy_or.iter().chain(&policy.policy_and));
        parts.into_iter().flatten().map(|part| part.name.as_str()).collect()
    };
    if let Some(cycle) = cycle::find(config.policies.iter().map(|policy| policy.name.as_str()), parts) {
        let (name, problem) = (cycle[0].to_owned(), PolicyProblem::Cycle(cycle.join(" -> ")));
        return Err(Problem::Policy { name, problem });
    }
    for unit in &config.units {
        check_lists(unit, &by_name)
            .and_then(|()| check_quotas(unit))
            .map_err(|problem| Problem::Unit { name: unit.name.clone(), problem })?;
    }
    check_size(config)
}

fn check_one(policy: &PolicyConfig, config: &Config) -> Result<(), PolicyProblem> {
    if policy.name.is_empty() {
        return Err(PolicyProblem::EmptyName);
    }
    if policy.name.starts_with(['!', '%']) || policy.name.contains(char::is_control) {
        return Err(PolicyProblem::Name);
    }
    for (key, numbers) in policy.numbers() {
        let max = largest(key);
        if let Some(beyond) = numbers.iter().find(|numbers| numbers.high > max) {
            return Err(PolicyProblem::Range { key, value: beyond.high, max });
        }
    }
    if policy.systems.iter().any(|numbers| numbers.low == 0) {
        return Err(PolicyProblem::SystemZero);
    }
    if !policy.systems.is_empty() && config.as_file.is_none() {
        return Err(PolicyProblem::NoSystems);
    }
    let unknown = policy.units.iter().find(|name| config.units.iter().all(|unit| unit.name != **name));
    unknown.map_or(Ok(()), |name| Err(PolicyProblem::UnknownUnit(name.clone())))
}

fn check_lists(unit: &UnitConfig, by_name: &HashMap<&str, &PolicyConfig>) -> Result<(), UnitProblem> {
    let fw = unit.fw_policy.as_deref().unwrap_or_default();
    for (key, list) in [("acct_policy", unit.acct_policy.as_slice()), ("fw_policy", fw)] {
        let unknown = |reference: &&Reference| !by_name.contains_key(reference.name.as_str());
        if let Some(reference) = list.iter().find(unknown) {
            return Err(UnitProblem::UnknownPolicy { key, policy: reference.name.clone() });
        }
        let opposite = |a: &&Reference| list.iter().any(|b| a.name == b.name && a.not != b.not);
        if let Some(reference) = list.iter().find(opposite).filter(|_| key == "acct_policy") {
            return Err(UnitProblem::Opposite(reference.name.clone()));
        }
        if list.len() > MAX_LIST {
            return Err(UnitProblem::LongList { key, length: list.len() });
        }
    }
    if unit.fw_policy.as_ref().is_some_and(Vec::is_empty) {
        return Err(UnitProblem::EmptyList);
    }
    Ok(())
}

fn check_quotas(unit: &UnitConfig) -> Result<(), UnitProblem> {
    let mut names = HashSet::new();
    for quota in &unit.quotas {
        if quota.limit.0 == 0 {
            return Err(UnitProblem::NoLimit);
        }
        if quota.warn == 0 || quota.warn > 100 {
            return Err(UnitProblem::Warning(quota.warn));
        }
        if !(1..=31).contains(&quota.billing_day) {
            return Err(UnitProblem::BillingDay(quota.billing_day));
        }
        if quota.billing_day != 1 && quota.period != PeriodName::Month {
            return Err(UnitProblem::BillingPeriod);
        }
        if let Some(policy) = &quota.policy
            && unit.acct_policy.iter().all(|reference| reference.name != *policy)
        {
            return Err(UnitProblem::QuotaPolicy(policy.clone()));
        }
        if !names.insert(quota.to_string()) {
            return Err(UnitProblem::QuotaTwice(quota.to_string()));
        }
    }
    Ok(())
}

/// Policies are short enough, and no address belongs to more units than are looked at.
fn check_size(config: &Config) -> Result<(), Problem> {
    let setup = EngineSetup {
        units: &config.units,
        policies: &config.policies,
        files: &config.files,
        zone: config.timezone,
        undecided: Undecided::default(),
    };
    let engine = Engine::new(setup).map_err(|e| Problem::Policy {
        name: config.policies[e.policy].name.clone(),
        problem: PolicyProblem::Long(e.rules),
    })?;
    let fault = |(unit, problem): (UnitId, UnitProblem)| {
        Err(Problem::Unit { name: config.units[unit.0 as usize].name.clone(), problem })
    };
    let hard = |unit: UnitId| config.units[unit.0 as usize].quotas.iter().filter(|quota| quota.hard).count();
    match (engine.units().most_of_a_class(), engine.units().most_of_a_side(hard)) {
        (Some((unit, units)), _) if units > MAX_UNITS => fault((unit, UnitProblem::Crowded(units))),
        (_, Some((unit, quotas))) if quotas > MAX_SIDE_QUOTAS => {
            fault((unit, UnitProblem::ManyQuotas(quotas)))
        }
        _ => Ok(()),
    }
}
