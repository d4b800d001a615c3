//! The in-kernel source: eBPF programs on tc hooks that add each packet to pinned flow tables.
//!
//! [`KernelSource`] joins the tables ([`tables`]) with the hooks ([`hooks`]). It promises that counts outlive the daemon
//! and that each is handed out exactly once, and that every packet of the configured interfaces passes one program. It
//! knows neither units nor the store: of the latter it is told an identity and the last epoch that was committed.
//!
//! Pins: `BPFFS/netams/NETNS/TABLE/MAP` and `BPFFS/netams/NETNS/links/IFINDEX-DIRECTION`.

mod clock;
pub mod hooks;
mod link;
mod sysbpf;
pub mod tables;

use std::{
    fmt::Display,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use aya::{Ebpf, EbpfLoader, programs::SchedClassifier, util::KernelVersion};
use kmod_bpf::{WAYS, constant};
use tracing::info;

pub use self::{
    clock::{Clock, unix_ms},
    hooks::{Direction, HookInfo, Style},
    link::Monitor,
    sysbpf::is_bpffs,
    tables::{Geometry, Tables},
};
use crate::flow::{Batch, Counters};

/// The oldest kernel that has all that the programs need (CAP_BPF; mmapable arrays 5.5, batches 5.6, gso_size 5.7).
pub const OLDEST_KERNEL: (u8, u8) = (5, 8);

/// What went wrong between the daemon and the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The BPF filesystem cannot be had.
    #[error(
        "cannot mount a BPF filesystem on {0}: {1}; mount one there (`mount -t bpf bpf {0}`) or set kernel.bpffs"
    )]
    Bpffs(PathBuf, io::Error),
    /// A folder of pins cannot be read or written.
    #[error("cannot use {0}: {1}")]
    Pins(PathBuf, io::Error),
    /// A map cannot be opened, mapped, read or written.
    #[error("flow table {0}: {1}")]
    Map(PathBuf, String),
    /// Pinned tables have another layout.
    #[error(
        "{0} holds the tables of another version of netamsd; stop that one, or give up their counts with `netamsd --cleanup`"
    )]
    Abi(PathBuf),
    /// The programs were refused.
    #[error("the kernel refused the programs: {0}")]
    Load(String),
    /// The object lacks something that is named in the ABI.
    #[error("the compiled programs are not those of this daemon; build netams again")]
    Object,
    /// An interface cannot be attached to.
    #[error("cannot attach to {0}: {1}")]
    Attach(String, String),
    /// The device has neither an Ethernet header nor does it start at layer 3.
    #[error("devices of this link type cannot be metered")]
    Unsupported,
    /// A pinned link belongs to nothing that is wanted.
    #[error("the interface is gone")]
    Gone,
    /// A hook cannot be asked for its programs.
    #[error("cannot list the programs of a hook: {0}")]
    Query(io::Error),
    /// rtnetlink failed.
    #[error("netlink: {0}")]
    Netlink(io::Error),
    /// The clock program cannot be run.
    #[error("cannot read the clock of the programs: {0}")]
    Clock(String),
    /// It is not possible to wait until no program uses the old half.
    #[error("cannot wait for running programs: {0}")]
    Grace(io::Error),
    /// The configured tables do not fit.
    #[error(
        "the flow tables need {need_mib} MiB of kernel memory, of which {free_mib} MiB are free; lower kernel.flows"
    )]
    Memory {
        /// Wanted.
        need_mib: u64,
        /// Available.
        free_mib: u64,
    },
    /// An interface that is spelled out does not exist.
    #[error("there is no interface {0}; correct kernel.interfaces, or ignore this if it will appear later")]
    NoInterface(String),
    /// The source cannot run on this machine.
    #[error("{0}")]
    Machine(String),
}

impl KernelError {
    fn map(path: &Path, e: impl Display) -> Self {
        Self::Map(path.to_owned(), e.to_string())
    }

    fn attach(interface: &str, e: impl std::error::Error) -> Self {
        Self::Attach(interface.to_owned(), chain(&e))
    }
}

/// An error with its causes in one line.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}

/// Something that belongs in the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Short name.
    pub kind: &'static str,
    /// One sentence.
    pub detail: String,
    /// Wire packets that may not have been counted, an upper bound.
    pub missed: u64,
}

impl Notice {
    fn new(kind: &'static str, detail: String, missed: u64) -> Self {
        Self { kind, detail, missed }
    }
}

/// How the source is set up.
pub struct Options {
    /// Which interfaces are metered, by name.
    pub wanted: Box<dyn Fn(&str) -> bool + Send>,
    /// How to attach; `None` chooses tcx where the kernel has it.
    pub style: Option<Style>,
    /// Attach at all.
    pub attach: bool,
    /// First-level flow slots a CPU and a half, a power of two.
    pub flows: u32,
    /// Second-level entries.
    pub spill: u32,
    /// Where the BPF filesystem is or is to be mounted.
    pub bpffs: PathBuf,
    /// Identity of the store that the counts go to.
    pub store: u64,
    /// Prefixes that overflow is counted by: first address and length, v4-mapped.
    pub prefixes: Vec<(std::net::Ipv6Addr, u8)>,
}

impl Options {
    /// Sizes of the tables on this machine.
    pub fn geometry(&self) -> Geometry {
        // Room for as many prefixes again, so that a changed configuration needs no new tables.
        let classes = (2 * (self.prefixes.len() as u32 + 1)).next_power_of_two().max(256);
        Geometry { cpus: possible_cpus(), sets: self.flows / WAYS as u32, spill: self.spill, classes }
    }
}

/// CPUs that the kernel may ever bring up.
pub fn possible_cpus() -> u32 {
    aya::util::nr_cpus().map_or(1, |n| n as u32)
}

/// Why this machine cannot run the source, in a sentence; `Ok` when it can.
///
/// # Errors
/// [`KernelError::Machine`].
pub fn can_run() -> Result<(), KernelError> {
    let (major, minor) = OLDEST_KERNEL;
    let now = KernelVersion::current()
        .map_err(|e| KernelError::Machine(format!("cannot tell the kernel's version: {e}")))?;
    if now < KernelVersion::new(major, minor, 0) {
        return Err(KernelError::Machine(format!(
            "this kernel is older than {major}.{minor}, which the eBPF source needs; boot a newer one"
        )));
    }
    Ok(())
}

/// Whether programs can be attached by tcx links here.
pub fn has_tcx() -> bool {
    /// The loopback interface of every network namespace.
    const LOOPBACK: u32 = 1;
    sysbpf::tcx_programs(LOOPBACK, true).is_ok()
}

/// Loads the programs with their maps of the given sizes, and `more` maps of the object by name and entries; with `pins`,
/// existing maps are used and new ones pinned.
///
/// # Errors
/// When the object is damaged or the kernel refuses it.
pub fn load(
    object: &[u8],
    geometry: Geometry,
    more: &[(&str, u32)],
    pins: Option<&Path>,
) -> Result<Ebpf, KernelError> {
    let attempt = || -> Result<Ebpf, String> {
        let seed = seeds().map_err(|e| e.to_string())?;
        let mark = mark().map_err(|e| e.to_string())?;
        let mut loader = EbpfLoader::new();
        for (name, entries) in geometry.entries() {
            loader.map_max_entries(name, entries);
            if let Some(pins) = pins {
                loader.map_pin_path(name, pins.join(name));
            }
        }
        for (name, entries) in more {
            loader.map_max_entries(name, *entries);
        }
        let mut ebpf = loader
            .override_global(constant::CPUS, &geometry.cpus, false)
            .override_global(constant::SETS, &geometry.sets, false)
            .override_global(constant::CLASSES, &geometry.classes, false)
            .override_global(constant::MARK, &mark, false)
            .override_global(constant::SEED, &seed[..], false)
            .load(object)
            .map_err(|e| chain(&e))?;
        for (name, program) in ebpf.programs_mut() {
            let program: &mut SchedClassifier =
                program.try_into().map_err(|_| format!("{name}: wrong type"))?;
            program.load().map_err(|e| format!("{name}: {}", chain(&e)))?;
        }
        Ok(ebpf)
    };
    attempt()
        .or_else(|e| {
            // Before Linux 5.11 maps count as locked memory; later, raising the limit may be refused and is not needed.
            use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
            setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).map_err(|_| e)?;
            attempt()
        })
        .map_err(KernelError::Load)
}

/// The running source.
pub struct KernelSource {
    tables: Tables,
    former: Vec<Tables>,
    hooks: Hooks,
    attach: bool,
    adopted: bool,
}

use hooks::Hooks;

impl KernelSource {
    /// Opens or makes the tables, attaches the programs and takes over what a former daemon left.
    ///
    /// # Errors
    /// When the machine, the configuration or leftovers do not allow it; nothing is attached then that was not before.
    pub fn open(options: Options, now_ms: i64) -> Result<(Self, Vec<Notice>), KernelError> {
        can_run()?;
        sysbpf::ensure_bpffs(&options.bpffs).map_err(|e| KernelError::Bpffs(options.bpffs.clone(), e))?;
        let root = namespace_dir(&options.bpffs)?;
        let failed = |e| KernelError::Pins(root.clone(), e);
        fs::create_dir_all(&root).map_err(failed)?;
        let (mut ours, foreign) = former_tables(&root, options.store)?;

        let adopted_any = !ours.is_empty();
        let geometry = options.geometry();
        let position = ours.iter().position(|t| t.geometry() == geometry);
        let mut adopted = position.map(|p| ours.remove(p));
        if let Some(tables) = &mut adopted
            && !tables.set_prefixes(&options.prefixes)?
        {
            ours.extend(adopted.take());
        }
        let (tables, ebpf) = match adopted {
            Some(tables) => {
                let ebpf = load(kmod_bpf::OBJECT, geometry, &[], Some(tables.dir()))?;
                (tables, ebpf)
            }
            None => fresh_tables(&root, geometry, &options)?,
        };
        let style = options.style.unwrap_or(if has_tcx() { Style::Tcx } else { Style::Clsact });
        let mut hooks = Hooks::new(ebpf, style, root.join("links"), options.wanted);
        let mut notices = Vec::new();
        if options.attach {
            hooks.adopt(now_ms)?;
            notices.extend(hooks.sync(now_ms)?);
        } else {
            let _ = tables::remove_dir(&root.join("links"));
        }
        // From here on no program adds to former tables.
        sysbpf::grace_period().map_err(KernelError::Grace)?;
        for tables in foreign {
            let held = tables.live_counters().seen();
            let detail = format!(
                "removed tables of another state folder; {held} packets in them are not in this store"
            );
            notices.push(Notice::new("foreign_tables", detail, 0));
            tables.remove_pins().map_err(failed)?;
        }
        Ok((Self { tables, former: ours, hooks, attach: options.attach, adopted: adopted_any }, notices))
    }

    /// The tables that are being filled.
    pub fn tables(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// The tables of a former configuration, to be read out, committed and removed.
    pub fn take_former(&mut self) -> Vec<Tables> {
        std::mem::take(&mut self.former)
    }

    /// Whether tables of a former daemon of this store were there.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Reads the clock of the stamps.
    ///
    /// # Errors
    /// When the clock program cannot be run.
    pub fn clock(&self) -> Result<Clock, KernelError> {
        self.hooks.stamp().map(Clock::with_stamp)
    }

    /// The counts of everything up to now, or once more those that are still to be committed.
    ///
    /// # Errors
    /// When waiting or reading fails; nothing is lost, the next call reads the same epoch.
    pub fn read(&mut self) -> Result<Batch, KernelError> {
        self.tables.turn()?;
        self.tables.read(&self.clock()?)
    }

    /// See [`Hooks::sync`].
    ///
    /// # Errors
    /// Those of [`Hooks::sync`].
    pub fn sync_hooks(&mut self, now_ms: i64) -> Result<Vec<Notice>, KernelError> {
        if self.attach { self.hooks.sync(now_ms) } else { Ok(Vec::new()) }
    }

    /// The attached programs.
    pub fn hooks(&self) -> Vec<HookInfo> {
        self.hooks.list()
    }

    /// Name, index and packets, by the interface's own counters, of each metered interface.
    ///
    /// # Errors
    /// When interfaces cannot be listed.
    pub fn metered(&self) -> Result<Vec<(String, u32, u64)>, KernelError> {
        let hooks = self.hooks.list();
        let present = link::interfaces().map_err(KernelError::Netlink)?;
        let metered = present.into_iter().filter(|i| hooks.iter().any(|hook| hook.ifindex == i.index));
        Ok(metered.map(|i| (i.name, i.index, i.packets.iter().sum())).collect())
    }

    /// What the tables hold that was not handed out as committed.
    pub fn live_counters(&self) -> Counters {
        self.tables.live_counters()
    }

    /// Detaches all programs; the tables keep what they hold.
    ///
    /// # Errors
    /// When it cannot be waited until the last program has ended.
    pub fn detach(&mut self) -> Result<(), KernelError> {
        self.hooks.detach_all();
        sysbpf::grace_period().map_err(KernelError::Grace)
    }

    /// Ends, leaving programs attached and tables pinned.
    pub fn leave(mut self) {
        self.hooks.leave_attached();
    }

    /// Ends and removes the tables; programs must have been detached and everything committed.
    ///
    /// # Errors
    /// When pins cannot be removed.
    pub fn remove(self) -> Result<(), KernelError> {
        let dir = self.tables.dir().to_owned();
        self.tables.remove_pins().map_err(|e| KernelError::Pins(dir.clone(), e))?;
        if let Some(root) = dir.parent() {
            // Something else may be there.
            let _ = fs::remove_dir(root);
        }
        Ok(())
    }
}

/// Removes all programs and tables of this network namespace, whoever made them; says how many packets they held.
///
/// # Errors
/// When pins or filters cannot be removed.
pub fn cleanup(bpffs: &Path) -> Result<u64, KernelError> {
    let root = namespace_dir(bpffs)?;
    for interface in link::interfaces().map_err(KernelError::Netlink)? {
        for direction in [Direction::Ingress, Direction::Egress] {
            hooks::remove_filters(&interface, direction)?;
        }
    }
    let mut held = 0;
    if root.exists() {
        for dir in subfolders(&root)? {
            if let Ok(Some(tables)) = Tables::open(&dir) {
                held += tables.live_counters().seen();
            }
            tables::remove_dir(&dir).map_err(|e| KernelError::Pins(dir, e))?;
        }
        fs::remove_dir(&root).map_err(|e| KernelError::Pins(root, e))?;
    }
    Ok(held)
}

fn subfolders(root: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let failed = |e| KernelError::Pins(root.to_owned(), e);
    let entries = fs::read_dir(root).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Ok(entries.into_iter().map(|e| e.path()).filter(|p| p.is_dir()).collect())
}

/// Tables left in `root`: those of our store, and those of others. Incomplete ones are removed.
fn former_tables(root: &Path, store: u64) -> Result<(Vec<Tables>, Vec<Tables>), KernelError> {
    let (mut ours, mut foreign) = (Vec::new(), Vec::new());
    for dir in subfolders(root)?.into_iter().filter(|d| !d.ends_with("links")) {
        match Tables::open(&dir)? {
            Some(tables) if tables.store() == store => ours.push(tables),
            Some(tables) => foreign.push(tables),
            None => tables::remove_dir(&dir).map_err(|e| KernelError::Pins(dir, e))?,
        }
    }
    Ok((ours, foreign))
}

fn fresh_tables(root: &Path, geometry: Geometry, options: &Options) -> Result<(Tables, Ebpf), KernelError> {
    info!("flow tables: {}", fits(geometry)?);
    let id = seeds().map_err(|e| KernelError::Machine(format!("no random numbers: {e}")))?[7];
    let dir = root.join(format!("{id:016x}"));
    fs::create_dir(&dir).map_err(|e| KernelError::Pins(dir.clone(), e))?;
    let made = load(kmod_bpf::OBJECT, geometry, &[], Some(&dir)).and_then(|ebpf| {
        Tables::initialize(&dir, geometry, id, options.store)?;
        let mut tables = Tables::open(&dir)?.ok_or(KernelError::Object)?;
        tables.set_prefixes(&options.prefixes)?;
        Ok((tables, ebpf))
    });
    if made.is_err() {
        let _ = tables::remove_dir(&dir);
    }
    made
}

/// What tables of this size cost, in a sentence.
///
/// # Errors
/// When that is more than half of the memory that is free: the machine has other things to do with it.
pub fn fits(geometry: Geometry) -> Result<String, KernelError> {
    let free = available_memory().unwrap_or(u64::MAX);
    let need = geometry.bytes();
    if need > free / 2 {
        return Err(KernelError::Memory { need_mib: need >> 20, free_mib: free >> 20 });
    }
    Ok(format!(
        "{} flows a CPU and a half, {} CPUs, {} second-level entries: {:.1} MiB of kernel memory",
        geometry.sets * WAYS as u32,
        geometry.cpus,
        geometry.spill,
        need as f64 / f64::from(1 << 20)
    ))
}

/// Names of all interfaces of this network namespace.
///
/// # Errors
/// When they cannot be listed.
pub fn interface_names() -> Result<Vec<String>, KernelError> {
    let interfaces = link::interfaces().map_err(KernelError::Netlink)?;
    Ok(interfaces.into_iter().map(|i| i.name).collect())
}

/// Folder of this network namespace: programs and tables of different namespaces never meet.
fn namespace_dir(bpffs: &Path) -> Result<PathBuf, KernelError> {
    let inode =
        netns().map_err(|e| KernelError::Machine(format!("cannot tell the network namespace: {e}")))?;
    Ok(bpffs.join("netams").join(inode.to_string()))
}

fn netns() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// What the programs write into `tc_index` of counted packets: 1 to 65535, the same for all daemons of a namespace.
fn mark() -> io::Result<u32> {
    Ok((netns()? % 0xffff) as u32 + 1)
}

/// Random odd numbers.
fn seeds() -> io::Result<[u64; 8]> {
    use std::io::Read;
    let mut bytes = [0; 64];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut seeds = [0; 8];
    for (seed, chunk) in seeds.iter_mut().zip(bytes.chunks_exact(8)) {
        *seed = chunk.iter().fold(0u64, |n, b| n << 8 | u64::from(*b)) | 1;
    }
    Ok(seeds)
}

/// `MemAvailable` of /proc/meminfo, bytes.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? << 10)
}
