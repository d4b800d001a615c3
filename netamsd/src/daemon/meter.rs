//! The meter thread: owns the source, the units and the store's writer, and moves counts from the first to the last.
//!
//! A batch is charged to units and committed with its epoch in one transaction; only then are the kernel tables told. When
//! the store does not take it (disk full, locked), the tables are not turned over again: they go on counting, up to
//! overflow by unit, and the batch is offered at each tick until it is taken.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tracing::{debug, error, info, warn};

use crate::{
    config::OnExit,
    flow::{Batch, Counters, UnitCharge},
    policy::{Units, Zone},
    source::kernel::{Clock, HookInfo, KernelError, KernelSource, Metered, Notice, Tables, unix_ms},
    store::{self, StoreError, Writer},
};

/// How often hooks are looked after when nothing announces a change.
const WATCH: Duration = Duration::from_secs(1);
/// Notices kept while the store does not take them.
const MAX_NOTICES: usize = 1000;

/// What the meter is told.
pub enum Order {
    /// Commit what was counted up to now, and answer.
    Sync(oneshot::Sender<Snapshot>),
    /// Interfaces have appeared, vanished or changed.
    LinksChanged,
    /// End.
    Stop,
}

/// The meter's numbers at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Cumulative counters; while the store is in trouble, those of the tables are included.
    pub counters: Counters,
    /// Packets that passed while no program was there, by the interfaces' own counters.
    pub missed: u64,
    /// Batches committed.
    pub commits: u64,
    /// Last commit, milliseconds UTC since 1970.
    pub last_commit_ms: i64,
    /// Flows that have not ended.
    pub active_flows: u64,
    /// Flow records ever.
    pub total_flows: u64,
    /// The attached programs.
    pub hooks: Vec<HookInfo>,
    /// Why the store takes nothing now.
    pub trouble: Option<String>,
}

/// Why a drain did not succeed.
#[derive(Debug, thiserror::Error)]
enum DrainError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A batch that was read and is not known to be committed.
struct Pending {
    batch: Batch,
    charges: Vec<UnitCharge>,
}

/// State of the meter thread.
pub struct Meter {
    source: KernelSource,
    /// Tables of a former configuration that still hold counts.
    former: Vec<Tables>,
    units: Arc<Units>,
    zone: Zone,
    writer: Writer,
    pending: Option<Pending>,
    trouble: Option<String>,
    notices: Vec<(i64, Notice)>,
    interval: Duration,
}

impl Meter {
    /// Settles with the tables what a former daemon left.
    ///
    /// # Errors
    /// When the tables cannot be read.
    pub fn new(
        mut source: KernelSource,
        units: Arc<Units>,
        zone: Zone,
        writer: Writer,
        interval: Duration,
    ) -> Result<Self, KernelError> {
        let committed = writer.committed_epoch(source.tables().id());
        source.tables().recover(committed)?;
        let mut former = source.take_former();
        for tables in &mut former {
            tables.recover(writer.committed_epoch(tables.id()))?;
        }
        let (pending, trouble, notices) = (None, None, Vec::new());
        Ok(Self { source, former, units, zone, writer, pending, trouble, notices, interval })
    }

    /// Puts a notice into the log and, when the store takes it, among the events.
    pub fn note(&mut self, notices: Vec<Notice>) {
        let now = unix_ms();
        for notice in notices {
            match notice.missed {
                0 => warn!("{}", notice.detail),
                _ => error!("{}", notice.detail),
            }
            let full = self.notices.len() >= MAX_NOTICES;
            match self.notices.last_mut() {
                // Its sentence is in the log; its packets must not be missing from the ledger.
                Some((_, last)) if full => last.missed += notice.missed,
                _ => self.notices.push((now, notice)),
            }
        }
    }

    /// What passed while no program was there: the way that the interfaces' own counters have moved since the last commit,
    /// except where the former daemon's program was still in its place.
    fn come_back(&mut self) -> Result<Notice, DrainError> {
        let now = self.source.metered()?;
        let names: Vec<&str> = now.iter().map(|m| m.name.as_str()).collect();
        let mut detail =
            format!("metering {}", if names.is_empty() { "nothing".into() } else { names.join(", ") });
        // What the tables hold was counted after the last commit, and is no gap.
        let held = self.held();
        if held > 0 {
            detail = format!("{detail}; took over {held} packets of a former daemon that were not committed");
        }
        let (last, boot, mut missed) = (self.writer.last_metered()?, boot_id(), 0);
        let same = |m: &&Metered, then: &store::Metered| m.name == then.interface && m.index == then.ifindex;
        let gone: Vec<_> = last
            .iter()
            .filter(|then| !now.iter().any(|m| same(&m, then) && m.adopted && then.boot == boot))
            .collect();
        if let Some(since_ms) = gone.iter().map(|then| then.time_ms).min() {
            detail = format!("{detail}; not metered since {}", utc(since_ms));
            if gone.iter().all(|then| then.boot == boot) {
                for then in gone {
                    let passed =
                        now.iter().find(|m| same(m, then)).map(|m| m.packets.saturating_sub(then.packets));
                    missed += passed.unwrap_or(0);
                }
                if !now.iter().any(|m| m.adopted) {
                    missed = missed.saturating_sub(held);
                }
                detail = format!("{detail}, {missed} packets by the interfaces' counters");
            } else {
                detail =
                    format!("{detail}: the machine was restarted, and what was not committed then is lost");
            }
        }
        Ok(Notice { kind: "started", detail, missed })
    }

    /// Packets through all hooks that are in tables of a former daemon and not in the store.
    fn held(&self) -> u64 {
        let former = self.former.iter().map(Tables::live_counters);
        let inherited = self.source.inherited().then(|| self.source.live_counters());
        former.chain(inherited).map(|c| c.packets_in + c.packets_out).sum()
    }

    /// How far the interfaces' own counters are.
    fn metered(&self) -> Result<Vec<store::Metered>, KernelError> {
        let (boot, time_ms) = (boot_id(), unix_ms());
        let row = |m: Metered| store::Metered {
            interface: m.name,
            ifindex: m.index,
            packets: m.packets,
            time_ms,
            boot: boot.clone(),
        };
        Ok(self.source.metered()?.into_iter().map(row).collect())
    }

    /// Runs until told to stop, then ends as configured.
    pub fn run(mut self, orders: &Receiver<Order>, on_exit: OnExit) {
        match self.come_back() {
            Ok(notice) => self.notices.insert(0, (unix_ms(), notice)),
            Err(e) => warn!("the gap before this start is not in the ledger: {e}"),
        }
        let mut next_drain = Instant::now();
        let mut next_watch = Instant::now() + WATCH;
        loop {
            let now = Instant::now();
            if now >= next_drain {
                self.drain();
                next_drain = now + self.until_next_drain();
            }
            if now >= next_watch {
                self.watch();
                next_watch = now + WATCH;
            }
            match orders.recv_timeout(next_drain.min(next_watch).saturating_duration_since(Instant::now())) {
                Ok(Order::Sync(answer)) => {
                    self.drain();
                    // The asker may have gone away.
                    let _ = answer.send(self.snapshot());
                }
                Ok(Order::LinksChanged) => self.watch(),
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.end(on_exit);
    }

    /// A tick, or less when the hour ends before: a batch then belongs to one hour.
    fn until_next_drain(&self) -> Duration {
        let now = unix_ms();
        let hour = u64::try_from(self.zone.next_hour(now) - now).unwrap_or(0);
        self.interval.min(Duration::from_millis(hour.max(1)))
    }

    fn watch(&mut self) {
        match self.source.sync_hooks(unix_ms()) {
            Ok(notices) if notices.is_empty() => {}
            Ok(notices) => {
                self.note(notices);
                self.drain();
            }
            Err(e) => warn!("cannot look after the hooks: {e}"),
        }
    }

    /// Moves everything counted so far into the store; afterwards `trouble` says whether that went well.
    fn drain(&mut self) {
        let result = self.try_drain();
        let trouble = result.err().map(|e| e.to_string());
        match (&self.trouble, &trouble) {
            (Some(old), None) => info!("the store takes batches again; it did not because: {old}"),
            (old, Some(new)) if old.as_ref() != Some(new) => {
                warn!("{new}; counting goes on in the kernel tables and nothing is lost");
            }
            _ => {}
        }
        self.trouble = trouble;
    }

    fn try_drain(&mut self) -> Result<(), DrainError> {
        let now = unix_ms();
        self.writer.set_metered(self.metered()?);
        while let Some((time, notice)) = self.notices.first() {
            self.writer.record(notice.kind, &notice.detail, notice.missed, *time)?;
            self.notices.remove(0);
        }
        let clock = self.source.clock()?;
        while let Some(mut tables) = self.former.pop() {
            let settled = settle(&mut tables, &clock, &self.units, &self.zone, &mut self.writer, now);
            match settled {
                Ok(()) => tables.remove_pins().unwrap_or_else(|e| warn!("cannot remove former tables: {e}")),
                Err(e) => {
                    self.former.push(tables);
                    return Err(e);
                }
            }
        }
        // A batch that was kept back frees its half only; what was counted since is in the other one.
        if self.pending.is_some() || self.source.tables().owes() {
            self.commit_one(now)?;
        }
        self.commit_one(now)
    }

    /// Commits the batch that is owed, or else what was counted since the last one.
    fn commit_one(&mut self, now: i64) -> Result<(), DrainError> {
        if self.pending.is_none() {
            let tables = self.source.tables();
            if !tables.owes() && tables.live_counters() == Counters::default() {
                return Ok(());
            }
            let started = Instant::now();
            let batch = self.source.read()?;
            debug!("read {} flows of epoch {} in {:?}", batch.flows.len(), batch.epoch, started.elapsed());
            let charges = self.units.charge(&batch, &self.zone, now);
            self.pending = Some(Pending { batch, charges });
        }
        if let Some(pending) = &self.pending {
            self.writer.commit(&pending.batch, &pending.charges, now)?;
            self.source.tables().committed()?;
            self.pending = None;
        }
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        let ledger = self.writer.ledger();
        let mut counters = ledger.counters;
        if self.trouble.is_some() {
            counters.add(&self.source.live_counters());
            counters.flow_bytes += self.pending.as_ref().map_or(0, |p| p.batch.counters.flow_bytes);
        }
        Snapshot {
            counters,
            missed: ledger.missed,
            commits: ledger.commits,
            last_commit_ms: ledger.last_commit_ms,
            active_flows: self.writer.active_flows(unix_ms()),
            total_flows: self.writer.total_flows(),
            hooks: self.source.hooks(),
            trouble: self.trouble.clone(),
        }
    }

    fn end(mut self, on_exit: OnExit) {
        if on_exit == OnExit::Detach {
            let stopped = Notice { kind: "stopped", detail: "no longer metering".to_owned(), missed: 0 };
            self.notices.push((unix_ms(), stopped));
            // Takes the counters down before the programs are gone.
            self.drain();
            if let Err(e) = self.source.detach() {
                warn!("{e}");
            }
        }
        self.drain();
        if let Some(trouble) = &self.trouble {
            error!(
                "the last counts stay in the kernel tables until the next start, or are lost at a reboot: {trouble}"
            );
        }
        match on_exit {
            OnExit::Detach if self.trouble.is_none() => {
                if let Err(e) = self.source.remove() {
                    warn!("{e}");
                }
            }
            OnExit::Detach => {}
            OnExit::Stay => self.source.leave(),
        }
    }
}

fn utc(ms: i64) -> String {
    chrono::DateTime::from_timestamp_millis(ms)
        .map_or_else(String::new, |t| t.format("%F %T UTC").to_string())
}

/// The kernel's name for the time since it was started.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Commits both halves of tables that no program fills any more.
fn settle(
    tables: &mut Tables,
    clock: &Clock,
    units: &Units,
    zone: &Zone,
    writer: &mut Writer,
    now: i64,
) -> Result<(), DrainError> {
    let halves = if tables.owes() { 2 } else { 1 };
    for _ in 0..halves {
        tables.turn()?;
        let batch = tables.read(clock)?;
        let charges = units.charge(&batch, zone, now);
        writer.commit(&batch, &charges, now)?;
        tables.committed()?;
    }
    Ok(())
}

/// Announces changes of the interfaces to the meter until either ends.
pub fn announce_links(monitor: &crate::source::kernel::Monitor, orders: &SyncSender<Order>) {
    loop {
        match monitor.wait() {
            // A full channel means that the meter will look soon anyway.
            Ok(()) => match orders.try_send(Order::LinksChanged) {
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return,
                Ok(()) | Err(std::sync::mpsc::TrySendError::Full(_)) => {}
            },
            Err(e) => {
                warn!("interfaces are only looked at every second: {e}");
                return;
            }
        }
    }
}
