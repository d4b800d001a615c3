//! Units: who traffic is charged to.
//!
//! A packet belongs to every unit one of whose prefixes contains its address, if the packet also is in the unit's *scope*
//! (VLAN ids, the tunnel around it), and to all groups of these units. Within a scope the longest prefix that matches an
//! address decides everything: it is the address's *class*, whose units are those of that prefix and of all shorter prefixes
//! around it. Units without a scope of their own have that of every packet; so there is one class a packet and side as long
//! as no unit asks for more, and at most as many as there are combinations of what units ask for. IPv4 lives in v4-mapped
//! form among the IPv6 addresses, but an IPv6 prefix such as `::/0` does not contain IPv4 addresses.

mod owners;
mod ranges;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use rustc_hash::FxHashMap;

pub(super) use self::owners::{Block, V4_MAPPED};
use self::owners::{Weight, owners};
use self::ranges::Ranges;
use super::unit::UnitConfig;
use crate::flow::{Prefix, Scope};

/// The class of addresses that match no prefix.
const NO_CLASS: u32 = 0;

/// Index of a unit in the order of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

/// Ascending ranges, first and last address, v4-mapped for IPv4.
pub type AddressRanges = Vec<(Ipv6Addr, Ipv6Addr)>;

/// All configured units, ready to look packets up.
#[derive(Debug)]
pub struct Units {
    names: Vec<String>,
    /// Of all scopes; the first is [`NO_CLASS`].
    classes: Vec<Class>,
    /// Of each scope; the first is that of every packet.
    scopes: Vec<Ranges>,
    /// Index among these.
    by_scope: FxHashMap<Scope, usize>,
    /// [`Scope::selection`]s of all but the first, a bit each.
    selections: u8,
}

/// A prefix and what it stands for.
#[derive(Debug)]
struct Class {
    scope: Scope,
    len: u8,
    /// Ascending, each unit once.
    units: Vec<(UnitId, Weight)>,
}

impl Units {
    /// Builds the ranges. Members that do not exist are ignored, and a group in itself is once in itself;
    /// `Config::validate` refuses both.
    pub fn new(configs: &[UnitConfig]) -> Self {
        let names = configs.iter().map(|unit| unit.name.clone()).collect();
        let mut classes = vec![Class { scope: Scope::ANY, len: 0, units: Vec::new() }];
        let scopes: Vec<_> = owners(configs)
            .into_iter()
            .map(|(scope, blocks)| Ranges::new(scope, blocks, &mut classes))
            .collect();
        let by_scope = scopes.iter().enumerate().map(|(index, ranges)| (ranges.scope, index)).collect();
        let selections = scopes[1..].iter().fold(0, |all, ranges| all | 1 << ranges.scope.selection());
        Self { names, classes, scopes, by_scope, selections }
    }

    /// Unit names, in the order of the configuration.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The units of an address (v4-mapped for IPv4) of a packet whose own VLAN ids and tunnel are `scope`, ascending.
    pub fn of(&self, scope: Scope, address: Ipv6Addr) -> Vec<UnitId> {
        let mut weights: BTreeMap<UnitId, Weight> = BTreeMap::new();
        for (unit, weight) in self.classes_of(scope, address).flat_map(|class| self.of_class(class)) {
            *weights.entry(*unit).or_default() += weight;
        }
        weights.into_iter().filter(|(_, weight)| *weight != 0).map(|(unit, _)| unit).collect()
    }

    /// Classes of such an address, one in each scope that the packet is in; the first may be none.
    pub(super) fn classes_of(&self, scope: Scope, address: Ipv6Addr) -> impl Iterator<Item = u32> {
        let address = address.to_bits();
        let narrower = scope.around(self.selections).filter_map(|scope| self.by_scope.get(&scope));
        let narrower = narrower.map(move |index| self.scopes[*index].class_of(address));
        std::iter::once(self.scopes[0].class_of(address)).chain(narrower)
    }

    /// Class of an address in exactly this scope.
    pub(super) fn class_in(&self, scope: Scope, address: Ipv6Addr) -> u32 {
        self.by_scope.get(&scope).map_or(NO_CLASS, |index| self.scopes[*index].class_of(address.to_bits()))
    }

    /// The units of a class, ascending, and how often each is charged what counts for the class. Over the classes of a
    /// packet that adds up to once for each unit that it belongs to.
    pub(super) fn of_class(&self, class: u32) -> &[(UnitId, Weight)] {
        &self.classes[class as usize].units
    }

    /// Most units of a class: the first of these, and how many there are.
    pub fn most_of_a_class(&self) -> Option<(UnitId, usize)> {
        let most = self.classes.iter().max_by_key(|class| class.units.len())?;
        most.units.first().map(|(unit, _)| (*unit, most.units.len()))
    }

    /// How much of something the units of one side of a packet may have together, at most: it is in one scope of each kind.
    /// And a unit that has a part in that.
    pub fn most_of_a_side(&self, of: impl Fn(UnitId) -> usize) -> Option<(UnitId, usize)> {
        let mut most: BTreeMap<u8, (usize, &Class)> = BTreeMap::new();
        for class in &self.classes {
            let sum = class.units.iter().map(|(unit, _)| of(*unit)).sum();
            let known = most.entry(class.scope.selection()).or_insert((sum, class));
            if sum > known.0 {
                *known = (sum, class);
            }
        }
        let (_, class) = most.values().max_by_key(|(sum, _)| *sum)?;
        let unit = class.units.iter().map(|(unit, _)| *unit).find(|unit| of(*unit) > 0)?;
        Some((unit, most.values().map(|(sum, _)| sum).sum()))
    }

    /// Every class as its scope, an address and the length of its prefix, v4-mapped for IPv4, each prefix once.
    ///
    /// The address is inside the prefix and inside no longer one of the scope, so that it can stand for the class in
    /// [`OverflowDelta`](crate::flow::OverflowDelta); it is the network address unless a longer prefix begins there. A
    /// prefix that longer ones cover entirely matches nothing and is left out. Where an IPv6 prefix such as `::/0`
    /// surrounds the IPv4 addresses, `::ffff:0:0/96` is listed even when not configured.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let mut address = vec![None; self.classes.len()];
        for (start, _, class) in self.scopes.iter().flat_map(Ranges::iter) {
            address[class as usize].get_or_insert(start);
        }
        let classes = self.classes.iter().zip(address).skip(1);
        let prefix = |(class, start): (&Class, Option<u128>)| {
            Some(Prefix { scope: class.scope, address: Ipv6Addr::from_bits(start?), len: class.len })
        };
        classes.filter_map(prefix).collect()
    }

    /// The scopes of a unit and its addresses in each; for a group those of all members. `None` when there is no such unit.
    pub fn ranges(&self, name: &str) -> Option<Vec<(Scope, AddressRanges)>> {
        let unit = UnitId(self.names.iter().position(|known| known == name)? as u32);
        let has = |class: u32| self.of_class(class).iter().any(|(id, weight)| *id == unit && *weight > 0);
        let in_scope = |ranges: &Ranges| {
            let mut merged: Vec<(u128, u128)> = Vec::new();
            for (start, end, _) in ranges.iter().filter(|(_, _, class)| has(*class)) {
                match merged.last_mut() {
                    Some(last) if last.1 + 1 == start => last.1 = end,
                    _ => merged.push((start, end)),
                }
            }
            let address = Ipv6Addr::from_bits;
            (ranges.scope, merged.into_iter().map(|(a, b)| (address(a), address(b))).collect())
        };
        let scopes = self.scopes.iter().map(in_scope);
        Some(scopes.filter(|(_, ranges): &(Scope, AddressRanges)| !ranges.is_empty()).collect())
    }
}

#[cfg(test)]
pub(super) mod tests;
