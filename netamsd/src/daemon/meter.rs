//! The meter thread: owns the source, the units and the store's writer, and moves counts from the first to the last.
//!
//! A batch is charged to units and committed with its epoch in one transaction; only then are the kernel tables told. When
//! the store does not take it (disk full, locked), the tables are not turned over again: they keep the batch and go on
//! counting, up to overflow by unit, and it is read and offered again at each tick until it is taken.

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
    flow::{Counters, Source},
    policy::{Units, Zone},
    source::{
        Clock, Notice,
        kernel::{HookInfo, KernelError, KernelSource, Metered, Tables, maps},
        tables::TablesError,
        unix_ms,
    },
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
    /// Cumulative counters; while the store is in trouble, those of the tables are included, but for the bytes of flows,
    /// which are only known once a half is read.
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
    Tables(#[from] TablesError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// State of the meter thread.
pub struct Meter {
    source: KernelSource,
    /// Tables of a former configuration that still hold counts.
    former: Vec<Tables>,
    units: Arc<Units>,
    zone: Zone,
    writer: Writer,
    trouble: Option<String>,
    notices: Vec<(i64, Notice)>,
    interval: Duration,
    boot: String,
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
        let (trouble, notices, boot) = (None, Vec::new(), boot_id());
        Ok(Self { source, former, units, zone, writer, trouble, notices, interval, boot })
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
        let (last, boot, mut missed) = (self.writer.last_metered()?, &self.boot, 0);
        let same = |m: &&Metered, then: &store::Metered| m.name == then.interface && m.index == then.ifindex;
        let gone: Vec<_> = last
            .iter()
            .filter(|then| !now.iter().any(|m| same(&m, then) && m.adopted && then.boot == *boot))
            .collect();
        if let Some(since_ms) = gone.iter().map(|then| then.time_ms).min() {
            detail = format!("{detail}; not metered since {}", utc(since_ms));
            if gone.iter().all(|then| then.boot == *boot) {
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

    /// Has the next transaction write how far the interfaces' own counters are. What is known of them is no reason to keep
    /// counts back: when they cannot be asked, the last answer stands.
    fn remember_metered(&mut self) {
        let time_ms = unix_ms();
        let row = |m: Metered| store::Metered {
            interface: m.name,
            ifindex: m.index,
            packets: m.packets,
            time_ms,
            boot: self.boot.clone(),
        };
        match self.source.metered() {
            Ok(metered) => self.writer.set_metered(metered.into_iter().map(row).collect()),
            Err(e) => warn!("cannot read the counters of the interfaces: {e}"),
        }
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
        if !self.notices.is_empty() {
            self.remember_metered();
        }
        while let Some((time, notice)) = self.notices.first() {
            self.writer.record(Source::Kernel, notice.kind, &notice.detail, notice.missed, *time)?;
            self.notices.remove(0);
        }
        while let Some(tables) = self.former.last_mut() {
            let halves = if tables.owes() { 2 } else { 1 };
            for _ in 0..halves {
                tables.turn()?;
                let clock = self.source.clock()?;
                commit(tables, &clock, &self.units, &self.zone, &mut self.writer, now)?;
            }
            if let Some(tables) = self.former.pop() {
                maps::remove(tables.dir()).unwrap_or_else(|e| warn!("cannot remove former tables: {e}"));
            }
        }
        // A half that was kept back is committed alone; what was counted since is in the other one.
        if self.source.tables().owes() {
            self.commit_half(now)?;
        }
        if self.source.live_counters() == Counters::default() {
            return Ok(());
        }
        self.commit_half(now)
    }

    /// Commits the half that is owed, or else the one that was being filled.
    fn commit_half(&mut self, now: i64) -> Result<(), DrainError> {
        self.remember_metered();
        self.source.tables().turn()?;
        let clock = self.source.clock()?;
        commit(self.source.tables(), &clock, &self.units, &self.zone, &mut self.writer, now)
    }

    fn snapshot(&self) -> Snapshot {
        let ledger = self.writer.ledger(Source::Kernel);
        let mut counters = ledger.counters;
        if self.trouble.is_some() {
            counters.add(&self.source.live_counters());
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

/// Moves the quiet half of `tables` into the store. After an error the half is still owed, and the next call reads it again.
fn commit(
    tables: &mut Tables,
    clock: &Clock,
    units: &Units,
    zone: &Zone,
    writer: &mut Writer,
    now: i64,
) -> Result<(), DrainError> {
    let started = Instant::now();
    let batch = tables.read(clock)?;
    debug!("read {} flows of epoch {} in {:?}", batch.flows.len(), batch.epoch, started.elapsed());
    writer.commit(&batch, &units.charge(&batch, zone, now), now)?;
    Ok(tables.committed()?)
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
