//! What can be said only when all units are known: defaults, groups, and units that netamsd would refuse.

use std::collections::HashSet;

use super::note::Notes;
use super::policy::Policy;
use super::toml::Value;
use super::unit::{Kind, Unit};

/// `default acct-policy` and `default fw-policy`.
#[derive(Debug, Default)]
pub struct Defaults {
    /// Line, and policies for `acct_policy`.
    pub acct: Option<(usize, Vec<String>)>,
    /// Line, and policies for `fw_policy`.
    pub fw: Option<(usize, Vec<String>)>,
}

/// Writes the defaults into the units that are defined after them.
pub fn defaults(defaults: &Defaults, units: &mut [Unit], notes: &mut Notes) {
    for (key, default) in [("acct-policy", &defaults.acct), ("fw-policy", &defaults.fw)] {
        let Some((line, policies)) = default else { continue };
        let mut count = 0;
        for unit in units.iter_mut().filter(|unit| unit.line > *line) {
            let list = if key == "fw-policy" { &mut unit.fw } else { &mut unit.acct };
            if !list.nodefault {
                let missing = policies.iter().filter(|policy| !list.policies.contains(policy)).cloned();
                list.policies.splice(0..0, missing.collect::<Vec<_>>());
                count += 1;
            }
        }
        notes.add(
            *line,
            format!(
                "`default {key}` is written into the lists of {count} units; give it to new ones by hand"
            ),
        );
    }
}

/// Makes the kinds fit the addresses, and members of parents.
pub fn units(units: &mut Vec<Unit>, notes: &mut Notes) {
    for unit in units.iter_mut() {
        fit_kind(unit, notes);
        count_quotas(unit, notes);
        for reason in unit.denied.iter().filter(|reason| !matches!(reason.as_str(), "" | "block")) {
            let text = format!("`sys-deny-{reason}` is kept as `deny = true`, which only you lift");
            notes.add(unit.line, format!("unit {}: {text}", unit.name));
        }
    }
    remove_empty(units, notes);
    let memberships: Vec<(String, Vec<String>)> =
        units.iter().map(|unit| (unit.name.clone(), unit.parents.clone())).collect();
    for group in units.iter_mut().filter(|unit| unit.kind == Kind::Group) {
        let of_it = memberships.iter().filter(|(_, parents)| parents.contains(&group.name));
        group.members.extend(of_it.map(|(name, _)| name.clone()));
    }
}

/// What a quota is by has to be counted.
fn count_quotas(unit: &mut Unit, notes: &mut Notes) {
    let list = &mut unit.acct.policies;
    for policy in unit.quotas.iter().filter_map(|quota| quota.policy.as_ref()) {
        if list.iter().all(|listed| listed.trim_start_matches(['!', '%']) != policy) {
            list.insert(0, policy.clone());
            let text = format!("`{policy}` is added to its `acct_policy`, since a quota is by it");
            notes.add(unit.line, format!("unit {}: {text}", unit.name));
        }
    }
}

fn fit_kind(unit: &mut Unit, notes: &mut Notes) {
    let is_prefix = unit.addresses.iter().any(|net| net.prefix_len() < net.max_prefix_len());
    let (kind, why) = match unit.kind {
        Kind::Host | Kind::User | Kind::Cluster if is_prefix => (Kind::Net, "it has a prefix"),
        Kind::Host | Kind::User if unit.addresses.len() > 1 => (Kind::Cluster, "it has several addresses"),
        _ => return,
    };
    notes.add(
        unit.line,
        format!("unit {}: {why}, so the {} became a {}", unit.name, unit.kind.name(), kind.name()),
    );
    unit.kind = kind;
}

/// Takes out units without addresses, and groups without members; and parents that are no groups.
fn remove_empty(units: &mut Vec<Unit>, notes: &mut Notes) {
    let groups: HashSet<String> =
        units.iter().filter(|unit| unit.kind == Kind::Group).map(|unit| unit.name.clone()).collect();
    for unit in units.iter_mut() {
        let (parents, others) =
            std::mem::take(&mut unit.parents).into_iter().partition(|name| groups.contains(name));
        unit.parents = parents;
        for other in others as Vec<String> {
            notes.add(
                unit.line,
                format!("unit {}: its parent `{other}` is no group, so it is not a member", unit.name),
            );
        }
    }
    loop {
        let parents: HashSet<String> = units.iter().flat_map(|unit| unit.parents.iter().cloned()).collect();
        let is_empty = |unit: &Unit| match unit.kind {
            Kind::Group => !parents.contains(&unit.name),
            _ => unit.addresses.is_empty(),
        };
        let Some(at) = units.iter().position(is_empty) else { return };
        let gone = units.remove(at);
        let lacks = if gone.kind == Kind::Group { "members" } else { "an address" };
        notes.add(gone.line, format!("unit {}: it is left out, for it lacks {lacks}", gone.name));
    }
}

/// Takes units that were left out, from the policies that refer to them.
pub fn policies(policies: &mut [Policy], units: &[Unit], notes: &mut Notes) {
    for policy in policies {
        let known = |value: &Value| units.iter().any(|unit| Value::from(&unit.name) == *value);
        if policy.retain("units", known) {
            notes.add(policy.line, format!("policy {}: it asks for a unit that is left out", policy.name));
        }
    }
}

/// NeTAMS lets nothing local pass to a unit that has no policies at all, netamsd does.
pub fn unlisted(units: &[Unit], notes: &mut Notes) {
    for unit in units.iter().filter(|unit| unit.kind != Kind::Group) {
        let has_lists = !unit.acct.policies.is_empty() || !unit.fw.policies.is_empty();
        if !has_lists && !unit.flags.contains(&"no_local_pass") {
            let text = "NeTAMS drops the traffic of a unit without policies; write `no_local_pass = true` to keep that";
            notes.add(unit.line, format!("unit {}: {text}", unit.name));
        }
    }
}
