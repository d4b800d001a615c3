//! One change of the tables, made in a way that `kill -9` cannot cut in two.
//!
//! What a packet changes is first written here, beside the tables; then it is marked as open, carried out, and closed. A
//! process that dies has carried out all its stores up to some instruction and none after it: the next daemon finds an open
//! change and carries it out again, which gives the same result, or a closed one, and nothing is half done. So a packet is
//! in its flow of each layer, in its units' cells and in the ledger, or nowhere.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use kmod_bpf::{Counters, FlowSlot, OverflowCell};

use super::shared::{Memory, SpillEntry};
use crate::flow::Scope;

/// Where a flow is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Place {
    /// Nowhere.
    None,
    /// A slot of the first level.
    Slot,
    /// An entry of the second level.
    Spill,
    /// The cells of both sides' prefixes.
    Overflow,
}

/// What a flow becomes, and where.
#[repr(C)]
pub struct Addition {
    /// A [`Place`].
    pub place: u32,
    /// Set, or second-level entry, among all.
    pub index: u32,
    /// Slot of the set.
    pub way: u32,
    /// Stamp of the flow's first packet.
    pub first: u32,
    /// The slot as it is to be.
    pub slot: FlowSlot,
    /// The second-level entry as it is to be.
    pub spill: SpillEntry,
}

impl Addition {
    /// Whether it goes to this slot.
    pub fn is_at_slot(&self, index: u32, way: usize) -> bool {
        (self.place, self.index, self.way) == (Place::Slot as u32, index, way as u32)
    }

    /// Whether it goes to this entry of the second level.
    pub fn is_at_spill(&self, index: u32) -> bool {
        (self.place, self.index) == (Place::Spill as u32, index)
    }
}

/// The change under way of one thread that counts; in shared memory, so plain values alone. It belongs to that thread while
/// there is one.
#[repr(C, align(64))]
pub struct Journal {
    /// Odd while its thread uses an epoch.
    pub busy: u64,
    open: u64,
    /// The packet's flows, outer and inner, never at the same place; one of them at most in cells.
    pub flows: [Addition; 2],
    /// Part of the tables: half * threads + thread.
    pub part: u32,
    /// Cells among all, each once; the last ones may be [`NO_CELL`].
    pub cells: [u32; CELLS],
    /// The cells as they are to be.
    pub cell: [OverflowCell; CELLS],
    /// The counters as they are to be.
    pub counters: Counters,
}

/// Cells that one packet can be in: one for each side in each scope.
pub const CELLS: usize = 2 * Scope::SELECTIONS as usize;
/// In [`Journal::cells`]: no cell.
pub const NO_CELL: u32 = u32::MAX;

impl Journal {
    /// The word that says whether the thread uses an epoch.
    pub fn busy(journal: *mut Self) -> &'static AtomicU64 {
        // SAFETY: 8-byte aligned, and mapped for as long as anyone uses the tables; see `Memory`.
        unsafe { AtomicU64::from_ptr(&raw mut (*journal).busy) }
    }

    /// Begins a change of this part: no flow yet.
    pub fn begin(&mut self, part: u32) {
        self.part = part;
        self.flows.iter_mut().for_each(|flow| flow.place = Place::None as u32);
    }

    /// Carries out what is written here.
    pub fn commit(&mut self, memory: &Memory) {
        compiler_fence(Ordering::SeqCst);
        self.set_open(1);
        compiler_fence(Ordering::SeqCst);
        self.carry_out(memory);
        compiler_fence(Ordering::SeqCst);
        self.set_open(0);
    }

    /// Carries out what a killed process had begun.
    pub fn recover(&mut self, memory: &Memory) {
        self.finish(memory);
        self.busy = 0;
    }

    /// Carries out what was begun and broken off.
    pub fn finish(&mut self, memory: &Memory) {
        if self.open != 0 {
            self.carry_out(memory);
            self.set_open(0);
        }
    }

    fn set_open(&mut self, open: u64) {
        // SAFETY: a field of our own; volatile, since nobody in this process ever reads it.
        unsafe { (&raw mut self.open).write_volatile(open) };
    }

    fn carry_out(&self, memory: &Memory) {
        memory.set_counters(self.part, self.counters);
        for flow in &self.flows {
            if flow.place == Place::Slot as u32 {
                memory.set_slot(flow.index, flow.way, flow.slot, flow.first);
            } else if flow.place == Place::Spill as u32 {
                memory.set_spill(flow.index, flow.spill);
            } else if flow.place == Place::Overflow as u32 {
                for (index, cell) in self.cells.iter().zip(self.cell).filter(|(index, _)| **index != NO_CELL)
                {
                    memory.set_cell(*index, cell);
                }
            }
        }
    }
}
