//! Checks of the units: each by itself, then how they refer to each other.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::{Charge, Problem, UnitConfig, UnitKind, UnitProblem, cycle};

const VLANS: RangeInclusive<u32> = 1..=4094;
/// RFC 7348 section 5, RFC 8926 section 3.4.
const VNI_MAX: u32 = 0xff_ffff;

/// Checks all units. Two units may have the same prefix; both are charged then.
pub(super) fn check(units: &[UnitConfig], charge: Charge) -> Result<(), Problem> {
    let fault = |unit: &UnitConfig| {
        let name = unit.name.clone();
        move |problem| Problem::Unit { name, problem }
    };
    let mut by_name = HashMap::new();
    for unit in units {
        check_one(unit).and_then(|()| check_selectors(unit, charge)).map_err(fault(unit))?;
        if by_name.insert(unit.name.as_str(), unit).is_some() {
            return Err(fault(unit)(UnitProblem::Duplicate));
        }
    }
    for unit in units {
        if let Some(member) = unit.members.iter().find(|member| !by_name.contains_key(member.as_str())) {
            return Err(fault(unit)(UnitProblem::UnknownMember(member.clone())));
        }
    }
    let members = |name: &str| {
        let members = by_name.get(name).map(|unit| unit.members.iter().map(String::as_str));
        members.into_iter().flatten().collect()
    };
    if let Some(cycle) = cycle::find(units.iter().map(|unit| unit.name.as_str()), members) {
        let (name, problem) = (cycle[0].to_owned(), UnitProblem::Cycle(cycle.join(" -> ")));
        return Err(Problem::Unit { name, problem });
    }
    Ok(())
}

/// The parts fit the kind.
fn check_one(unit: &UnitConfig) -> Result<(), UnitProblem> {
    let kind = unit.kind;
    if unit.name.is_empty() {
        return Err(UnitProblem::EmptyName);
    }
    if unit.name.contains(char::is_control) {
        return Err(UnitProblem::ControlCharacter);
    }
    if kind == UnitKind::Group {
        return match (unit.addresses.is_empty(), unit.members.is_empty()) {
            (false, _) => Err(UnitProblem::GroupAddresses),
            (_, true) => Err(UnitProblem::NoMembers),
            _ => Ok(()),
        };
    }
    if !unit.members.is_empty() {
        return Err(UnitProblem::Members(kind));
    }
    if unit.addresses.is_empty() {
        return Err(UnitProblem::NoAddresses(kind));
    }
    let prefix = unit.addresses.iter().find(|net| net.prefix_len() < net.max_prefix_len());
    match (kind, prefix) {
        (UnitKind::Host | UnitKind::User | UnitKind::Cluster, Some(prefix)) => {
            Err(UnitProblem::Prefix { kind, prefix: *prefix })
        }
        (UnitKind::Host | UnitKind::User, None) if unit.addresses.len() > 1 => {
            Err(UnitProblem::Addresses(kind, unit.addresses.len()))
        }
        _ => Ok(()),
    }
}

/// Some packet can have what the unit asks for.
fn check_selectors(unit: &UnitConfig, charge: Charge) -> Result<(), UnitProblem> {
    let vlans = [("vlan", unit.vlan), ("vlan_inner", unit.vlan_inner)];
    let tunnels = [("gre_key", unit.gre_key), ("vni", unit.vni)];
    let given = |(key, value): &(&'static str, Option<u32>)| value.map(|_| *key);
    if unit.kind == UnitKind::Group {
        let selector = vlans.iter().chain(&tunnels).find_map(given);
        return selector.map_or(Ok(()), |key| Err(UnitProblem::GroupSelector(key)));
    }
    for (key, id) in vlans {
        if let Some(id) = id.filter(|id| !VLANS.contains(id)) {
            return Err(UnitProblem::Vlan { key, id });
        }
    }
    if let Some(vni) = unit.vni.filter(|vni| *vni > VNI_MAX) {
        return Err(UnitProblem::Vni(vni));
    }
    match tunnels.iter().find_map(given) {
        Some(_) if unit.gre_key.and(unit.vni).is_some() => Err(UnitProblem::TwoTunnels),
        Some(key) if charge == Charge::Outer => Err(UnitProblem::TunnelNotCharged(key)),
        _ => Ok(()),
    }
}
