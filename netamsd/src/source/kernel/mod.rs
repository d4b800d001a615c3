//! The in-kernel source: eBPF programs on tc hooks that add each packet to pinned flow tables.
//!
//! [`KernelSource`] joins the tables ([`maps`]) with the hooks ([`hooks`]). It promises that counts outlive the daemon
//! and that each is handed out exactly once, and that every packet of the configured interfaces passes one program. It
//! knows neither units nor the store: of the latter it is told an identity and the last epoch that was committed.
//!
//! Pins: `BPFFS/netams/NETNS/TABLE/MAP` and `BPFFS/netams/NETNS/links/IFINDEX-DIRECTION`.

mod adopt;
mod error;
pub mod hooks;
mod link;
mod machine;
pub mod maps;
mod policies;
mod quotas;
mod sysbpf;

use std::{
    fs,
    path::{Path, PathBuf},
};

use aya::{Ebpf, EbpfLoader, programs::SchedClassifier};
use kmod_bpf::{WAYS, constant, map, program};
use tracing::info;

pub use kmod_bpf::flag;

pub use self::{
    error::KernelError,
    hooks::{Direction, Duty, HookInfo, Style},
    link::Monitor,
    machine::{
        PRIVATE_MOUNT, can_run, fits, has_tcx, in_private_mounts, interface_names, passed_interfaces,
        possible_cpus,
    },
    maps::Tables,
    policies::{Policies, Switches},
    quotas::Limit,
    sysbpf::is_bpffs,
};
use self::{
    error::chain,
    hooks::Hooks,
    machine::{mark, netns},
};
use super::{
    Clock, Notice,
    tables::{Geometry, Tunnels, selections},
};
use crate::flow::{Counters, Prefix};

/// A metered interface.
#[derive(Debug, Clone)]
pub struct Metered {
    /// Name.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Packets received and sent, by the interface's own counters: super-packets count as one.
    pub packets: u64,
    /// All its programs were taken over from a former daemon.
    pub adopted: bool,
}

/// Bits of `skb->mark` that the programs write while they are told to, see [`kmod_bpf::flag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// The one bit of packets that have been counted.
    pub handover: u32,
    /// The 16 adjacent bits for segment sizes.
    pub stamp: u32,
}

impl Default for Marks {
    /// Those that the configuration begins with.
    fn default() -> Self {
        Self { handover: 0x800, stamp: 0xffff_0000 }
    }
}

/// How the source is set up.
pub struct Options {
    /// Which interfaces are metered, by name.
    pub wanted: Box<dyn Fn(&str) -> bool + Send>,
    /// How to attach; `None` chooses tcx where the kernel has it.
    pub style: Option<Style>,
    /// What the programs are for.
    pub duty: Duty,
    /// What they are told in tables without a history; others go on as they were told.
    pub flags: u32,
    /// Bits of the packets' marks.
    pub marks: Marks,
    /// First-level flow slots a CPU and a half, a power of two.
    pub flows: u32,
    /// Second-level entries.
    pub spill: u32,
    /// Where the BPF filesystem is or is to be mounted.
    pub bpffs: PathBuf,
    /// Identity of the store that the counts go to.
    pub store: u64,
    /// What is accounted of packets in tunnels.
    pub tunnels: Tunnels,
    /// Prefixes that overflow is counted by, and the units of addresses are told by.
    pub prefixes: Vec<Prefix>,
    /// What packets are judged by; `None`: all pass.
    pub policies: Option<Policies>,
    /// Flags of unit 0 and of each unit, and which schedules hold.
    pub state: (Vec<u32>, Vec<bool>),
    /// How the hard quotas stand.
    pub limits: Vec<Limit>,
}

/// What the programs are loaded with beside the sizes of the tables.
#[derive(Debug, Clone, Copy, Default)]
pub struct Constants {
    /// Bits of the packets' marks.
    pub marks: Marks,
    /// What is accounted of packets in tunnels.
    pub tunnels: Tunnels,
    /// [`selections`] of the prefixes.
    pub selections: u8,
    /// Verdicts are enforced.
    pub enforce: bool,
    /// How many hard quotas there are.
    pub quotas: u32,
}

impl Options {
    /// Sizes of the tables on this machine.
    ///
    /// # Errors
    /// When the number of CPUs cannot be told.
    pub fn geometry(&self) -> Result<Geometry, KernelError> {
        let cpus = possible_cpus().map_err(|e| KernelError::Machine(format!("cannot tell the CPUs: {e}")))?;
        // Class 0 is none.
        let classes = (self.prefixes.len() as u32 + 1).next_power_of_two();
        Ok(Geometry { cpus, sets: self.flows / WAYS as u32, spill: self.spill, classes })
    }

    fn constants(&self) -> Constants {
        Constants {
            marks: self.marks,
            tunnels: self.tunnels,
            selections: selections(&self.prefixes),
            enforce: self.policies.is_some(),
            quotas: self.policies.as_ref().map_or(0, |policies| policies.quota_rules.len() as u32),
        }
    }

    /// Loads the programs with the maps pinned in `pins`, and gives them the policies.
    fn load(&self, geometry: Geometry, pins: &Path) -> Result<(Ebpf, Option<Switches>), KernelError> {
        let sizes = self.policies.as_ref().map(Policies::sizes);
        let more = sizes.as_ref().map_or(&[][..], |sizes| sizes);
        let mut ebpf = load(kmod_bpf::OBJECT, geometry, self.constants(), more, Some(pins))?;
        let install = |policies: &Policies| policies.install(&mut ebpf);
        let switches = self.policies.as_ref().map(install).transpose()?;
        Ok((ebpf, switches))
    }
}

/// Loads the programs with these constants and maps of the given sizes, and `more` maps of the object by name and entries; with `pins`,
/// existing maps are used and new ones pinned.
///
/// # Errors
/// When the object is damaged or the kernel refuses it.
pub fn load(
    object: &[u8],
    geometry: Geometry,
    constants: Constants,
    more: &[(&str, u32)],
    pins: Option<&Path>,
) -> Result<Ebpf, KernelError> {
    let Constants { marks, tunnels, selections, enforce, quotas } = constants;
    let attempt = || -> Result<Ebpf, String> {
        let seed = super::random().map_err(|e| e.to_string())?;
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
        for name in [map::QUOTA_ROOMS, map::QUOTA_USES].into_iter().filter(|_| quotas > 0) {
            if let Some(pins) = pins {
                loader.map_pin_path(name, pins.join(name));
            }
        }
        let mut ebpf = loader
            .override_global(constant::CPUS, &geometry.cpus, false)
            .override_global(constant::SETS, &geometry.sets, false)
            .override_global(constant::CLASSES, &geometry.classes, false)
            .override_global(constant::MARK, &mark[0], false)
            .override_global(constant::MARK_OTHER, &mark[1], false)
            .override_global(constant::TUNNELS, &tunnels.number(), false)
            .override_global(constant::SCOPES, &u32::from(selections), false)
            .override_global(constant::ENFORCE, &u32::from(enforce), false)
            .override_global(constant::QUOTAS, &quotas, false)
            .override_global(constant::HANDOVER, &marks.handover, false)
            .override_global(constant::STAMP_SHIFT, &marks.stamp.trailing_zeros(), false)
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
    inherited: bool,
    switches: Option<Switches>,
}

impl KernelSource {
    /// Opens or makes the tables, attaches the programs and takes over what a former daemon left.
    ///
    /// # Errors
    /// When the machine, the configuration or leftovers do not allow it; nothing is attached then that was not before.
    pub fn open(options: Options, now_ms: i64) -> Result<(Self, Vec<Notice>), KernelError> {
        can_run()?;
        let mounted =
            sysbpf::ensure_bpffs(&options.bpffs).map_err(|e| KernelError::Bpffs(options.bpffs.clone(), e))?;
        let mut notices = Vec::new();
        if mounted && in_private_mounts() {
            notices.push(Notice::new("private_mount", PRIVATE_MOUNT.to_owned(), 0));
        }
        let root = namespace_dir(&options.bpffs)?;
        let failed = |e| KernelError::Pins(root.clone(), e);
        fs::create_dir_all(&root).map_err(failed)?;
        let (mut ours, foreign) = former_tables(&root, options.store)?;

        let geometry = options.geometry()?;
        let quotas = options.policies.as_ref().map_or(0, |policies| policies.quotas);
        let fits = |t: &Tables| {
            t.geometry() == geometry && t.is_for(options.tunnels, &options.prefixes) && t.quotas() == quotas
        };
        let fitting = ours.iter().position(fits);
        let inherited = fitting.is_some();
        let (tables, (ebpf, switches)) = match fitting.map(|p| ours.remove(p)) {
            Some(tables) => {
                let loaded = options.load(geometry, tables.dir())?;
                (tables, loaded)
            }
            None => {
                let (tables, loaded) = fresh_tables(&root, geometry, &options)?;
                // When in doubt the programs count what nobody else does, and that is said later.
                let paused = |tables: &&Tables| tables.flags() & flag::PAUSED != 0;
                let former = ours.iter().find(paused).or(ours.last());
                tables.set_flags(former.map_or(options.flags, Tables::flags));
                (tables, loaded)
            }
        };
        if let Some(switches) = &switches {
            switches.set(&options.state.0, &options.state.1);
            switches.set_quotas(&options.limits);
        }
        let style = match options.style {
            Some(style) => style,
            None if has_tcx().map_err(KernelError::Query)? => Style::Tcx,
            None => Style::Clsact,
        };
        let mut hooks = Hooks::new(ebpf, style, root.join("links"), options.wanted, options.duty);
        hooks.adopt(now_ms)?;
        notices.extend(hooks.sync(now_ms)?);
        // From here on no program adds to former tables.
        tables.grace_period()?;
        for tables in foreign {
            let held = tables.live_counters().seen();
            let detail = format!(
                "removed tables of another state folder; {held} packets in them are not in this store"
            );
            notices.push(Notice::new("foreign_tables", detail, held));
            maps::remove(tables.dir()).map_err(failed)?;
        }
        Ok((Self { tables, former: ours, hooks, inherited, switches }, notices))
    }

    /// The tables that are being filled.
    pub fn tables(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// The tables of a former configuration, to be read out, committed and removed.
    pub fn take_former(&mut self) -> Vec<Tables> {
        std::mem::take(&mut self.former)
    }

    /// Whether the tables are those of a former daemon.
    pub fn inherited(&self) -> bool {
        self.inherited
    }

    /// Reads the clock of the stamps.
    ///
    /// # Errors
    /// When the clock program cannot be run.
    pub fn clock(&self) -> Result<Clock, KernelError> {
        self.hooks.stamp().map(Clock::of_jiffies)
    }

    /// See [`Hooks::sync`].
    ///
    /// # Errors
    /// Those of [`Hooks::sync`].
    pub fn sync_hooks(&mut self, now_ms: i64) -> Result<Vec<Notice>, KernelError> {
        self.hooks.sync(now_ms)
    }

    /// Says what the programs are for, and brings it about.
    ///
    /// # Errors
    /// Those of [`Hooks::sync`].
    pub fn set_duty(&mut self, duty: Duty, now_ms: i64) -> Result<Vec<Notice>, KernelError> {
        self.hooks.set_duty(duty);
        self.hooks.sync(now_ms)
    }

    /// Whether programs are attached.
    pub fn is_attached(&self) -> bool {
        !self.hooks.list().is_empty()
    }

    /// What the programs are told, see [`flag`].
    pub fn flags(&self) -> u32 {
        self.tables.flags()
    }

    /// Has packets judged by these flags of unit 0 and of each unit, and these schedules; flows that are known in this epoch
    /// keep their verdict, unless [`flag::REJUDGE`] says otherwise.
    pub fn set_state(&self, flags: &[u32], schedules: &[bool]) {
        if let Some(switches) = &self.switches {
            switches.set(flags, schedules);
        }
    }

    /// The tables' half of this epoch is committed, and the quotas stand like this in the store.
    pub fn settle_quotas(&mut self, half: Option<u8>, limits: &[Limit]) {
        if let Some(switches) = &mut self.switches {
            if let Some(half) = half {
                switches.quotas.committed(half);
            }
            switches.quotas.set(limits);
        }
    }

    /// Whether a packet has found no room in each hard quota in this period.
    pub fn reached_quotas(&self) -> Vec<bool> {
        self.switches.as_ref().map(|switches| switches.quotas.reached()).unwrap_or_default()
    }

    /// The attached programs.
    pub fn hooks(&self) -> Vec<HookInfo> {
        self.hooks.list()
    }

    /// The metered interfaces and their own counters.
    ///
    /// # Errors
    /// When interfaces cannot be listed.
    pub fn metered(&self) -> Result<Vec<Metered>, KernelError> {
        let hooks = self.hooks.list();
        let present = link::interfaces().map_err(KernelError::Netlink)?;
        let metered = |i: link::Interface| {
            let metering = |hook: &&HookInfo| hook.ifindex == i.index && hook.program != program::STAMP;
            let mut ours = hooks.iter().filter(metering).peekable();
            ours.peek()?;
            let adopted = ours.all(|hook| hook.adopted);
            Some(Metered { name: i.name, index: i.index, packets: i.packets.iter().sum(), adopted })
        };
        Ok(present.into_iter().filter_map(metered).collect())
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
        Ok(self.tables.grace_period()?)
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
        maps::remove(&dir).map_err(|e| KernelError::Pins(dir.clone(), e))?;
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
    remove_filters()?;
    let mut held = 0;
    if root.exists() {
        for dir in subfolders(&root)? {
            if let Ok(Some(tables)) = maps::open(&dir) {
                held += tables.live_counters().seen();
            }
            maps::remove(&dir).map_err(|e| KernelError::Pins(dir, e))?;
        }
        fs::remove_dir(&root).map_err(|e| KernelError::Pins(root, e))?;
    }
    Ok(held)
}

/// Removes our filters of killed daemons from all clsact qdiscs.
fn remove_filters() -> Result<(), KernelError> {
    for interface in link::interfaces().map_err(KernelError::Netlink)? {
        for direction in [Direction::Ingress, Direction::Egress] {
            adopt::remove_filters(&interface, direction)?;
        }
    }
    Ok(())
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
        match maps::open(&dir)? {
            Some(tables) if tables.store() == store => ours.push(tables),
            Some(tables) => foreign.push(tables),
            None => maps::remove(&dir).map_err(|e| KernelError::Pins(dir, e))?,
        }
    }
    Ok((ours, foreign))
}

fn fresh_tables(
    root: &Path,
    geometry: Geometry,
    options: &Options,
) -> Result<(Tables, (Ebpf, Option<Switches>)), KernelError> {
    info!("flow tables: {}", fits(geometry)?);
    let id = super::random().map_err(|e| KernelError::Machine(format!("no random numbers: {e}")))?[7];
    let dir = root.join(format!("{id:016x}"));
    fs::create_dir(&dir).map_err(|e| KernelError::Pins(dir.clone(), e))?;
    let made = options.load(geometry, &dir).and_then(|loaded| {
        maps::initialize(&dir, geometry, id, options.store, options.tunnels, &options.prefixes)?;
        maps::set_quotas(&dir, options.policies.as_ref().map_or(0, |policies| policies.quotas))?;
        Ok((maps::open(&dir)?.ok_or(KernelError::Object)?, loaded))
    });
    if made.is_err() {
        let _ = maps::remove(&dir);
    }
    made
}

/// Folder of this network namespace: programs and tables of different namespaces never meet.
fn namespace_dir(bpffs: &Path) -> Result<PathBuf, KernelError> {
    let inode =
        netns().map_err(|e| KernelError::Machine(format!("cannot tell the network namespace: {e}")))?;
    Ok(bpffs.join("netams").join(inode.to_string()))
}
