//! The flow cache in user space: what `kmod-bpf/src/bpf/cache.h` does in the kernel, with the same tables.
//!
//! A [`Partition`] belongs to one thread. A packet is added, in this order, to its flow in the first level, in the second
//! level, or to the cells of its addresses' prefixes; and to the counters. Each packet is one [`Journal`] entry, so that
//! `kill -9` leaves it counted in all of these places or in none.

use std::{path::Path, sync::atomic::Ordering};

use kmod_bpf::{
    Counters, FlowKey, FlowSet, FlowSlot, HALVES, OverflowCell, SpillValue, USED, WAYS, key_flag,
};
use nix::time::{ClockId, clock_gettime};

use super::{
    journal::{CELLS, Journal, NO_CELL, Place},
    prefixes::PrefixIndex,
    shared::{Memory, SpillEntry, read_prefixes, spill_part},
};
use crate::{
    packet::{Packet, Parsed},
    source::fragments::Fragments,
    source::tables::{Geometry, TablesError, flow_key},
};

/// Entries of the second level that are looked at before a flow goes to overflow.
const PROBES: u32 = 16;

/// Which way a packet goes, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To this host.
    In,
    /// From this host.
    Out,
    /// Through it: in, and out again.
    Through,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It passes, and belongs to its flow.
    Passed,
    /// It passes, and how many wire packets it stands for was inferred.
    Estimated,
    /// A verdict drops it: it is counted, and belongs to no flow.
    Dropped,
}

/// Milliseconds of the monotonic clock, modulo 2^32: the stamps of these tables.
pub fn stamp() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE);
    now.map_or(1, |t| (t.tv_sec() * 1000 + t.tv_nsec() / 1_000_000) as u32).max(1)
}

/// One thread's part of the tables.
pub struct Partition {
    memory: Memory,
    thread: u32,
    journal: *mut Journal,
    seed: [u64; 8],
    prefixes: PrefixIndex,
    fragments: Fragments,
    /// Half * threads + thread, while the thread is inside an epoch.
    part: u32,
    half: u8,
    now: u32,
}

// SAFETY: the journal is in memory that `memory` keeps mapped, and its only user is the thread that has the partition.
unsafe impl Send for Partition {}

impl Partition {
    /// The part of `thread` in the tables of `dir`. There may be one at a time.
    ///
    /// # Errors
    /// When the tables cannot be mapped.
    pub fn open(dir: &Path, geometry: Geometry, thread: u32, seed: [u64; 8]) -> Result<Self, TablesError> {
        let memory = Memory::open(dir, geometry)?;
        let prefixes = PrefixIndex::new(read_prefixes(dir)?);
        let journal = memory.journal(thread);
        // SAFETY: the caller has no other partition of this thread; a former one may have ended in the middle of a packet.
        unsafe { &mut *journal }.recover(&memory);
        let (fragments, part) = (Fragments::new(0), thread);
        Ok(Self { memory, thread, journal, seed, prefixes, fragments, part, half: 0, now: 1 })
    }

    /// Begins to use the current epoch. To be left soon: the tables are not read before.
    pub fn enter(&mut self) {
        Journal::busy(self.journal).fetch_add(1, Ordering::SeqCst);
        self.half = (self.memory.epoch() % HALVES as u64) as u8;
        self.part = u32::from(self.half) * self.memory.geometry.cpus + self.thread;
        self.now = stamp();
    }

    /// Ends the use of the epoch.
    pub fn leave(&mut self) {
        Journal::busy(self.journal).fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a packet that came out of the queue, and `gap` that did not before it.
    pub fn count(&mut self, parsed: &Parsed, way: Way, fate: Fate, gap: u64) {
        let mut counters = *self.memory.counters(self.part);
        counters.queued += 1;
        counters.queue_lost += gap;
        // SAFETY: this thread's own, see `open`.
        let journal = unsafe { &mut *self.journal };
        journal.part = self.part;
        journal.place = Place::None as u32;
        let packets = match parsed {
            Parsed::Ip(packet) => {
                let packets = u64::from(packet.packets);
                if fate == Fate::Dropped {
                    counters.dropped += packets;
                } else {
                    counters.gso_headers_unknown += u64::from(packet.headers_unknown);
                    let key = self.key(packet, fate, &mut counters);
                    self.account(&key, packet, &mut counters, journal);
                }
                packets
            }
            Parsed::NonIp => {
                counters.non_ip += 1;
                1
            }
            Parsed::Malformed => {
                counters.malformed += 1;
                1
            }
        };
        // What is dropped does not go out again.
        let way = if way == Way::Through && fate == Fate::Dropped { Way::In } else { way };
        if way != Way::Out {
            counters.packets_in += packets;
        }
        if way != Way::In {
            counters.packets_out += packets;
        }
        if way == Way::Through {
            counters.already_counted += packets;
        }
        journal.counters = counters;
        journal.commit(&self.memory);
    }

    /// Counts packets that never came out of the queue.
    pub fn lose(&mut self, packets: u64) {
        let mut counters = *self.memory.counters(self.part);
        counters.queue_lost += packets;
        // SAFETY: this thread's own, see `open`.
        let journal = unsafe { &mut *self.journal };
        journal.part = self.part;
        journal.place = Place::None as u32;
        journal.counters = counters;
        journal.commit(&self.memory);
    }

    /// The key under which a packet is counted.
    fn key(&mut self, packet: &Packet, fate: Fate, counters: &mut Counters) -> FlowKey {
        let mut key = self.fragments.join(packet);
        counters.fragments += u64::from(key.flags & key_flag::FRAGMENT);
        if fate == Fate::Estimated {
            key.flags |= key_flag::ESTIMATED;
            counters.estimated += u64::from(packet.packets);
        }
        key.used = USED + self.half;
        key
    }

    /// Writes into the journal where the flow is and what it becomes.
    fn account(&self, key: &FlowKey, packet: &Packet, counters: &mut Counters, journal: &mut Journal) {
        let h = hash(key, &self.seed);
        let sets = self.memory.geometry.sets;
        journal.index = self.part * sets + (h as u32 & (sets - 1));
        if slot(self.memory.set(journal.index), h >> 62, key, packet, self.now, journal) {
            return;
        }
        if self.spill(key, h, packet, journal) {
            counters.spilled += u64::from(packet.packets);
            return;
        }
        counters.overflow_packets += u64::from(packet.packets);
        counters.overflow_bytes += packet.bytes;
        self.overflow(key, packet, journal);
    }

    fn spill(&self, key: &FlowKey, h: u64, packet: &Packet, journal: &mut Journal) -> bool {
        let len = spill_part(self.memory.geometry);
        for probe in 0..PROBES.min(len) {
            let index = self.part * len + (((h >> 32) as u32).wrapping_add(probe) & (len - 1));
            let mut entry = *self.memory.spill(index);
            if entry.key.used == 0 {
                let value = SpillValue { packets: 0, bytes: 0, first: self.now, last: self.now };
                entry = SpillEntry { key: *key, value };
            } else if entry.key != *key {
                continue;
            }
            entry.value.packets += u64::from(packet.packets);
            entry.value.bytes += packet.bytes;
            entry.value.last = self.now;
            journal.place = Place::Spill as u32;
            journal.index = index;
            journal.spill = entry;
            return true;
        }
        false
    }

    fn overflow(&self, key: &FlowKey, packet: &Packet, journal: &mut Journal) {
        let scope = flow_key(key).scope();
        journal.place = Place::Overflow as u32;
        journal.cells = [NO_CELL; CELLS];
        let packets = u64::from(packet.packets);
        for class in self.prefixes.classes(scope, key.src.into()) {
            let cell = self.cell(class, journal);
            cell.out_packets += packets;
            cell.out_bytes += packet.bytes;
        }
        for class in self.prefixes.classes(scope, key.dst.into()) {
            let cell = self.cell(class, journal);
            cell.in_packets += packets;
            cell.in_bytes += packet.bytes;
        }
    }

    /// The cell of a class in the journal, as it is there already or as it stands.
    fn cell<'a>(&self, class: u32, journal: &'a mut Journal) -> &'a mut OverflowCell {
        let index = self.part * self.memory.geometry.classes + class;
        let known = journal.cells.iter().position(|cell| *cell == index || *cell == NO_CELL);
        // Each side has one cell a scope at most.
        let at = known.unwrap_or(CELLS - 1);
        if journal.cells[at] != index {
            journal.cells[at] = index;
            journal.cell[at] = *self.memory.cell(index);
        }
        &mut journal.cell[at]
    }
}

impl Drop for Partition {
    /// Leaves the epoch in which a thread has panicked: its tables would be waited for.
    fn drop(&mut self) {
        if Journal::busy(self.journal).load(Ordering::SeqCst) % 2 == 1 {
            // SAFETY: this thread's own, see `open`.
            unsafe { &mut *self.journal }.finish(&self.memory);
            self.leave();
        }
    }
}

/// The flow's slot in its set, begun at the one that the hash names; whether there was room.
fn slot(set: &FlowSet, begin: u64, key: &FlowKey, packet: &Packet, now: u32, journal: &mut Journal) -> bool {
    for way in (0..WAYS).map(|i| (begin as usize + i) % WAYS) {
        let slot = &set.slot[way];
        let (packets, bytes, first) = if slot.key == *key {
            let Some(packets) = slot.packets.checked_add(packet.packets) else { return false };
            (packets, slot.bytes + packet.bytes, set.first[way])
        } else if slot.key.used == 0 {
            (packet.packets, packet.bytes, now)
        } else {
            continue;
        };
        journal.place = Place::Slot as u32;
        journal.way = way as u32;
        journal.first = first;
        journal.slot = FlowSlot { key: *key, bytes, packets, last: now };
        return true;
    }
    false
}

/// Multilinear, then folded twice, as in the kernel: the low bits choose the set, the highest ones where to begin in it.
fn hash(key: &FlowKey, seed: &[u64; 8]) -> u64 {
    let mut h = 0u64;
    for (word, seed) in words(key).iter().zip(seed) {
        h = h.wrapping_add(word.wrapping_mul(*seed));
    }
    h ^= h >> 32;
    h = h.wrapping_mul(seed[6]);
    h ^ h >> 29
}

fn words(key: &FlowKey) -> [u64; 6] {
    let half = |bytes: &[u8; 16], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let [s0, s1] = key.sport;
    let [d0, d1] = key.dport;
    let ports = u64::from(u32::from_ne_bytes([s0, s1, d0, d1]));
    let vlans = u64::from(key.vlan) << 32 | u64::from(key.vlan_inner) << 48;
    let rest = u64::from(u32::from_ne_bytes([key.proto, key.version, key.flags, key.used]));
    [
        half(&key.src, 0),
        half(&key.src, 8),
        half(&key.dst, 0),
        half(&key.dst, 8),
        ports | vlans,
        u64::from(key.tunnel) | rest << 32,
    ]
}
