//! The prefixes of one scope as a sorted list of address ranges.

use std::collections::BTreeMap;

use super::owners::{Block, V4_MAPPED, Weight};
use super::{Class, NO_CLASS, UnitId};
use crate::flow::Scope;

/// Blocks nest and never overlap otherwise, so ranges of addresses follow each other, each with the class of the longest
/// block around it.
#[derive(Debug)]
pub(super) struct Ranges {
    pub scope: Scope,
    /// First address of each range; the first is `::`, and each range ends where the next one starts.
    starts: Vec<u128>,
    /// Class of each range, as an index.
    classes: Vec<u32>,
}

impl Ranges {
    /// Appends the classes of the blocks to `classes`; the first of them is there already, [`NO_CLASS`].
    pub fn new(
        scope: Scope,
        blocks: BTreeMap<Block, Vec<(UnitId, Weight)>>,
        classes: &mut Vec<Class>,
    ) -> Self {
        let mut ranges = Self { scope, starts: vec![0], classes: vec![NO_CLASS] };
        // Blocks that contain the current one, the longest last, and their classes.
        let mut around: Vec<(Block, u32)> = Vec::new();
        for (block, mut units) in blocks {
            while around.last().is_some_and(|(outer, _)| !outer.contains(block)) {
                ranges.leave(&mut around);
            }
            let outer = around.last().filter(|_| block != V4_MAPPED);
            let inherited = outer.map_or(&[][..], |(_, class)| &classes[*class as usize].units);
            let new = |(unit, _): &&(UnitId, Weight)| units.iter().all(|(own, _)| own != unit);
            let inherited: Vec<_> = inherited.iter().filter(new).copied().collect();
            units.extend(inherited);
            units.retain(|(_, weight)| *weight != 0);
            units.sort_unstable();
            let class = classes.len() as u32;
            classes.push(Class { scope, len: block.len, units });
            ranges.enter(block.start, class);
            around.push((block, class));
        }
        while !around.is_empty() {
            ranges.leave(&mut around);
        }
        ranges
    }

    /// From `start` on, addresses are of `class`.
    fn enter(&mut self, start: u128, class: u32) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.classes.pop();
        }
        self.starts.push(start);
        self.classes.push(class);
    }

    /// The longest block of `around` ends; the one around it goes on.
    fn leave(&mut self, around: &mut Vec<(Block, u32)>) {
        if let Some((inner, _)) = around.pop()
            && let Some(next) = inner.last().checked_add(1)
        {
            self.enter(next, around.last().map_or(NO_CLASS, |(_, class)| *class));
        }
    }

    /// Class of an address.
    pub fn class_of(&self, address: u128) -> u32 {
        self.classes[self.starts.partition_point(|start| *start <= address) - 1]
    }

    /// First and last address of each range, ascending, and its class.
    pub fn iter(&self) -> impl Iterator<Item = (u128, u128, u32)> {
        let ends = self.starts.iter().skip(1).map(|next| next - 1).chain([u128::MAX]);
        self.starts.iter().zip(ends).zip(&self.classes).map(|((start, end), class)| (*start, end, *class))
    }
}
