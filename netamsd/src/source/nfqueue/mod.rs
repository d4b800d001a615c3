//! The source in user space: netfilter hands every packet to the daemon and waits for a verdict.
//!
//! [`NfqueueSource`] joins the netfilter rules ([`rules`]), the queues with a thread each ([`worker`]) and the flow tables in
//! shared memory ([`shared`]). It promises that a packet is counted before it passes, that the tables outlive the daemon,
//! and that what the rules have counted and no thread has seen is told as such. When it counts, and in which order things
//! change hands, is the daemon's to say.

pub mod cache;
mod estimate;
mod fragments;
mod generation;
mod journal;
mod lane;
pub mod netlink;
mod prefixes;
pub mod rules;
pub mod shared;
pub mod status;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use kmod_bpf::{HALVES, WAYS};

use self::{
    generation::Generation,
    lane::Lane,
    netlink::{QueueError, QueueOptions},
    rules::Rules,
    shared::spill_part,
    worker::{Decided, Orders, Segments},
};
pub use self::{
    lane::LaneInfo,
    rules::{Backend, Gate, Installed, Plan, Reading, RuleCounter, RulesError},
    shared::Tables,
};
use super::{
    Clock, Notice,
    tables::{Geometry, Prefix, TablesError},
};
use crate::flow::Counters;

/// Asked for the buffer of each queue's socket, bytes: room for about 40,000 packets.
const BUFFER: usize = 16 << 20;
/// How long the queues may take to become empty after the last packet came.
const DRAIN: Duration = Duration::from_secs(3);
/// How long an answer waits for packets that came before the question.
const CATCH_UP: Duration = Duration::from_millis(250);
/// Prefix classes a half; class 0 is none.
const NO_CLASS: usize = 1;

/// What went wrong with the queues, their rules or their tables.
#[derive(Debug, thiserror::Error)]
pub enum NfqueueError {
    /// A queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The netfilter rules.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The flow tables.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The folder of the flow tables.
    #[error("cannot use {0} for the flow tables: {1}")]
    Folder(PathBuf, io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread for a queue: {0}")]
    Thread(io::Error),
    /// The system does not say what it has to.
    #[error("cannot read {0}: {1}")]
    System(&'static str, io::Error),
    /// Packets keep waiting although none come any more.
    #[error("{0} packets wait in the queues and get no verdict")]
    Waiting(u64),
}

/// How super-packets are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoMode {
    /// By the size that the tc programs write into the mark where they run, else cut by the kernel.
    Auto,
    /// Cut by the kernel.
    Exact,
    /// By inference.
    Estimate,
}

/// How the source is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which packets are queued.
    pub chains: Vec<rules::Chain>,
    /// Of which interfaces.
    pub interfaces: Vec<String>,
    /// Number of the first queue.
    pub first_queue: u16,
    /// Queues over which packets are spread.
    pub queues: u16,
    /// How super-packets are counted.
    pub gso: GsoMode,
    /// Packets pass when nobody takes them.
    pub fail_open: bool,
    /// Bits of the connmark for verdicts; `None`: every packet is queued.
    pub offload: Option<u32>,
    /// Tool for the rules; `None` chooses.
    pub backend: Option<Backend>,
    /// Each queue's thread stays on one CPU.
    pub pin: bool,
    /// Bytes copied of each packet.
    pub copy_bytes: u32,
    /// Packets that may wait in a queue.
    pub max_packets: u32,
    /// 16 bits of the mark with segment sizes.
    pub stamp: u32,
    /// The bit of the mark that says that a packet has been counted.
    pub handover: u32,
    /// Folder of the tables.
    pub folder: PathBuf,
    /// First-level flow slots a thread and a half, a power of two.
    pub flows: u32,
    /// Second-level entries.
    pub spill: u32,
    /// Identity of the store that the counts go to.
    pub store: u64,
    /// Prefixes that overflow is counted by.
    pub prefixes: Vec<Prefix>,
}

/// The source, running or not.
pub struct NfqueueSource {
    options: Options,
    tables: Option<Tables>,
    former: Vec<Tables>,
    rules: Option<Rules>,
    orders: Arc<Orders>,
    lanes: Vec<Lane>,
    /// The tc programs write segment sizes.
    stamped: bool,
    generation: Option<Generation>,
    followed: bool,
}

impl NfqueueSource {
    /// Finds the tables that a former daemon left. Changes nothing in netfilter.
    ///
    /// # Errors
    /// When leftovers cannot be opened.
    pub fn open(options: Options) -> Result<(Self, Vec<Notice>), NfqueueError> {
        let mut source = Self::new(options);
        let mut notices = Vec::new();
        let root = namespace_folder(&source.options.folder)?;
        if root.exists() {
            let failed = |e| NfqueueError::Folder(root.clone(), e);
            shared::private_folder(&root).map_err(failed)?;
            for entry in fs::read_dir(&root).map_err(failed)? {
                let dir = entry.map_err(failed)?.path();
                match shared::open(&dir)? {
                    Some(tables) if tables.store() == source.options.store => source.former.push(tables),
                    other => {
                        if let Some(held) =
                            other.map(|tables| tables.live_counters().seen()).filter(|n| *n > 0)
                        {
                            let detail = format!(
                                "removed queue tables of another state folder; {held} packets in them are not in this store"
                            );
                            notices.push(Notice::new("foreign_tables", detail, held));
                        }
                        fs::remove_dir_all(&dir).map_err(failed)?;
                    }
                }
            }
        }
        Ok((source, notices))
    }

    fn new(options: Options) -> Self {
        Self {
            options,
            tables: None,
            former: Vec::new(),
            rules: None,
            orders: Arc::default(),
            lanes: Vec::new(),
            stamped: false,
            generation: None,
            followed: false,
        }
    }

    /// The rules as they have to be.
    fn plan(&self) -> Plan {
        let Options { first_queue, queues, .. } = self.options;
        Plan {
            chains: self.options.chains.clone(),
            interfaces: self.options.interfaces.clone(),
            queues: rules::Queues { first: first_queue, count: queues },
            output_queue: self.stamped.then(|| first_queue + queues),
            bypass: self.options.fail_open,
        }
    }

    fn geometry(&self) -> Geometry {
        let Options { queues, flows, spill, prefixes, .. } = &self.options;
        let mut geometry = Geometry {
            // The queue of what this host sends is there whether or not it has one of its own: then tables fit both.
            cpus: u32::from(*queues) + 1,
            sets: flows / WAYS as u32,
            spill: *spill,
            classes: (prefixes.len() + NO_CLASS).next_power_of_two() as u32,
        };
        geometry.spill = HALVES as u32 * geometry.cpus * spill_part(geometry);
        geometry
    }

    fn rules(&mut self) -> Result<&mut Rules, NfqueueError> {
        if self.rules.is_none() {
            self.rules = Some(Rules::open(self.options.backend)?);
        }
        self.rules.as_mut().ok_or(NfqueueError::Rules(RulesError::NotInstalled))
    }

    /// Makes the tables, if there are none that fit.
    fn ensure_tables(&mut self) -> Result<(), NfqueueError> {
        if self.tables.is_some() {
            return Ok(());
        }
        let geometry = self.geometry();
        let fits = |t: &Tables| t.geometry() == geometry && t.has_prefixes(&self.options.prefixes);
        if let Some(at) = self.former.iter().position(fits) {
            self.tables = Some(self.former.remove(at));
            return Ok(());
        }
        let root = namespace_folder(&self.options.folder)?;
        let failed = |e| NfqueueError::Folder(root.clone(), e);
        shared::private_folder(&self.options.folder)
            .map_err(|e| NfqueueError::Folder(self.options.folder.clone(), e))?;
        shared::private_folder(&root).map_err(failed)?;
        let id = super::random().map_err(|e| NfqueueError::System("/dev/urandom", e))?[7];
        let dir = root.join(format!("{id:016x}"));
        shared::private_folder(&dir).map_err(failed)?;
        let made = shared::create(&dir, geometry, id, self.options.store, &self.options.prefixes)
            .and_then(|()| shared::open(&dir));
        match made {
            Ok(tables) => self.tables = tables,
            Err(e) => {
                let _ = fs::remove_dir_all(&dir);
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Binds the queues and starts their threads. No packet comes before the rules are there.
    ///
    /// # Errors
    /// When a queue is taken, or rights or room are missing; nothing is bound then.
    pub fn start(&mut self, stamped: bool) -> Result<(), NfqueueError> {
        if self.is_running() {
            return Ok(());
        }
        self.rules()?;
        self.ensure_tables()?;
        self.stamped = stamped;
        let Options { first_queue, queues, gso, stamp, .. } = self.options;
        let spread = match gso {
            GsoMode::Auto if stamped => Segments::Stamped(stamp),
            GsoMode::Estimate => Segments::Inferred,
            GsoMode::Auto | GsoMode::Exact => Segments::Cut,
        };
        let mut lanes: Vec<_> = (0..queues).map(|n| (first_queue + n, spread)).collect();
        if stamped {
            lanes.push((first_queue + queues, Segments::Cut));
        }
        for (thread, (number, segments)) in (0..).zip(lanes) {
            let mut lane =
                Lane::new(thread, self.queue_options(number, segments), segments, self.options.pin);
            let started = match &self.tables {
                Some(tables) => lane.start(tables, &self.orders),
                None => Ok(()),
            };
            if let Err(e) = started {
                self.stop();
                return Err(e);
            }
            self.lanes.push(lane);
        }
        Ok(())
    }

    fn queue_options(&self, number: u16, segments: Segments) -> QueueOptions {
        QueueOptions {
            number,
            copy_bytes: self.options.copy_bytes,
            max_packets: self.options.max_packets,
            gso: segments != Segments::Cut,
            fail_open: self.options.fail_open,
            buffer_bytes: BUFFER,
        }
    }

    /// Whether there are threads that take packets.
    pub fn is_running(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Ends the threads. What still waits passes uncounted.
    pub fn stop(&mut self) {
        self.lanes.iter().for_each(Lane::tell_to_stop);
        for lane in self.lanes.drain(..) {
            lane.join();
        }
    }

    /// Brings the rules in place, behind `gate`.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn install(&mut self, gate: &Gate) -> Result<Installed, NfqueueError> {
        let plan = self.plan();
        Ok(self.rules()?.install(&plan, gate)?)
    }

    /// Takes over the rules that a killed daemon left, with whatever gate they have; whether there are any of this plan.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn adopt(&mut self) -> Result<bool, NfqueueError> {
        for stamped in [false, true] {
            self.stamped = stamped;
            let plan = self.plan();
            if self.rules()?.adopt(&plan)? {
                // The account of these rules needs a place to be written to.
                self.ensure_tables()?;
                return Ok(true);
            }
        }
        self.stamped = false;
        Ok(false)
    }

    /// Replaces the gate.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn set_gate(&mut self, gate: &Gate) -> Result<(), NfqueueError> {
        Ok(self.rules()?.set_gate(gate)?)
    }

    /// The gate of a handover.
    pub fn handover_gate(&self) -> Gate {
        Gate::Handover { bit: self.options.handover }
    }

    /// The gate through which nothing comes to the queues; packets that have been counted are marked no more.
    pub fn closed_gate(&self) -> Gate {
        Gate::Closed { clear: self.options.handover }
    }

    /// The gate when nothing is handed over.
    pub fn usual_gate(&self) -> Gate {
        match self.decided() {
            Some(Decided { mask, accept, drop }) => Gate::Offload { mask, accept, drop },
            None => Gate::Open,
        }
    }

    /// Removes the rules.
    ///
    /// # Errors
    /// When a tool fails.
    pub fn remove_rules(&mut self) -> Result<(), NfqueueError> {
        self.followed = false;
        Ok(match &mut self.rules {
            Some(rules) => rules.remove(),
            None => rules::remove(),
        }?)
    }

    /// All rules with their counters; `None` when they are not there, or not as they were installed.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn read_rules(&self) -> Result<Option<Reading>, NfqueueError> {
        self.rules.as_ref().map_or(Ok(None), |rules| Ok(rules.read()?))
    }

    /// What sets up the rules.
    pub fn backend(&self) -> Option<Backend> {
        self.rules.as_ref().map(Rules::backend)
    }

    /// Has each packet that is counted from now on marked, or not; waits until that is so.
    ///
    /// # Errors
    /// When a thread hangs.
    pub fn mark_counted(&self, on: bool) -> Result<(), NfqueueError> {
        let bit = if on { self.options.handover } else { 0 };
        self.orders.handover.store(bit, Ordering::SeqCst);
        self.settle()
    }

    /// Says what happens to packets from now on. With verdicts in the connmark, all connections are decided anew; the gate
    /// has to be set after this.
    ///
    /// # Errors
    /// When a thread hangs, or the folder of the tables cannot be used.
    pub fn set_drop(&mut self, drop: bool) -> Result<(), NfqueueError> {
        if self.offloads() {
            self.advance_generation()?;
        }
        self.orders.drop.store(drop, Ordering::SeqCst);
        let words = self.decided().map_or([0; 3], |d| [d.mask, d.accept, d.drop]);
        for (word, value) in self.orders.offload.iter().zip(words) {
            word.store(value, Ordering::SeqCst);
        }
        self.settle()
    }

    fn advance_generation(&mut self) -> Result<(), NfqueueError> {
        let root = namespace_folder(&self.options.folder)?;
        let failed = |e| NfqueueError::Folder(root.clone(), e);
        if self.generation.is_none() {
            self.generation = Some(Generation::open(&root).map_err(failed)?);
        }
        self.generation.as_mut().map_or(Ok(()), |generation| generation.advance().map_err(failed))
    }

    /// Verdicts in the connmark: six bits of generation, so that those of a former policy say nothing, and two of verdict.
    fn decided(&self) -> Option<Decided> {
        const ACCEPT: u32 = 1;
        const DROP: u32 = 2;
        let mask = self.options.offload?;
        let generation = self.generation.as_ref()?.number();
        let value = |verdict| (generation << 2 | verdict) << mask.trailing_zeros();
        Some(Decided { mask, accept: value(ACCEPT), drop: value(DROP) })
    }

    /// Waits until all threads follow the orders that were given before.
    fn settle(&self) -> Result<(), NfqueueError> {
        self.tables.as_ref().map_or(Ok(()), |tables| Ok(tables.grace_period()?))
    }

    /// Returns when no packet waits any more, and all that waited are counted. No packet may be coming.
    ///
    /// # Errors
    /// When some keep waiting.
    pub fn wait_until_empty(&self) -> Result<(), NfqueueError> {
        let deadline = Instant::now() + DRAIN;
        loop {
            let waiting = self.list()?.iter().map(LaneInfo::pending).sum();
            if waiting == 0 {
                return self.settle();
            }
            if Instant::now() > deadline {
                return Err(NfqueueError::Waiting(waiting));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until what has come to the queues before the call is counted, but not for long.
    ///
    /// # Errors
    /// When the kernel's list of queues cannot be read.
    pub fn catch_up(&self) -> Result<(), NfqueueError> {
        if !self.is_running() {
            return Ok(());
        }
        let deadline = Instant::now() + CATCH_UP;
        let asked = status::read().map_err(|e| NfqueueError::System(status::PATH, e))?;
        let late = |lane: &Lane| lane.own(&asked).is_some_and(|status| lane.open(status) > 0);
        while self.lanes.iter().any(late) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// The queues as they stand.
    ///
    /// # Errors
    /// When the kernel's list of queues cannot be read.
    pub fn list(&self) -> Result<Vec<LaneInfo>, NfqueueError> {
        let present = status::read().map_err(|e| NfqueueError::System(status::PATH, e))?;
        Ok(self.lanes.iter().map(|lane| lane.info(&present)).collect())
    }

    /// Looks whether the threads live and the queues are theirs, and starts anew what does not.
    ///
    /// # Errors
    /// When the kernel's list of queues cannot be read.
    pub fn watch_queues(&mut self, now_ms: i64) -> Result<Vec<Notice>, NfqueueError> {
        let mut notices = Vec::new();
        let Some(tables) = self.tables.as_ref().filter(|_| !self.lanes.is_empty()) else {
            return Ok(notices);
        };
        let present = status::read().map_err(|e| NfqueueError::System(status::PATH, e))?;
        for lane in &mut self.lanes {
            notices.extend(lane.watch(&present, tables, &self.orders, now_ms));
        }
        Ok(notices)
    }

    /// Looks whether the rules are still there, and brings them back with the gate that they had; `None` in the answer when
    /// they were not.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn watch_rules(&mut self) -> Result<(Option<Reading>, Option<Notice>), NfqueueError> {
        let Some(reading) = self.read_rules()? else {
            self.rules()?.restore()?;
            let detail = "the netfilter rules had been removed or changed and are in place again".to_owned();
            return Ok((None, Some(Notice::new("rules_replaced", detail, 0))));
        };
        let followed = !reading.followed.is_empty();
        let notice = (followed && !self.followed).then(|| {
            let chains: Vec<_> =
                reading.followed.iter().map(|(f, c)| format!("{} {}", f.name(), c.name())).collect();
            let detail = format!(
                "rules of others come after ours in table mangle ({}): queued packets do not reach them",
                chains.join(", ")
            );
            Notice::new("not_last", detail, 0)
        });
        self.followed = followed;
        Ok((Some(reading), notice))
    }

    /// The tables that are being filled, if there are any.
    pub fn tables(&mut self) -> Option<&mut Tables> {
        self.tables.as_mut()
    }

    /// What the tables hold that was not handed out as committed.
    pub fn live_counters(&self) -> Option<Counters> {
        self.tables.as_ref().map(Tables::live_counters)
    }

    /// Tables of a former daemon that are not those in use; to be read out, committed and removed.
    pub fn former(&mut self) -> &mut Vec<Tables> {
        &mut self.former
    }

    /// Whether verdicts are kept in the connmark, and counting is the kernel source's.
    pub fn offloads(&self) -> bool {
        self.options.offload.is_some()
    }

    /// How super-packets are counted now.
    pub fn gso(&self) -> GsoMode {
        match self.options.gso {
            GsoMode::Auto if self.is_running() && !self.stamped => GsoMode::Exact,
            mode => mode,
        }
    }

    /// How it is set up.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Reads the clock of the stamps.
    pub fn clock() -> Clock {
        Clock::new(cache::stamp(), 1_000_000)
    }

    /// Removes the tables; everything must have been committed.
    ///
    /// # Errors
    /// When files cannot be removed.
    pub fn remove_tables(&mut self) -> io::Result<()> {
        let Some(tables) = self.tables.take() else { return Ok(()) };
        remove(&tables)
    }
}

/// What the source would use on this machine, in a sentence.
///
/// # Errors
/// When it cannot run.
pub fn can_run(options: &Options) -> Result<String, NfqueueError> {
    let backend = Rules::open(options.backend)?.backend();
    let source = NfqueueSource::new(options.clone());
    source.plan().check()?;
    let Options { first_queue, queues, .. } = options;
    Ok(format!(
        "rules by {}, queues from {first_queue}, {queues} with a thread each; {:.1} MiB in {}",
        backend.name(),
        shared::bytes(source.geometry()) as f64 / f64::from(1 << 20),
        options.folder.display()
    ))
}

/// Removes the files of tables.
///
/// # Errors
/// Those of removing files.
pub fn remove(tables: &Tables) -> io::Result<()> {
    fs::remove_dir_all(tables.dir())?;
    if let Some(root) = tables.dir().parent() {
        // Something else may be there.
        let _ = fs::remove_dir(root);
    }
    Ok(())
}

/// Removes all tables of this network namespace, whoever made them; says how many packets they held.
///
/// # Errors
/// When files cannot be removed.
pub fn cleanup(folder: &Path) -> Result<u64, NfqueueError> {
    let root = namespace_folder(folder)?;
    if !root.exists() {
        return Ok(0);
    }
    let failed = |e| NfqueueError::Folder(root.clone(), e);
    let mut held = 0;
    for entry in fs::read_dir(&root).map_err(failed)? {
        if let Ok(Some(tables)) = shared::open(&entry.map_err(failed)?.path()) {
            held += tables.live_counters().seen();
        }
    }
    fs::remove_dir_all(&root).map_err(failed)?;
    Ok(held)
}

/// Folder of this network namespace.
fn namespace_folder(folder: &Path) -> Result<PathBuf, NfqueueError> {
    const NETNS: &str = "/proc/thread-self/ns/net";
    let inode = fs::metadata(NETNS).map_err(|e| NfqueueError::System(NETNS, e))?.ino();
    Ok(folder.join(inode.to_string()))
}
