//! Flow tables in shared memory: files on tmpfs with the layout of the kernel's maps, which survive the daemon.
//!
//! `FOLDER/NETNS/TABLE/`: `control`, `counters`, `flows`, `spill` and `overflow` as in the kernel, but that each thread that
//! counts has a part where a CPU has one there, and that the second level is partitioned as well; `prefixes`, the class of
//! each; `journals`, one a thread. They belong to root and to nobody else: who can write here can write bills.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use kmod_bpf::{Control, Counters, FlowKey, FlowSet, FlowSlot, HALVES, OverflowCell, SpillValue, map};

use super::journal::Journal;
use crate::{
    flow::{Encapsulation, Prefix, Scope, Source, Tunnel},
    source::{
        mapping::Mapping,
        tables::{self, Backing, Geometry, TablesError, Tunnels, fresh_control, head},
    },
};

/// Tables that the queues' threads fill.
pub type Tables = tables::Tables<Shared>;

const JOURNALS: &str = "journals";
/// A thread that has not ended its batch by then hangs.
const GRACE: Duration = Duration::from_secs(5);

/// One flow of the second level.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SpillEntry {
    /// Which flow; `used` is 0 when the entry is free.
    pub key: FlowKey,
    /// What was counted of it.
    pub value: SpillValue,
}

/// Second-level entries of a thread and a half.
pub fn spill_part(geometry: Geometry) -> u32 {
    let each = (geometry.spill / (HALVES as u32 * geometry.cpus)).max(4);
    1 << each.ilog2()
}

/// The second level, and who counts.
pub struct Shared {
    geometry: Geometry,
    spill: Mapping<SpillEntry>,
    journals: Mapping<Journal>,
}

impl Shared {
    /// First entry and number of entries of `half`.
    fn half(&self, half: u8) -> (usize, usize) {
        let len = spill_part(self.geometry) as usize * self.geometry.cpus as usize;
        (usize::from(half) * len, len)
    }
}

impl Backing for Shared {
    const SOURCE: Source = Source::Nfqueue;

    fn grace_period(&self) -> io::Result<()> {
        let deadline = Instant::now() + GRACE;
        for thread in 0..self.geometry.cpus as usize {
            // SAFETY: one journal a thread.
            let busy = Journal::busy(unsafe { self.journals.as_ptr().add(thread) });
            let then = busy.load(Ordering::SeqCst);
            while then & 1 == 1 && busy.load(Ordering::SeqCst) == then {
                if Instant::now() > deadline {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("queue thread {thread} hangs"),
                    ));
                }
                thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    fn spilled(&self, half: u8) -> io::Result<Vec<(FlowKey, SpillValue)>> {
        let (from, len) = self.half(half);
        // SAFETY: the quiet half.
        let entries = unsafe { self.spill.part(from, len) };
        Ok(entries.iter().filter(|entry| entry.key.used != 0).map(|entry| (entry.key, entry.value)).collect())
    }

    fn clear_spilled(&mut self, half: u8) -> io::Result<()> {
        let (from, len) = self.half(half);
        // SAFETY: the quiet half.
        unsafe { self.spill.part_mut(from, len) }.fill(SpillEntry::default());
        Ok(())
    }
}

/// The tables as a thread that counts sees them: a mapping of its own, so that it ends with nobody else's.
pub struct Memory {
    /// Sizes.
    pub geometry: Geometry,
    control: Mapping<Control>,
    counters: Mapping<Counters>,
    flows: Mapping<FlowSet>,
    overflow: Mapping<OverflowCell>,
    spill: Mapping<SpillEntry>,
    journals: Mapping<Journal>,
}

impl Memory {
    /// Maps the tables in `dir`.
    ///
    /// # Errors
    /// When a file is missing or cannot be mapped.
    pub fn open(dir: &Path, geometry: Geometry) -> Result<Self, TablesError> {
        let sizes = Sizes::of(geometry);
        Ok(Self {
            geometry,
            control: mapping(dir, map::CONTROL, 1)?,
            counters: mapping(dir, map::COUNTERS, sizes.parts)?,
            flows: mapping(dir, map::FLOWS, sizes.sets)?,
            overflow: mapping(dir, map::OVERFLOW, sizes.cells)?,
            spill: mapping(dir, map::SPILL, sizes.spill)?,
            journals: mapping(dir, JOURNALS, geometry.cpus as usize)?,
        })
    }

    /// The journal of a thread, which is its own alone while it counts.
    pub fn journal(&self, thread: u32) -> *mut Journal {
        assert!(thread < self.geometry.cpus);
        // SAFETY: one journal a thread.
        unsafe { self.journals.as_ptr().add(thread as usize) }
    }

    /// The epoch, whose lowest bit is the half to fill.
    pub fn epoch(&self) -> u64 {
        // SAFETY: aligned, mapped as long as `self`.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut (*self.control.as_ptr()).epoch) }
            .load(Ordering::SeqCst)
    }

    /// The number of the [`Tunnels`] that the tables are for.
    pub fn tunnels(&self) -> u32 {
        // SAFETY: written before anyone has the tables, and never again.
        unsafe { (*self.control.as_ptr()).tunnels }
    }

    /// Counters of a part.
    pub fn counters(&self, part: u32) -> &Counters {
        // SAFETY: parts are written by their thread alone, or by the one reader while no thread is at them.
        unsafe { &self.counters.part(part as usize, 1)[0] }
    }

    /// A set of the first level.
    pub fn set(&self, index: u32) -> &FlowSet {
        // SAFETY: as for `counters`.
        unsafe { &self.flows.part(index as usize, 1)[0] }
    }

    /// An entry of the second level.
    pub fn spill(&self, index: u32) -> &SpillEntry {
        // SAFETY: as for `counters`.
        unsafe { &self.spill.part(index as usize, 1)[0] }
    }

    /// A cell of overflow.
    pub fn cell(&self, index: u32) -> &OverflowCell {
        // SAFETY: as for `counters`.
        unsafe { &self.overflow.part(index as usize, 1)[0] }
    }

    pub(super) fn set_counters(&self, part: u32, counters: Counters) {
        write(&self.counters, part, counters);
    }

    pub(super) fn set_slot(&self, index: u32, way: u32, slot: FlowSlot, first: u32) {
        let set = at(&self.flows, index);
        let way = way as usize % kmod_bpf::WAYS;
        // SAFETY: a set inside the mapping, of the thread's own part.
        unsafe {
            (&raw mut (*set).slot[way]).write(slot);
            (&raw mut (*set).first[way]).write(first);
        }
    }

    pub(super) fn set_spill(&self, index: u32, entry: SpillEntry) {
        write(&self.spill, index, entry);
    }

    pub(super) fn set_cell(&self, index: u32, cell: OverflowCell) {
        write(&self.overflow, index, cell);
    }
}

fn at<T>(mapping: &Mapping<T>, index: u32) -> *mut T {
    assert!((index as usize) < mapping.len());
    // SAFETY: inside the mapping.
    unsafe { mapping.as_ptr().add(index as usize) }
}

fn write<T>(mapping: &Mapping<T>, index: u32, value: T) {
    // SAFETY: inside the mapping, in the part of the thread that calls.
    unsafe { at(mapping, index).write(value) };
}

/// Values in each file.
struct Sizes {
    parts: usize,
    sets: usize,
    cells: usize,
    spill: usize,
}

impl Sizes {
    fn of(g: Geometry) -> Self {
        let parts = HALVES * g.cpus as usize;
        Self {
            parts,
            sets: parts * g.sets as usize,
            cells: parts * g.classes as usize,
            spill: parts * spill_part(g) as usize,
        }
    }
}

/// Bytes that tables of this size take.
pub fn bytes(geometry: Geometry) -> usize {
    files(geometry).iter().map(|(_, bytes)| bytes).sum()
}

fn files(geometry: Geometry) -> [(&'static str, usize); 6] {
    let sizes = Sizes::of(geometry);
    [
        (map::CONTROL, size_of::<Control>()),
        (map::COUNTERS, sizes.parts * size_of::<Counters>()),
        (map::FLOWS, sizes.sets * size_of::<FlowSet>()),
        (map::OVERFLOW, sizes.cells * size_of::<OverflowCell>()),
        (map::SPILL, sizes.spill * size_of::<SpillEntry>()),
        (JOURNALS, geometry.cpus as usize * size_of::<Journal>()),
    ]
}

/// Makes a folder that is only ours, or makes sure that it is.
///
/// # Errors
/// When it cannot be made, or belongs to somebody else or can be written by others.
pub fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    let ours = metadata.is_dir() && metadata.uid() == nix::unistd::geteuid().as_raw();
    if !ours || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "others own it or can write to it; remove it, or set another nfqueue.tables",
        ));
    }
    Ok(())
}

/// Makes fresh tables in the empty folder `dir`. Their memory is taken at once, so that a full tmpfs is an error here and
/// not a crash later.
///
/// # Errors
/// When files cannot be made or there is no room.
pub fn create(
    dir: &Path,
    geometry: Geometry,
    id: u64,
    store: u64,
    tunnels: Tunnels,
    prefixes: &[Prefix],
) -> Result<(), TablesError> {
    for (name, len) in files(geometry) {
        let path = dir.join(name);
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        made.and_then(|file| {
            nix::fcntl::posix_fallocate(&file, 0, len as libc::off_t).map_err(io::Error::from)
        })
        .map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull => TablesError::Full(dir.to_owned(), bytes(geometry)),
            _ => TablesError::map(&path, e),
        })?;
    }
    let path = dir.join(map::PREFIXES);
    let text: String = prefixes.iter().map(prefix_line).collect();
    fs::write(&path, text).map_err(|e| TablesError::map(&path, e))?;
    let control: Mapping<Control> = mapping(dir, map::CONTROL, 1)?;
    // SAFETY: nobody else has the fresh file.
    unsafe { control.as_ptr().write_volatile(fresh_control(geometry, id, store, tunnels)) };
    Ok(())
}

/// Opens the tables in `dir` and carries out what a killed thread had begun; `None` when they were never completed. No
/// thread may be counting there.
///
/// # Errors
/// When a file cannot be opened or has the layout of another version.
pub fn open(dir: &Path) -> Result<Option<Tables>, TablesError> {
    let path = dir.join(map::CONTROL);
    if fs::metadata(&path).map_or(0, |m| m.len()) < size_of::<Control>() as u64 {
        return Ok(None);
    }
    let control = mapping(dir, map::CONTROL, 1)?;
    let Some(head) = head(dir, &control)? else { return Ok(None) };
    let entries = |name: &str, size: usize| {
        let path = dir.join(name);
        fs::metadata(&path).map(|m| m.len() as usize / size).map_err(|e| TablesError::map(&path, e))
    };
    let spill = entries(map::SPILL, size_of::<SpillEntry>())? as u32;
    let geometry = Geometry { cpus: head.cpus, sets: head.sets, spill, classes: head.classes };
    let sizes = Sizes::of(geometry);
    let whole = [
        entries(map::COUNTERS, size_of::<Counters>())? >= sizes.parts,
        entries(map::FLOWS, size_of::<FlowSet>())? >= sizes.sets,
        entries(map::OVERFLOW, size_of::<OverflowCell>())? >= sizes.cells,
        entries(JOURNALS, size_of::<Journal>())? >= geometry.cpus as usize,
    ];
    if whole.contains(&false) {
        return Err(TablesError::map(dir, "a file is shorter than it was made; remove the folder"));
    }
    let memory = Memory::open(dir, geometry)?;
    for thread in 0..geometry.cpus {
        // SAFETY: no thread is counting.
        unsafe { &mut *memory.journal(thread) }.recover(&memory);
    }
    let shared = Shared { geometry, spill: memory.spill, journals: memory.journals };
    let memory = tables::Memory {
        control: memory.control,
        counters: memory.counters,
        flows: memory.flows,
        overflow: memory.overflow,
    };
    let prefixes = read_prefixes(dir)?;
    Ok(Some(Tables::new(dir, &head, spill, memory, prefixes, shared)))
}

/// Prefix of each class, from 1.
///
/// # Errors
/// When the file cannot be read.
pub fn read_prefixes(dir: &Path) -> Result<HashMap<u32, Prefix>, TablesError> {
    let path = dir.join(map::PREFIXES);
    let text = fs::read_to_string(&path).map_err(|e| TablesError::map(&path, e))?;
    let prefixes: Option<Vec<Prefix>> = text.lines().map(parse_prefix).collect();
    let prefixes = prefixes.ok_or_else(|| TablesError::map(&path, "not a list of prefixes"))?;
    Ok((1..).zip(prefixes).collect())
}

/// `ADDRESS/LENGTH VLAN INNER-VLAN KIND-OF-TUNNEL KEY`, 0 for whatever it may be.
fn prefix_line(prefix: &Prefix) -> String {
    let Prefix { scope: Scope { vlan, vlan_inner, tunnel }, address, len } = prefix;
    let (kind, key) = tunnel.map_or((0, 0), |tunnel| (tunnel.kind.number(), tunnel.key));
    format!("{address}/{len} {vlan} {vlan_inner} {kind} {key}\n")
}

fn parse_prefix(line: &str) -> Option<Prefix> {
    let mut words = line.split(['/', ' ']);
    let address = words.next()?.parse().ok()?;
    let len = words.next()?.parse().ok()?;
    let vlan = words.next()?.parse().ok()?;
    let vlan_inner = words.next()?.parse().ok()?;
    let kind = Encapsulation::from_number(words.next()?.parse().ok()?);
    let key = words.next()?.parse().ok()?;
    let scope = Scope { vlan, vlan_inner, tunnel: kind.map(|kind| Tunnel { kind, key }) };
    Some(Prefix { scope, address, len })
}

fn mapping<T>(dir: &Path, name: &str, len: usize) -> Result<Mapping<T>, TablesError> {
    let path = dir.join(name);
    let file = OpenOptions::new().read(true).write(true).open(&path);
    file.and_then(|file: File| Mapping::new(file.as_fd(), len)).map_err(|e| TablesError::map(&path, e))
}
