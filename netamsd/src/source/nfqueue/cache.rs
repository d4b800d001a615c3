//! The flow cache in user space: what `kmod-bpf/src/bpf/cache.h` does in the kernel, with the same tables.
//!
//! A [`Partition`] belongs to one thread. A packet is added, in this order, to its flow in the first level, in the second
//! level, or to the cells of its addresses' prefixes; so is the packet in it, when it is that of a tunnel and inner flows are
//! accounted; and to the counters. Each packet is one [`Journal`] entry, so that `kill -9` leaves it counted in all of these
//! places or in none.

use std::{path::Path, sync::atomic::Ordering};

use kmod_bpf::{
    Counters, FlowKey, FlowSet, FlowSlot, HALVES, OverflowCell, SpillValue, USED, WAYS, key_flag,
};
use nix::time::{ClockId, clock_gettime};

use super::{
    journal::{Addition, CELLS, Journal, NO_CELL, Place},
    prefixes::PrefixIndex,
    shared::{Memory, SpillEntry, read_prefixes, spill_part},
};
use crate::{
    flow::Layer,
    packet::{Packet, Parsed},
    source::{
        Judge,
        fragments::Fragments,
        judge::Verdicts,
        tables::{Geometry, TablesError, Tunnels, flow_key},
    },
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

/// How it is known for how many wire packets a packet stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segments {
    /// It is known.
    Known,
    /// It was inferred.
    Estimated,
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
    outer_fragments: Fragments,
    inner_fragments: Fragments,
    /// Inner flows are accounted.
    with_inner: bool,
    /// Units are charged by the inner flow of a packet that has one.
    by_inner: bool,
    /// Where verdicts are enforced.
    verdicts: Option<Verdicts>,
    /// Half * threads + thread, while the thread is inside an epoch.
    part: u32,
    half: u8,
    now: u32,
}

// SAFETY: the journal is in memory that `memory` keeps mapped, and its only user is the thread that has the partition.
unsafe impl Send for Partition {}

impl Partition {
    /// The part of `thread` in the tables of `dir`. There may be one at a time. Without a judge every packet passes.
    ///
    /// # Errors
    /// When the tables cannot be mapped.
    pub fn open(
        dir: &Path,
        geometry: Geometry,
        thread: u32,
        seed: [u64; 8],
        judge: Option<Judge>,
    ) -> Result<Self, TablesError> {
        let memory = Memory::open(dir, geometry)?;
        let prefixes = PrefixIndex::new(read_prefixes(dir)?);
        let journal = memory.journal(thread);
        // SAFETY: the caller has no other partition of this thread; a former one may have ended in the middle of a packet.
        unsafe { &mut *journal }.recover(&memory);
        let tunnels = memory.tunnels();
        Ok(Self {
            memory,
            thread,
            journal,
            seed,
            prefixes,
            outer_fragments: Fragments::new(0),
            inner_fragments: Fragments::new(1),
            with_inner: tunnels != Tunnels::Outer.number(),
            by_inner: tunnels == Tunnels::Charged.number(),
            verdicts: judge.map(Verdicts::new),
            part: thread,
            half: 0,
            now: 1,
        })
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

    /// Counts a packet that came out of the queue, with the one in its tunnel if there is one, and `gap` that did not come
    /// before it. Whether it passes: what does not is counted all the same, and what is no IP packet always does.
    pub fn count(
        &mut self,
        parsed: &Parsed,
        inner: Option<&Packet>,
        way: Way,
        segments: Segments,
        gap: u64,
    ) -> bool {
        let mut counters = *self.memory.counters(self.part);
        counters.queued += 1;
        counters.queue_lost += gap;
        // SAFETY: this thread's own, see `open`.
        let journal = unsafe { &mut *self.journal };
        journal.begin(self.part);
        let mut passes = true;
        let packets = match parsed {
            Parsed::Ip(packet) => {
                passes = self.add(packet, inner, segments, &mut counters, journal);
                packet.packets.into()
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
        let way = if way == Way::Through && !passes { Way::In } else { way };
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
        passes
    }

    /// Whether a packet passes; it is counted elsewhere.
    pub fn passes(&mut self, parsed: &Parsed, inner: Option<&Packet>) -> bool {
        let Parsed::Ip(packet) = parsed else { return true };
        let outer = self.outer_fragments.join(packet);
        let inner = inner.filter(|_| self.with_inner).map(|packet| self.inner_fragments.join(packet));
        self.judge(&outer, inner.as_ref())
    }

    /// By the flow that units are charged by.
    fn judge(&mut self, outer: &FlowKey, inner: Option<&FlowKey>) -> bool {
        let Some(verdicts) = &mut self.verdicts else { return true };
        let key = inner.filter(|_| self.by_inner).unwrap_or(outer);
        verdicts.passes(key, hash(key, &self.seed))
    }

    /// Counts packets that never came out of the queue.
    pub fn lose(&mut self, packets: u64) {
        let mut counters = *self.memory.counters(self.part);
        counters.queue_lost += packets;
        // SAFETY: this thread's own, see `open`.
        let journal = unsafe { &mut *self.journal };
        journal.begin(self.part);
        journal.counters = counters;
        journal.commit(&self.memory);
    }

    /// Adds a packet to its flow, and the one in it to its own; whether it passes. What does not is a flow of its own, without
    /// an inner one.
    fn add(
        &mut self,
        packet: &Packet,
        inner: Option<&Packet>,
        segments: Segments,
        counters: &mut Counters,
        journal: &mut Journal,
    ) -> bool {
        let packets = u64::from(packet.packets);
        let used = USED + self.half;
        let outer = self.outer_fragments.join(packet);
        let inner =
            inner.filter(|_| self.with_inner).map(|packet| (packet, self.inner_fragments.join(packet)));
        counters.fragments += u64::from(outer.flags & key_flag::FRAGMENT);
        let passes = self.judge(&outer, inner.as_ref().map(|(_, key)| key));
        let mut flags = 0;
        counters.gso_headers_unknown += u64::from(packet.headers_unknown);
        if segments == Segments::Estimated {
            flags |= key_flag::ESTIMATED;
            counters.estimated += if passes { packets } else { 0 };
        }
        if !passes {
            flags |= key_flag::DROPPED;
            counters.dropped += packets;
        }
        if inner.is_some() {
            flags |= key_flag::CARRIER;
        }
        if let Some((packet, key)) = inner.filter(|_| passes) {
            let key = FlowKey { flags: key.flags | flags & key_flag::ESTIMATED, used, ..key };
            self.account(Layer::Inner, &key, packet, counters, journal);
        }
        let outer = FlowKey { flags: outer.flags | flags, used, ..outer };
        self.account(Layer::Outer, &outer, packet, counters, journal);
        passes
    }

    /// Writes into the journal where the flow is and what it becomes.
    fn account(
        &self,
        layer: Layer,
        key: &FlowKey,
        packet: &Packet,
        counters: &mut Counters,
        journal: &mut Journal,
    ) {
        let h = hash(key, &self.seed);
        let sets = self.memory.geometry.sets;
        let [outer, inner] = &mut journal.flows;
        let (flow, other) = if layer == Layer::Outer { (outer, &*inner) } else { (inner, &*outer) };
        flow.index = self.part * sets + (h as u32 & (sets - 1));
        if slot(self.memory.set(flow.index), h >> 62, key, packet, self.now, flow, other) {
            return;
        }
        let packets = u64::from(packet.packets);
        if self.spill(key, h, packet, flow, other) {
            counters.spilled += packets;
            return;
        }
        if key.flags & key_flag::DROPPED != 0 {
            return;
        }
        // Units are charged by one of the layers.
        let charged = if layer == Layer::Outer {
            counters.overflow_packets += packets;
            counters.overflow_bytes += packet.bytes;
            !self.by_inner || key.flags & key_flag::CARRIER == 0
        } else {
            counters.inner_overflow_packets += packets;
            counters.inner_overflow_bytes += packet.bytes;
            self.by_inner
        };
        if charged {
            flow.place = Place::Overflow as u32;
            self.overflow(key, packet, journal);
        }
    }

    fn spill(&self, key: &FlowKey, h: u64, packet: &Packet, flow: &mut Addition, other: &Addition) -> bool {
        let len = spill_part(self.memory.geometry);
        for probe in 0..PROBES.min(len) {
            let index = self.part * len + (((h >> 32) as u32).wrapping_add(probe) & (len - 1));
            let mut entry = *self.memory.spill(index);
            if entry.key.used == 0 {
                if other.is_at_spill(index) {
                    continue;
                }
                let value = SpillValue { packets: 0, bytes: 0, first: self.now, last: self.now };
                entry = SpillEntry { key: *key, value };
            } else if entry.key != *key {
                continue;
            }
            entry.value.packets += u64::from(packet.packets);
            entry.value.bytes += packet.bytes;
            entry.value.last = self.now;
            flow.place = Place::Spill as u32;
            flow.index = index;
            flow.spill = entry;
            return true;
        }
        false
    }

    fn overflow(&self, key: &FlowKey, packet: &Packet, journal: &mut Journal) {
        let scope = flow_key(key).scope();
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

/// The flow's slot in its set, begun at the one that the hash names; whether there was room. A free one may be what the
/// packet's `other` flow gets.
fn slot(
    set: &FlowSet,
    begin: u64,
    key: &FlowKey,
    packet: &Packet,
    now: u32,
    flow: &mut Addition,
    other: &Addition,
) -> bool {
    for way in (0..WAYS).map(|i| (begin as usize + i) % WAYS) {
        let slot = &set.slot[way];
        let (packets, bytes, first) = if slot.key == *key {
            let Some(packets) = slot.packets.checked_add(packet.packets) else { return false };
            (packets, slot.bytes + packet.bytes, set.first[way])
        } else if slot.key.used == 0 && !other.is_at_slot(flow.index, way) {
            (packet.packets, packet.bytes, now)
        } else {
            continue;
        };
        flow.place = Place::Slot as u32;
        flow.way = way as u32;
        flow.first = first;
        flow.slot = FlowSlot { key: *key, bytes, packets, last: now };
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
