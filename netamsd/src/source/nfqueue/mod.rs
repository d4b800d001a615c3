//! The source in user space: netfilter hands every packet to the daemon and waits for a verdict.
//!
//! [`NfqueueSource`] joins the netfilter rules ([`rules`]), the queues with a thread each ([`worker`]) and the flow tables in
//! shared memory ([`shared`]). It promises that a packet is counted before it passes, that the tables outlive the daemon,
//! and that what the rules have counted and no thread has seen is told as such. When it counts, and in which order things
//! change hands, is the daemon's to say.

pub mod cache;
mod error;
mod estimate;
mod folder;
mod gate;
mod generation;
mod journal;
mod lane;
pub mod netlink;
mod options;
mod prefixes;
pub mod rules;
pub mod shared;
pub mod status;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::{
    error::NfqueueError,
    folder::{cleanup, remove},
    lane::LaneInfo,
    options::{GsoMode, Options, can_run},
    rules::{Backend, Gate, Installed, Reading, RuleCounter, RulesError},
    shared::Tables,
};
use self::{
    folder::namespace_folder,
    generation::Generation,
    lane::Lane,
    netlink::QueueOptions,
    rules::Rules,
    worker::{Orders, Segments},
};
use super::{Clock, Notice};
use crate::flow::Counters;

/// Asked for the buffer of each queue's socket, bytes: room for about 40,000 packets.
const BUFFER: usize = 16 << 20;
/// How long the queues may take to become empty after the last packet came.
const DRAIN: Duration = Duration::from_secs(3);
/// How long an answer waits for packets that came before the question.
const CATCH_UP: Duration = Duration::from_millis(250);

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
    /// A former daemon, maybe with another state folder, has had tables here.
    found: bool,
    /// Gate of the rules that were taken over.
    former_gate: Option<Gate>,
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
            source.found = true;
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
            orders: Arc::new(Orders {
                bit: options.handover,
                judge: options.judge.clone(),
                ..Orders::default()
            }),
            options,
            tables: None,
            former: Vec::new(),
            rules: None,
            lanes: Vec::new(),
            stamped: false,
            generation: None,
            followed: false,
            found: false,
            former_gate: None,
        }
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

    /// The tables that are being filled, if there are any.
    pub fn tables(&mut self) -> Option<&mut Tables> {
        self.tables.as_mut()
    }

    /// What the tables hold that was not handed out as committed.
    pub fn live_counters(&self) -> Option<Counters> {
        self.tables.as_ref().map(Tables::live_counters)
    }

    /// Passes of interfaces that all tables hold: a forwarded packet makes two.
    pub fn held(&self) -> u64 {
        let tables = self.former.iter().chain(&self.tables).map(Tables::live_counters);
        tables.map(|c| c.packets_in + c.packets_out).sum()
    }

    /// Tables of a former daemon that are not those in use; to be read out, committed and removed.
    pub fn former(&mut self) -> &mut Vec<Tables> {
        &mut self.former
    }

    /// Whether a former daemon has had tables in this network namespace, also one with another state folder: there may be
    /// rules of it.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Removes rules that a former daemon left, and the folder of its tables if nothing is left in it.
    ///
    /// # Errors
    /// When a tool fails.
    pub fn remove_leftovers(&mut self) -> Result<(), NfqueueError> {
        self.remove_rules()?;
        // Tables that still have to be read out are there.
        let _ = fs::remove_dir(namespace_folder(&self.options.folder)?);
        Ok(())
    }

    /// Keeps in mind which gate the rules have that were taken over.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn remember_gate(&mut self) -> Result<(), NfqueueError> {
        if self.offloads() {
            self.open_generation()?;
        }
        let gates = [self.usual_gate(), self.handover_gate(), self.closed_gate()];
        self.former_gate = self.rules()?.recognize_gate(&gates)?;
        Ok(())
    }

    /// Gives the rules that were taken over the gate that they had.
    ///
    /// # Errors
    /// When the tool fails.
    pub fn restore_gate(&mut self) -> Result<(), NfqueueError> {
        let now = self.rules.as_ref().and_then(Rules::gate);
        self.former_gate.filter(|gate| now != Some(*gate)).map_or(Ok(()), |gate| self.set_gate(&gate))
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
}
