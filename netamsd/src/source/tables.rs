//! One set of flow tables: memory that whoever counts fills and this reads, and that survives the daemon.
//!
//! Promise: each wire packet that was added is in exactly one [`Batch`], whatever happens to the daemon. The tables have two
//! halves and an epoch, whose lowest bit is the half being filled. To read, the epoch is advanced and a grace period waited
//! for; then nobody writes the other half. Its counts are handed out as the batch of that epoch, and the half is emptied
//! only after the caller says that the batch is committed. After a crash the committed epoch, which the caller keeps in the
//! same transaction as the counts, tells whether the quiet half is still owed.
//!
//! The layout is the same for both sources; what differs is a [`Backing`]: pinned maps of the kernel, or files on tmpfs.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence},
};

use kmod_bpf::{
    Control, FlowKey as AbiKey, FlowSet, FragmentKey, HALVES, OverflowCell, SpillValue, WAYS, key_flag, map,
    tunnel,
};

use super::{clock::Clock, mapping::Mapping};
use crate::flow::{
    Batch, Counters, Encapsulation, FlowDelta, FlowKey, InOut, Layer, OverflowDelta, Prefix, Source, Tunnel,
};

/// First fragments remembered at once. Fragments of a packet follow each other closely.
pub const FRAGMENTS: u32 = 8192;

/// What went wrong with a set of tables.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// A table cannot be opened, mapped, read or written.
    #[error("flow table {0}: {1}")]
    Map(PathBuf, String),
    /// Tables that were left here have another layout.
    #[error(
        "{0} holds the tables of another version of netamsd; stop that one, or give up their counts with `netamsd --cleanup`"
    )]
    Abi(PathBuf),
    /// There is no room for them.
    #[error(
        "no room for flow tables of {1} bytes in {0}; free some, or set kernel.flows or nfqueue.queues lower"
    )]
    Full(PathBuf, usize),
    /// It is not possible to wait until nobody uses the old half.
    #[error("cannot wait for those who count: {0}")]
    Grace(io::Error),
}

impl TablesError {
    /// Names the table.
    pub fn map(path: &Path, e: impl std::fmt::Display) -> Self {
        Self::Map(path.to_owned(), e.to_string())
    }
}

/// Where tables are kept: what maps of the kernel and files on tmpfs do not have in common.
pub trait Backing {
    /// Who fills the tables.
    const SOURCE: Source;

    /// Returns when nobody uses an epoch any more that ended before the call.
    ///
    /// # Errors
    /// When that cannot be waited for.
    fn grace_period(&self) -> io::Result<()>;

    /// Entries of the second level that belong to `half`, which is quiet.
    ///
    /// # Errors
    /// When they cannot be read.
    fn spilled(&self, half: u8) -> io::Result<Vec<(AbiKey, SpillValue)>>;

    /// Removes the entries of the second level that belong to `half`, which is quiet.
    ///
    /// # Errors
    /// When they cannot be removed; some may have been.
    fn clear_spilled(&mut self, half: u8) -> io::Result<()>;
}

/// Sizes of a set of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Possible CPUs.
    pub cpus: u32,
    /// First-level sets a CPU and a half, a power of two.
    pub sets: u32,
    /// Second-level entries, both halves.
    pub spill: u32,
    /// Overflow cells a CPU and a half.
    pub classes: u32,
}

impl Geometry {
    /// Kernel memory that the tables take, bytes. The second level's share is what a preallocated hash element and its
    /// bucket take on 64-bit kernels.
    pub fn bytes(&self) -> u64 {
        const SPILL_ELEMENT: usize = 48 + size_of::<AbiKey>() + size_of::<SpillValue>() + 2 * 16;
        const FRAGMENT_ELEMENT: usize = 48 + size_of::<FragmentKey>() + size_of::<AbiKey>() + 2 * 16;
        let parts = u64::from(self.cpus) * HALVES as u64;
        parts * u64::from(self.sets) * size_of::<FlowSet>() as u64
            + parts * u64::from(self.classes) * size_of::<OverflowCell>() as u64
            + u64::from(self.spill) * SPILL_ELEMENT as u64
            + u64::from(FRAGMENTS) * FRAGMENT_ELEMENT as u64
    }

    /// Entries of each map, by name.
    pub fn entries(&self) -> [(&'static str, u32); 7] {
        let parts = HALVES as u32 * self.cpus;
        [
            (map::CONTROL, 1),
            (map::COUNTERS, parts),
            (map::FLOWS, parts * self.sets),
            (map::SPILL, self.spill),
            (map::OVERFLOW, parts * self.classes),
            (map::FRAGMENTS, FRAGMENTS),
            (map::PREFIXES, self.classes),
        ]
    }
}

/// What is accounted of packets in tunnels, numbered as [`kmod_bpf::constant::TUNNELS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tunnels {
    /// Outer flows alone.
    #[default]
    Outer,
    /// Inner flows too; units are charged by the outer ones.
    Inner,
    /// Inner flows too, and units are charged by them.
    Charged,
}

impl Tunnels {
    /// Number in the tables and programs.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The layer by which units are charged, where tables have this number.
    fn charged(number: u32) -> Layer {
        if number == Self::Charged.number() { Layer::Inner } else { Layer::Outer }
    }
}

/// The [`Scope::selection`](crate::flow::Scope::selection)s of prefixes, a bit each.
pub fn selections(prefixes: &[Prefix]) -> u8 {
    prefixes.iter().fold(0, |all, prefix| all | 1 << prefix.scope.selection())
}

/// The memory of a set of tables.
pub struct Memory {
    /// One value.
    pub control: Mapping<Control>,
    /// Halves * CPUs.
    pub counters: Mapping<kmod_bpf::Counters>,
    /// Halves * CPUs * sets.
    pub flows: Mapping<FlowSet>,
    /// Halves * CPUs * classes.
    pub overflow: Mapping<OverflowCell>,
}

/// A set of tables, opened.
pub struct Tables<B> {
    dir: PathBuf,
    geometry: Geometry,
    id: u64,
    store: u64,
    /// A number of [`Tunnels`].
    tunnels: u32,
    quotas: u64,
    memory: Memory,
    backing: B,
    /// Prefix of each class.
    prefixes: HashMap<u32, Prefix>,
    /// Epoch of the quiet half while its counts are not known to be committed.
    reading: Option<u64>,
    /// A grace period has passed since the epoch of `reading` ended.
    quiet: bool,
}

/// What fresh tables of this size begin with; until it is written they count as incomplete.
pub fn fresh_control(geometry: Geometry, id: u64, store: u64, tunnels: Tunnels) -> Control {
    Control {
        epoch: 1,
        table: id,
        store,
        abi: kmod_bpf::ABI,
        cpus: geometry.cpus,
        sets: geometry.sets,
        classes: geometry.classes,
        tunnels: tunnels.number(),
        ..Control::default()
    }
}

/// The head of the tables in `dir`, `None` when they were never completed.
///
/// # Errors
/// When they are those of another version.
pub fn head(dir: &Path, control: &Mapping<Control>) -> Result<Option<Control>, TablesError> {
    // SAFETY: plain integers; what may change meanwhile is not taken from this copy.
    let head = unsafe { control.as_ptr().read_volatile() };
    match head.abi {
        0 => Ok(None),
        kmod_bpf::ABI => Ok(Some(head)),
        _ => Err(TablesError::Abi(dir.to_owned())),
    }
}

impl<B: Backing> Tables<B> {
    /// Tables in `dir` with this head and memory; `spill` is the size of the second level, and `prefixes` are those of the
    /// classes.
    pub fn new(
        dir: &Path,
        head: &Control,
        spill: u32,
        memory: Memory,
        prefixes: HashMap<u32, Prefix>,
        backing: B,
    ) -> Self {
        Self {
            dir: dir.to_owned(),
            geometry: Geometry { cpus: head.cpus, sets: head.sets, spill, classes: head.classes },
            id: head.table,
            store: head.store,
            tunnels: head.tunnels,
            quotas: head.quotas,
            memory,
            backing,
            prefixes,
            reading: None,
            quiet: false,
        }
    }

    /// Where they are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Random identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Identity of the store that the counts belong to.
    pub fn store(&self) -> u64 {
        self.store
    }

    /// Which hard quotas programs have that fill them; 0: none.
    pub fn quotas(&self) -> u64 {
        self.quotas
    }

    /// The half whose counts were handed out last, until they are committed.
    pub fn half_read(&self) -> Option<u8> {
        self.reading.map(|epoch| (epoch & 1) as u8)
    }

    /// What is particular to the place where they are kept.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Whether this is accounted of tunnels, and overflow counted by exactly these prefixes: else what the tables hold is
    /// charged by another layer, or to others, than what would come.
    pub fn is_for(&self, tunnels: Tunnels, prefixes: &[Prefix]) -> bool {
        let present: HashSet<_> = self.prefixes.values().copied().collect();
        self.tunnels == tunnels.number() && present == prefixes.iter().copied().collect()
    }

    /// Tells those who count what to do, by [`kmod_bpf::flag`]s. Who was at it when this was called may still do as before,
    /// until a grace period has passed.
    pub fn set_flags(&self, flags: u32) {
        // SAFETY: as in `epoch`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.memory.control.as_ptr()).flags) }
            .store(flags, Ordering::SeqCst);
    }

    /// What was told last.
    pub fn flags(&self) -> u32 {
        // SAFETY: as in `epoch`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.memory.control.as_ptr()).flags) }.load(Ordering::SeqCst)
    }

    /// Returns when everyone who counts has seen what was set before the call.
    ///
    /// # Errors
    /// When that cannot be waited for.
    pub fn grace_period(&self) -> Result<(), TablesError> {
        self.backing.grace_period().map_err(TablesError::Grace)
    }

    fn epoch(&self) -> &AtomicU64 {
        // SAFETY: the word is 8-byte aligned, lives as long as the mapping, and is written by this daemon alone.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.memory.control.as_ptr()).epoch) }
    }

    /// Settles what a former daemon left: `committed` is the last epoch of these tables that the store has.
    ///
    /// # Errors
    /// When waiting or emptying fails.
    pub fn recover(&mut self, committed: Option<u64>) -> Result<(), TablesError> {
        let quiet = self.epoch().load(Ordering::Relaxed) - 1;
        if quiet == 0 {
            return Ok(());
        }
        // The former daemon may have died before it had waited.
        self.grace_period()?;
        self.reading = Some(quiet);
        self.quiet = true;
        if committed.is_some_and(|epoch| epoch >= quiet) {
            self.committed()?;
        }
        Ok(())
    }

    /// Whether counts of the quiet half are still to be committed.
    pub fn owes(&self) -> bool {
        self.reading.is_some()
    }

    /// Advances the epoch and waits until nobody writes the old half; nothing when that was done already.
    ///
    /// # Errors
    /// When waiting fails; the next call waits again.
    pub fn turn(&mut self) -> Result<(), TablesError> {
        if self.reading.is_none() {
            self.reading = Some(self.epoch().fetch_add(1, Ordering::SeqCst));
        }
        if !self.quiet {
            self.grace_period()?;
            self.quiet = true;
        }
        Ok(())
    }

    /// The counts of the quiet half, after [`Tables::turn`]; `clock` was read since then.
    ///
    /// # Errors
    /// When a map cannot be read; nothing is lost, the next call reads the same epoch.
    pub fn read(&self, clock: &Clock) -> Result<Batch, TablesError> {
        let epoch = self.reading.unwrap_or_default();
        let half = (epoch & 1) as u8;
        let charged = Tunnels::charged(self.tunnels);
        let mut batch = Batch { source: B::SOURCE, table: self.id, epoch, charged, ..Batch::default() };
        let (from, len) = self.half_of(half, self.geometry.sets);
        // SAFETY: the quiet half.
        for set in unsafe { self.memory.flows.part(from, len) } {
            for way in (0..WAYS).filter(|&way| set.first[way] != 0) {
                let slot = &set.slot[way];
                let counts = (slot.packets.into(), slot.bytes);
                add_flow(&mut batch, &slot.key, counts, [set.first[way], slot.last], clock);
            }
        }
        let raw = self.raw_counters(half);
        if raw.spilled > 0 {
            for (key, value) in self.backing.spilled(half).map_err(|e| self.spill_error(e))? {
                add_flow(&mut batch, &key, (value.packets, value.bytes), [value.first, value.last], clock);
            }
        }
        if raw.overflow_packets + raw.inner_overflow_packets > 0 {
            batch.overflow = self.read_overflow(half);
        }
        batch.counters = counters(&raw);
        for flow in &batch.flows {
            batch.counters.add_flow(flow);
        }
        Ok(batch)
    }

    /// Says that the last batch is safe: its half is emptied and may be filled again.
    ///
    /// # Errors
    /// When the second-level table cannot be emptied; the call is to be repeated before the next read.
    pub fn committed(&mut self) -> Result<(), TablesError> {
        let Some(epoch) = self.reading else { return Ok(()) };
        let half = (epoch & 1) as u8;
        let raw = self.raw_counters(half);
        if raw.spilled > 0 {
            self.backing.clear_spilled(half).map_err(|e| self.spill_error(e))?;
        }
        let (from, len) = self.half_of(half, self.geometry.sets);
        // SAFETY: the quiet half, here and below.
        for set in unsafe { self.memory.flows.part_mut(from, len) } {
            if set.first == [0; WAYS] {
                continue;
            }
            for slot in &mut set.slot {
                slot.key.used = 0;
            }
            // Killed between the two, the next daemon still finds the set in use and frees it again.
            compiler_fence(Ordering::SeqCst);
            set.first = [0; WAYS];
        }
        if raw.overflow_packets + raw.inner_overflow_packets > 0 {
            let (from, len) = self.half_of(half, self.geometry.classes);
            // SAFETY: as above.
            unsafe { self.memory.overflow.part_mut(from, len) }.fill(OverflowCell::default());
        }
        compiler_fence(Ordering::SeqCst);
        // The counters last: they say whether the second level and the cells have anything of this half.
        let (from, len) = self.half_of(half, 1);
        // SAFETY: as above.
        unsafe { self.memory.counters.part_mut(from, len) }.fill(kmod_bpf::Counters::default());
        self.reading = None;
        self.quiet = false;
        Ok(())
    }

    /// Counters of both halves as they stand; those of flows are included as far as they can be told without reading
    /// the tables.
    pub fn live_counters(&self) -> Counters {
        let mut sum = Counters::default();
        for half in 0..HALVES as u8 {
            let mut live = counters(&self.raw_counters(half));
            live.flow_packets = live.lost().saturating_sub(live.not_queued() as i64).max(0) as u64;
            sum.add(&live);
        }
        sum
    }

    fn spill_error(&self, e: io::Error) -> TablesError {
        TablesError::map(&self.dir.join(map::SPILL), e)
    }

    /// First index and number of the values of `half`, with `each` values a CPU.
    fn half_of(&self, half: u8, each: u32) -> (usize, usize) {
        let len = self.geometry.cpus as usize * each as usize;
        (usize::from(half) * len, len)
    }

    fn raw_counters(&self, half: u8) -> kmod_bpf::Counters {
        let (from, len) = self.half_of(half, 1);
        let mut sum = kmod_bpf::Counters::default();
        for cpu in from..from + len {
            // SAFETY: inside the mapping; a half being filled gives each counter as of some moment.
            let c = unsafe { self.memory.counters.as_ptr().add(cpu).read_volatile() };
            sum.packets_in += c.packets_in;
            sum.packets_out += c.packets_out;
            sum.already_counted += c.already_counted;
            sum.non_ip += c.non_ip;
            sum.malformed += c.malformed;
            sum.overflow_packets += c.overflow_packets;
            sum.overflow_bytes += c.overflow_bytes;
            sum.spilled += c.spilled;
            sum.fragments += c.fragments;
            sum.gso_headers_unknown += c.gso_headers_unknown;
            sum.no_slot += c.no_slot;
            sum.estimated += c.estimated;
            sum.dropped += c.dropped;
            sum.queued += c.queued;
            sum.queue_lost += c.queue_lost;
            sum.inner_overflow_packets += c.inner_overflow_packets;
            sum.inner_overflow_bytes += c.inner_overflow_bytes;
        }
        sum
    }

    fn read_overflow(&self, half: u8) -> Vec<OverflowDelta> {
        let (from, len) = self.half_of(half, self.geometry.classes);
        // SAFETY: the quiet half.
        let cells = unsafe { self.memory.overflow.part(from, len) };
        let used = cells.iter().enumerate().filter(|(_, cell)| **cell != OverflowCell::default());
        used.filter_map(|(index, cell)| {
            let class = index as u32 % self.geometry.classes;
            let counts = InOut {
                in_packets: cell.in_packets,
                in_bytes: cell.in_bytes,
                out_packets: cell.out_packets,
                out_bytes: cell.out_bytes,
            };
            let &Prefix { scope, address, .. } = self.prefixes.get(&class)?;
            Some(OverflowDelta { scope, address, counts })
        })
        .collect()
    }
}

/// Adds packets and bytes that were counted between two stamps.
fn add_flow(batch: &mut Batch, key: &AbiKey, counts: (u64, u64), stamps: [u32; 2], clock: &Clock) {
    let [first_ms, last_ms] = stamps.map(|stamp| clock.stamp_to_unix_ms(stamp));
    let has = |flag| key.flags & flag != 0;
    let flow = FlowDelta {
        key: flow_key(key),
        estimated: has(key_flag::ESTIMATED),
        carrier: has(key_flag::CARRIER),
        packets: counts.0,
        bytes: counts.1,
        first_ms,
        last_ms,
    };
    if has(key_flag::DROPPED) { &mut batch.dropped } else { &mut batch.flows }.push(flow);
}

/// The flow of a key.
pub fn flow_key(key: &AbiKey) -> FlowKey {
    FlowKey {
        src: key.src.into(),
        dst: key.dst.into(),
        sport: u16::from_be_bytes(key.sport),
        dport: u16::from_be_bytes(key.dport),
        vlan: key.vlan,
        vlan_inner: key.vlan_inner,
        tunnel: tunnel(key),
        proto: key.proto,
        version: key.version,
        fragment: key.flags & key_flag::FRAGMENT != 0,
    }
}

fn tunnel(key: &AbiKey) -> Option<Tunnel> {
    let kind = Encapsulation::from_number(key.flags >> key_flag::TUNNEL_SHIFT & tunnel::MASK)?;
    Some(Tunnel { kind, key: key.tunnel })
}

fn counters(raw: &kmod_bpf::Counters) -> Counters {
    Counters {
        packets_in: raw.packets_in,
        packets_out: raw.packets_out,
        already_counted: raw.already_counted,
        inner_overflow_packets: raw.inner_overflow_packets,
        inner_overflow_bytes: raw.inner_overflow_bytes,
        overflow_packets: raw.overflow_packets,
        overflow_bytes: raw.overflow_bytes,
        non_ip: raw.non_ip,
        malformed: raw.malformed,
        fragments: raw.fragments,
        spilled: raw.spilled,
        gso_headers_unknown: raw.gso_headers_unknown,
        estimated: raw.estimated,
        dropped: raw.dropped,
        queued: raw.queued,
        queue_lost: raw.queue_lost,
        ..Counters::default()
    }
}

#[cfg(test)]
mod tests {
    use kmod_bpf::scope;

    use super::*;
    use crate::flow::Scope;

    #[test]
    fn programs_and_units_number_selections_alike() {
        let tunnel = Some(Tunnel { kind: Encapsulation::Gre, key: 0 });
        for (asked, bits) in [
            (Scope::ANY, 0),
            (Scope { vlan: 1, ..Scope::ANY }, scope::VLAN),
            (Scope { vlan_inner: 1, ..Scope::ANY }, scope::VLAN_INNER),
            (Scope { tunnel, ..Scope::ANY }, scope::TUNNEL),
            (Scope { vlan: 4094, vlan_inner: 1, tunnel }, scope::VLAN | scope::VLAN_INNER | scope::TUNNEL),
        ] {
            assert_eq!(u32::from(asked.selection()), bits, "{asked:?}");
        }
        assert_eq!(u32::from(Scope::SELECTIONS), scope::COMBINATIONS);
    }

    #[test]
    fn tables_and_records_number_tunnels_alike() {
        let numbers = Encapsulation::ALL.map(Encapsulation::number);
        let abi = [tunnel::IP, tunnel::GRE, tunnel::VXLAN, tunnel::GENEVE, tunnel::TEREDO, tunnel::GTPU];
        assert_eq!(numbers, abi);
        for kind in 0..=tunnel::MASK {
            let key = AbiKey {
                flags: key_flag::CARRIER | kind << key_flag::TUNNEL_SHIFT,
                tunnel: 9,
                ..AbiKey::default()
            };
            let known = abi.contains(&kind).then_some((kind, 9));
            assert_eq!(super::tunnel(&key).map(|t| (t.kind.number(), t.key)), known);
        }
    }
}
