//! Which flow records a reader is asked for, and in which order.

use std::cmp::Reverse;
use std::net::Ipv6Addr;

use rustc_hash::FxHashMap;

use crate::flow::{FlowKey, Scope};

/// First and last address of a range, IPv4 v4-mapped.
pub type AddressRange = (Ipv6Addr, Ipv6Addr);

/// What to look for. Unset fields select everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowSelection {
    /// The flow is in one of these scopes, and its source or its destination in one of the ranges there.
    pub unit: Option<Vec<(Scope, Vec<AddressRange>)>>,
    /// The source is in this range.
    pub src: Option<AddressRange>,
    /// The destination is in this range.
    pub dst: Option<AddressRange>,
    /// Protocol number.
    pub proto: Option<u8>,
    /// Either port.
    pub port: Option<u16>,
    /// Records with packets at or after this time, milliseconds UTC since 1970.
    pub since_ms: Option<i64>,
    /// Records that are newer than this one, by [`Writer::total_flows`](super::Writer::total_flows) of then; 0: all.
    pub after: u64,
    /// Inner flows of tunnels instead of outer ones.
    pub inner: bool,
    /// Order, largest or newest first.
    pub order: FlowOrder,
    /// At most this many records; the totals count the others too.
    pub top: Option<u32>,
}

/// What comes first. Equals are ordered newest record first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FlowOrder {
    /// Most layer-3 bytes.
    #[default]
    Bytes,
    /// Most wire packets.
    Packets,
    /// Newest first packet.
    First,
    /// Newest last packet.
    Last,
}

/// A set of addresses: sorted ranges that do not overlap.
#[derive(Debug)]
struct AddressSet(Vec<AddressRange>);

impl AddressSet {
    fn new(mut ranges: Vec<AddressRange>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<AddressRange> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }

    fn contains(&self, address: Ipv6Addr) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        after > 0 && address <= self.0[after - 1].1
    }
}

/// The flows of a unit.
#[derive(Debug)]
pub(super) struct UnitFlows {
    /// [`Scope::selection`]s that occur, a bit each.
    selections: u8,
    addresses: FxHashMap<Scope, AddressSet>,
}

impl UnitFlows {
    pub(super) fn new(scopes: Vec<(Scope, Vec<AddressRange>)>) -> Self {
        let selections = scopes.iter().fold(0, |all, (scope, _)| all | 1 << scope.selection());
        let addresses = scopes.into_iter().map(|(scope, ranges)| (scope, AddressSet::new(ranges)));
        Self { selections, addresses: addresses.collect() }
    }

    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        let mut sets = key.scope().around(self.selections).filter_map(|scope| self.addresses.get(&scope));
        sets.any(|set| set.contains(key.src) || set.contains(key.dst))
    }
}

/// Keeps the largest `top` of any number of items, in memory for about twice as many.
#[derive(Debug)]
pub(super) struct Largest<T> {
    top: usize,
    items: Vec<((i64, i64), T)>,
}

impl<T> Largest<T> {
    /// Below this many items nothing is thrown away.
    const SLACK: usize = 1024;

    pub(super) fn new(top: Option<u32>) -> Self {
        Self { top: top.map_or(usize::MAX, |top| top as usize), items: Vec::new() }
    }

    /// Offers an item. Of two with equal `value` the one with the larger `tie` is the larger.
    pub(super) fn offer(&mut self, value: i64, tie: i64, item: T) {
        if self.items.len() >= self.top.saturating_mul(2).saturating_add(Self::SLACK) {
            self.items.select_nth_unstable_by_key(self.top, |item| Reverse(item.0));
            self.items.truncate(self.top);
        }
        self.items.push(((value, tie), item));
    }

    /// The kept items, largest first.
    pub(super) fn into_sorted(mut self) -> Vec<T> {
        self.items.sort_unstable_by_key(|item| Reverse(item.0));
        self.items.truncate(self.top);
        self.items.into_iter().map(|(_, item)| item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_what_any_range_contains() {
        let ip = |n: u128| Ipv6Addr::from(n);
        let cases: [&[(u128, u128)]; 5] =
            [&[], &[(3, 3)], &[(5, 9), (1, 2), (2, 6)], &[(1, 9), (2, 3)], &[(0, 0), (u128::MAX, u128::MAX)]];
        for ranges in cases {
            let set = AddressSet::new(ranges.iter().map(|&(start, end)| (ip(start), ip(end))).collect());
            for n in (0..12).chain([u128::MAX - 1, u128::MAX]) {
                let expected = ranges.iter().any(|&(start, end)| (start..=end).contains(&n));
                assert_eq!(set.contains(ip(n)), expected, "{n} in {ranges:?}");
            }
        }
    }

    #[test]
    fn the_largest_are_kept_in_order() {
        for top in [None, Some(0), Some(1), Some(100), Some(5000)] {
            let mut largest = Largest::new(top);
            for n in 0..4000_i64 {
                largest.offer(n * 7919 % 1000, n, n);
            }
            let mut expected: Vec<i64> = (0..4000).collect();
            expected.sort_unstable_by_key(|n| (-(n * 7919 % 1000), -n));
            expected.truncate(top.map_or(4000, |top| top as usize));
            assert_eq!(largest.into_sorted(), expected, "top {top:?}");
        }
    }
}
