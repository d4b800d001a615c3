//! One set of flow tables: pinned maps, shared with the programs, that survive the daemon.
//!
//! Promise: each wire packet that programs have added is in exactly one [`Batch`], whatever happens to the daemon. The
//! tables have two halves and an epoch, whose lowest bit is the half being filled. To read, the epoch is advanced and a
//! grace period waited for; then nobody writes the other half. Its counts are handed out as the batch of that epoch, and
//! the half is emptied only after the caller says that the batch is committed. After a crash the committed epoch, which
//! the caller keeps in the same transaction as the counts, tells whether the quiet half is still owed.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    net::Ipv6Addr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering, compiler_fence},
};

use aya::maps::{MapData, lpm_trie};
use kmod_bpf::{
    Control, FlowKey as AbiKey, FlowSet, FragmentKey, HALVES, OverflowCell, SpillValue, WAYS, map,
};

use super::{
    KernelError,
    clock::Clock,
    sysbpf::{self, Mapping},
};
use crate::flow::{Batch, Counters, FlowDelta, FlowKey, InOut, OverflowDelta};

type PrefixTable = aya::maps::LpmTrie<MapData, [u8; 16], u32>;

/// First fragments remembered at once. Fragments of a packet follow each other closely.
const FRAGMENTS: u32 = 8192;

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

/// A set of tables, opened.
pub struct Tables {
    dir: PathBuf,
    geometry: Geometry,
    id: u64,
    store: u64,
    control: Mapping<Control>,
    counters: Mapping<kmod_bpf::Counters>,
    flows: Mapping<FlowSet>,
    overflow: Mapping<OverflowCell>,
    spill: MapData,
    prefixes: PrefixTable,
    /// Address that stands for each class.
    classes: HashMap<u32, Ipv6Addr>,
    /// Epoch of the quiet half while its counts are not known to be committed.
    reading: Option<u64>,
    /// A grace period has passed since the epoch of `reading` ended.
    quiet: bool,
}

impl Tables {
    /// Gives fresh tables in `dir` their identity; until then [`Tables::open`] does not accept them.
    ///
    /// # Errors
    /// When the maps cannot be opened.
    pub fn initialize(dir: &Path, geometry: Geometry, id: u64, store: u64) -> Result<(), KernelError> {
        let fresh = Control {
            epoch: 1,
            table: id,
            store,
            abi: kmod_bpf::ABI,
            cpus: geometry.cpus,
            sets: geometry.sets,
            classes: geometry.classes,
        };
        let control: Mapping<Control> = mapping(dir, map::CONTROL, 1)?;
        // SAFETY: no program that uses these maps is attached yet.
        unsafe { control.as_ptr().write_volatile(fresh) };
        Ok(())
    }

    /// Opens the tables pinned in `dir`; `None` when they were never completed.
    ///
    /// # Errors
    /// When a map cannot be opened or mapped, or has the layout of another version.
    pub fn open(dir: &Path) -> Result<Option<Self>, KernelError> {
        let path = |name: &str| dir.join(name);
        if map::ALL.iter().any(|name| !path(name).exists()) {
            return Ok(None);
        }
        let control: Mapping<Control> = mapping(dir, map::CONTROL, 1)?;
        // SAFETY: plain integers; the epoch may change meanwhile and is not taken from this copy.
        let head = unsafe { control.as_ptr().read_volatile() };
        if head.abi == 0 {
            return Ok(None);
        }
        if head.abi != kmod_bpf::ABI {
            return Err(KernelError::Abi(dir.to_owned()));
        }
        let spill = pinned(dir, map::SPILL)?;
        let entries = spill.info().map_err(|e| KernelError::map(&path(map::SPILL), e))?.max_entries();
        let geometry = Geometry { cpus: head.cpus, sets: head.sets, spill: entries, classes: head.classes };
        let entries: HashMap<_, _> = geometry.entries().into_iter().collect();
        let len = |name| entries[name] as usize;
        let prefixes = PrefixTable::try_from(aya::maps::Map::LpmTrie(pinned(dir, map::PREFIXES)?))
            .map_err(|e| KernelError::map(&path(map::PREFIXES), e))?;
        let mut classes = HashMap::new();
        for entry in prefixes.iter() {
            let (prefix, class) = entry.map_err(|e| KernelError::map(&path(map::PREFIXES), e))?;
            classes.insert(class, prefix.data().into());
        }
        Ok(Some(Self {
            dir: dir.to_owned(),
            geometry,
            id: head.table,
            store: head.store,
            counters: mapping(dir, map::COUNTERS, len(map::COUNTERS))?,
            flows: mapping(dir, map::FLOWS, len(map::FLOWS))?,
            overflow: mapping(dir, map::OVERFLOW, len(map::OVERFLOW))?,
            control,
            spill,
            prefixes,
            classes,
            reading: None,
            quiet: false,
        }))
    }

    /// Where the maps are pinned.
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

    fn epoch(&self) -> &AtomicU64 {
        // SAFETY: the word is 8-byte aligned, lives as long as the mapping, and is written by this daemon alone.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.control.as_ptr()).epoch) }
    }

    /// Settles what a former daemon left: `committed` is the last epoch of these tables that the store has.
    ///
    /// # Errors
    /// When waiting or emptying fails.
    pub fn recover(&mut self, committed: Option<u64>) -> Result<(), KernelError> {
        let quiet = self.epoch().load(Ordering::Relaxed) - 1;
        if quiet == 0 {
            return Ok(());
        }
        // The former daemon may have died before it had waited.
        sysbpf::grace_period().map_err(KernelError::Grace)?;
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
    pub fn turn(&mut self) -> Result<(), KernelError> {
        if self.reading.is_none() {
            self.reading = Some(self.epoch().fetch_add(1, Ordering::SeqCst));
        }
        if !self.quiet {
            sysbpf::grace_period().map_err(KernelError::Grace)?;
            self.quiet = true;
        }
        Ok(())
    }

    /// The counts of the quiet half, after [`Tables::turn`]; `clock` was read since then.
    ///
    /// # Errors
    /// When a map cannot be read; nothing is lost, the next call reads the same epoch.
    pub fn read(&self, clock: &Clock) -> Result<Batch, KernelError> {
        let epoch = self.reading.unwrap_or_default();
        let half = (epoch & 1) as u8;
        let mut batch = Batch { table: self.id, epoch, ..Batch::default() };
        let (from, len) = self.half_of(half, self.geometry.sets);
        // SAFETY: the quiet half.
        for set in unsafe { self.flows.part(from, len) } {
            for way in (0..WAYS).filter(|&way| set.first[way] != 0) {
                let slot = &set.slot[way];
                batch.flows.push(FlowDelta {
                    estimated: false,
                    key: flow_key(&slot.key),
                    packets: slot.packets.into(),
                    bytes: slot.bytes,
                    first_ms: clock.stamp_to_unix_ms(set.first[way]),
                    last_ms: clock.stamp_to_unix_ms(slot.last),
                });
            }
        }
        let raw = self.raw_counters(half);
        if raw.spilled > 0 {
            for (key, value) in self.spilled(half)? {
                batch.flows.push(FlowDelta {
                    estimated: false,
                    key: flow_key(&key),
                    packets: value.packets,
                    bytes: value.bytes,
                    first_ms: clock.stamp_to_unix_ms(value.first),
                    last_ms: clock.stamp_to_unix_ms(value.last),
                });
            }
        }
        if raw.overflow_packets > 0 {
            batch.overflow = self.read_overflow(half);
        }
        batch.counters = counters(&raw);
        for flow in &batch.flows {
            batch.counters.flow_packets += flow.packets;
            batch.counters.flow_bytes += flow.bytes;
        }
        Ok(batch)
    }

    /// Says that the last batch is safe: its half is emptied and may be filled again.
    ///
    /// # Errors
    /// When the second-level table cannot be emptied; the call is to be repeated before the next read.
    pub fn committed(&mut self) -> Result<(), KernelError> {
        let Some(epoch) = self.reading else { return Ok(()) };
        let half = (epoch & 1) as u8;
        let raw = self.raw_counters(half);
        if raw.spilled > 0 {
            let keys: Vec<AbiKey> = self.spilled(half)?.into_iter().map(|(key, _)| key).collect();
            sysbpf::delete_from_hash(self.spill.fd().as_fd(), &keys)
                .map_err(|e| KernelError::map(&self.dir.join(map::SPILL), e))?;
        }
        let (from, len) = self.half_of(half, self.geometry.sets);
        // SAFETY: the quiet half, here and below.
        for set in unsafe { self.flows.part_mut(from, len) } {
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
        if raw.overflow_packets > 0 {
            let (from, len) = self.half_of(half, self.geometry.classes);
            // SAFETY: as above.
            unsafe { self.overflow.part_mut(from, len) }.fill(OverflowCell::default());
        }
        compiler_fence(Ordering::SeqCst);
        // The counters last: they say whether the second level and the cells have anything of this half.
        let (from, len) = self.half_of(half, 1);
        // SAFETY: as above.
        unsafe { self.counters.part_mut(from, len) }.fill(kmod_bpf::Counters::default());
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
            live.flow_packets =
                live.seen().saturating_sub(live.overflow_packets + live.non_ip + live.malformed);
            sum.add(&live);
        }
        sum
    }

    /// Whether overflow is counted by exactly these prefixes: for each an address that stands for it, v4-mapped, and its
    /// length.
    pub fn has_prefixes(&self, wanted: &[(Ipv6Addr, u8)]) -> bool {
        let present: Option<HashSet<_>> = self
            .prefixes
            .keys()
            .map(|k| k.ok().map(|k| (Ipv6Addr::from(k.data()), k.prefix_len())))
            .collect();
        present == Some(wanted.iter().map(|&(address, len)| (address, u32::from(len))).collect())
    }

    /// Gives fresh tables the prefixes that overflow is to be counted by. Their classes never change: a half may hold
    /// counts under them.
    ///
    /// # Errors
    /// When the prefix table cannot be written.
    pub fn set_prefixes(&mut self, prefixes: &[(Ipv6Addr, u8)]) -> Result<(), KernelError> {
        for (class, &(address, len)) in (1..).zip(prefixes) {
            let key = lpm_trie::Key::new(u32::from(len), address.octets());
            self.prefixes
                .insert(&key, class, 0)
                .map_err(|e| KernelError::map(&self.dir.join(map::PREFIXES), e))?;
            self.classes.insert(class, address);
        }
        Ok(())
    }

    /// Removes the pins; the maps vanish with their last user.
    ///
    /// # Errors
    /// Those of removing files.
    pub fn remove_pins(self) -> io::Result<()> {
        remove_dir(&self.dir)
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
            let c = unsafe { self.counters.as_ptr().add(cpu).read_volatile() };
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
        }
        sum
    }

    fn spilled(&self, half: u8) -> Result<Vec<(AbiKey, SpillValue)>, KernelError> {
        let mut entries = sysbpf::read_hash(self.spill.fd().as_fd())
            .map_err(|e| KernelError::map(&self.dir.join(map::SPILL), e))?;
        entries.retain(|(key, _): &(AbiKey, SpillValue)| key.used == kmod_bpf::USED + half);
        Ok(entries)
    }

    fn read_overflow(&self, half: u8) -> Vec<OverflowDelta> {
        let (from, len) = self.half_of(half, self.geometry.classes);
        // SAFETY: the quiet half.
        let cells = unsafe { self.overflow.part(from, len) };
        let used = cells.iter().enumerate().filter(|(_, cell)| **cell != OverflowCell::default());
        used.filter_map(|(index, cell)| {
            let class = index as u32 % self.geometry.classes;
            let counts = InOut {
                in_packets: cell.in_packets,
                in_bytes: cell.in_bytes,
                out_packets: cell.out_packets,
                out_bytes: cell.out_bytes,
            };
            self.classes.get(&class).map(|&address| OverflowDelta { address, counts })
        })
        .collect()
    }
}

/// Removes a folder of pins; bpffs has no deeper levels here.
pub fn remove_dir(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(dir)
}

fn pinned(dir: &Path, name: &str) -> Result<MapData, KernelError> {
    let path = dir.join(name);
    MapData::from_pin(&path).map_err(|e| KernelError::map(&path, e))
}

fn mapping<T>(dir: &Path, name: &str, len: usize) -> Result<Mapping<T>, KernelError> {
    Mapping::new(pinned(dir, name)?.fd().as_fd(), len).map_err(|e| KernelError::map(&dir.join(name), e))
}

fn flow_key(key: &AbiKey) -> FlowKey {
    FlowKey {
        src: key.src.into(),
        dst: key.dst.into(),
        sport: u16::from_be_bytes(key.sport),
        dport: u16::from_be_bytes(key.dport),
        vlan: key.vlan,
        vlan_inner: key.vlan_inner,
        proto: key.proto,
        version: key.version,
        fragment: key.fragment != 0,
    }
}

fn counters(raw: &kmod_bpf::Counters) -> Counters {
    Counters {
        packets_in: raw.packets_in,
        packets_out: raw.packets_out,
        already_counted: raw.already_counted,
        flow_packets: 0,
        flow_bytes: 0,
        overflow_packets: raw.overflow_packets,
        overflow_bytes: raw.overflow_bytes,
        non_ip: raw.non_ip,
        malformed: raw.malformed,
        fragments: raw.fragments,
        spilled: raw.spilled,
        gso_headers_unknown: raw.gso_headers_unknown,
        ..Counters::default()
    }
}
