//! Who has which block of addresses, and what a group has where its members overlap.
//!
//! Traffic is added up by scope: a packet counts once in each scope that it is in and that units have, under the longest
//! block around its address there. A unit of its own is in one of them and takes all that counts for it. A group may find a
//! packet in several, by different members, and yet has it once. So the blocks of its members are closed under intersection,
//! and each has a weight such that the weights under which a packet counts add up to 1: wider scopes come first, and what
//! they have already given is taken off.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::{UnitConfig, UnitId};
use crate::flow::Scope;

/// `::ffff:0:0/96`, where IPv4 is mapped.
pub(in crate::policy) const V4_MAPPED: Block = Block { start: 0xffff_0000_0000, len: 96 };

/// The addresses of a prefix. Field order gives the order in which a block follows those around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::policy) struct Block {
    pub start: u128,
    pub len: u8,
}

impl Block {
    pub fn new(net: &IpNet) -> Self {
        match net.trunc() {
            IpNet::V4(net) => {
                Self { start: net.addr().to_ipv6_mapped().to_bits(), len: V4_MAPPED.len + net.prefix_len() }
            }
            IpNet::V6(net) => Self { start: net.addr().to_bits(), len: net.prefix_len() },
        }
    }

    /// The last address.
    pub fn last(self) -> u128 {
        self.start | u128::MAX.checked_shr(u32::from(self.len)).unwrap_or(0)
    }

    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.last() <= self.last()
    }
}

/// How often what counts under a block is charged to a unit: 1, and for groups any number.
pub(super) type Weight = i64;

/// The blocks of each scope, each after those that contain it, and the weights of the units that have them there. Of a unit
/// that has a block inside a block, the inner one counts. Everybody's scope is always there.
pub(super) type Owners = BTreeMap<Scope, BTreeMap<Block, Vec<(UnitId, Weight)>>>;

pub(super) fn owners(configs: &[UnitConfig]) -> Owners {
    let by_name: FxHashMap<&str, usize> =
        configs.iter().enumerate().map(|(unit, config)| (config.name.as_str(), unit)).collect();
    let mut owners = Owners::from([(Scope::ANY, BTreeMap::new())]);
    for (unit, index) in (0..).map(UnitId).zip(0..configs.len()) {
        for (scope, block, weight) in weights(areas(index, configs, &by_name)) {
            owners.entry(scope).or_default().entry(block).or_default().push((unit, weight));
        }
    }
    for blocks in owners.values_mut() {
        if blocks.keys().any(|block| block.contains(V4_MAPPED)) {
            blocks.entry(V4_MAPPED).or_default();
        }
    }
    owners
}

/// The blocks of a unit or of all that are in a group, and the scopes of each.
fn areas(
    unit: usize,
    configs: &[UnitConfig],
    by_name: &FxHashMap<&str, usize>,
) -> BTreeMap<Block, BTreeSet<Scope>> {
    let mut areas: BTreeMap<Block, BTreeSet<Scope>> = BTreeMap::new();
    let (mut found, mut left) = (HashSet::from([unit]), vec![unit]);
    while let Some(config) = left.pop().map(|unit| &configs[unit]) {
        for net in &config.addresses {
            areas.entry(Block::new(net)).or_default().extend(config.scopes());
        }
        let members = config.members.iter().filter_map(|name| by_name.get(name.as_str()).copied());
        left.extend(members.filter(|member| found.insert(*member)));
    }
    areas
}

/// What has been found around a block.
#[derive(Clone, Default)]
struct Around {
    /// The scopes in which there are blocks.
    scopes: BTreeSet<Scope>,
    /// The weight of the innermost block in each scope, intersections included.
    weights: FxHashMap<Scope, Weight>,
}

/// The areas and their intersections, with their weights.
fn weights(mut areas: BTreeMap<Block, BTreeSet<Scope>>) -> Vec<(Scope, Block, Weight)> {
    // A border: blocks of IPv6 around it have nothing in it.
    areas.entry(V4_MAPPED).or_default();
    let mut weights = Vec::new();
    let mut around: Vec<(Block, Around)> = Vec::new();
    for (block, own) in areas {
        while around.last().is_some_and(|(outer, _)| !outer.contains(block)) {
            around.pop();
        }
        let outer = around.last().filter(|_| block != V4_MAPPED);
        let mut here = outer.map_or_else(Around::default, |(_, around)| around.clone());
        here.scopes.extend(&own);
        let mut met = closed(own, &here.scopes);
        // The wider a scope, the fewer fields ask something.
        met.sort_by_key(|scope| scope.selection().count_ones());
        for scope in met {
            let wider = scope.around(!(1 << scope.selection()));
            let given: Weight = wider.filter_map(|scope| here.weights.get(&scope)).sum();
            here.weights.insert(scope, 1 - given);
            weights.push((scope, block, 1 - given));
        }
        around.push((block, here));
    }
    weights
}

/// `scopes`, and what they have in common with any number of `others`.
fn closed(scopes: BTreeSet<Scope>, others: &BTreeSet<Scope>) -> Vec<Scope> {
    let mut left: Vec<Scope> = scopes.iter().copied().collect();
    let mut closed = scopes;
    while let Some(scope) = left.pop() {
        left.extend(others.iter().filter_map(|other| scope.and(other)).filter(|both| closed.insert(*both)));
    }
    closed.into_iter().collect()
}
