//! The meter thread: owns the sources, the units and the store's writer.
//!
//! What a source has counted is charged to units and committed with its epoch in one transaction ([`drain`](super::drain)).
//! Which source counts can be changed while packets flow ([`switch`](super::switch)). Nothing else touches sources or store.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tracing::{error, warn};

use super::{
    drain::Reference, gap::Passed, notify::Notify, quotas::Quotas, rates::Rates, snapshot::Snapshot,
    switch::SwitchError,
};
use crate::{
    config::{DataSource, DefaultPolicy, Mode, OnExit},
    flow::{Counters, Source},
    policy::{Engine, UnitId},
    source::{
        Notice,
        kernel::{KernelSource, Tables},
        nfqueue::{NfqueueSource, Reading},
        unix_ms,
    },
    store::Writer,
};

/// How often hooks and queues are looked after when nothing announces a change.
const WATCH: Duration = Duration::from_secs(1);
/// At every how many of these looks the netfilter rules are looked after: that takes a process or two.
const WATCH_RULES: u32 = 2;
/// Notices kept while the store does not take them.
const MAX_NOTICES: usize = 1000;

/// What an order is answered with: how things stand, or why it was not carried out.
pub type Answer = oneshot::Sender<Result<Snapshot, SwitchError>>;

/// What the meter is told.
pub enum Order {
    /// Commit what was counted up to now, and answer.
    Sync(Answer),
    /// Count by this source from now on.
    SetSource(DataSource, Answer),
    /// Do this with packets that no policy decides.
    SetDefaultPolicy(DefaultPolicy, Answer),
    /// Block this unit, or no longer.
    SetBlocked(UnitId, bool, Answer),
    /// Interfaces have appeared, vanished or changed.
    LinksChanged,
    /// End.
    Stop,
}

/// What the meter is set up with.
pub struct Setup {
    /// The kernel source, where it can run.
    pub kernel: Option<KernelSource>,
    /// The source in user space, not started.
    pub nfqueue: NfqueueSource,
    /// The units and policies.
    pub engine: Arc<Engine>,
    /// The store's writer.
    pub writer: Writer,
    /// Time between two drains.
    pub interval: Duration,
    /// What happens at the end.
    pub on_exit: OnExit,
    /// Whether verdicts are enforced.
    pub mode: Mode,
    /// What happens to packets that no policy decides.
    pub default_policy: DefaultPolicy,
    /// The same for those of units, where it is another.
    pub local_policy: Option<DefaultPolicy>,
    /// The use of quotas.
    pub quotas: Quotas,
    /// Who is told of quotas.
    pub notify: Notify,
}

/// State of the meter thread.
pub struct Meter {
    pub(super) kernel: Option<KernelSource>,
    /// Kernel tables of a former configuration that still hold counts.
    pub(super) former: Vec<Tables>,
    pub(super) nfqueue: NfqueueSource,
    /// Which source counts, since when, and how often that has changed.
    pub(super) active: DataSource,
    pub(super) since_ms: i64,
    /// Neither the source that was asked for nor the former one could be had: what counts now is not sure.
    pub(super) stranded: bool,
    pub(super) switches: u64,
    /// Queue rules of ours are in place.
    pub(super) ruled: bool,
    /// Rules, or programs that are at rest now, have counted until this daemon came: nothing passed uncounted.
    pub(super) went_on: bool,
    pub(super) reference: Reference,
    /// The rules as the last drain has seen them, if it had a look.
    pub(super) reading: Option<Reading>,
    /// Why the rules cannot be looked at now.
    pub(super) blind: Option<String>,
    /// At the last look at the rules.
    pub(super) passed: Option<Passed>,
    pub(super) mode: Mode,
    pub(super) default_policy: DefaultPolicy,
    pub(super) local_policy: Option<DefaultPolicy>,
    pub(super) engine: Arc<Engine>,
    pub(super) quotas: Quotas,
    /// The engine knows of units that are over their quota, and the sources do not.
    pub(super) over_unsaid: bool,
    pub(super) notify: Notify,
    pub(super) writer: Writer,
    pub(super) trouble: Option<String>,
    pub(super) notices: Vec<(i64, Source, Notice)>,
    pub(super) boot: String,
    pub(super) rates: Rates,
    /// Counters and `missed` of each source when the daemon started, and at the last switch.
    pub(super) at_start: [(Counters, u64); Source::ALL.len()],
    pub(super) at_switch: Option<(i64, [(Counters, u64); Source::ALL.len()])>,
    /// The daemon ends, and its sources with it.
    pub(super) ending: bool,
    interval: Duration,
    on_exit: OnExit,
    watches: u32,
}

impl Meter {
    /// Settles with the tables what a former daemon left. Nothing is switched on yet, but a kernel source that counts goes
    /// on counting.
    ///
    /// # Errors
    /// When the tables cannot be read.
    pub fn new(setup: Setup) -> Result<Self, super::DaemonError> {
        let Setup { mut kernel, mut nfqueue, writer, .. } = setup;
        let mut former = Vec::new();
        if let Some(kernel) = &mut kernel {
            let committed = writer.committed_epoch(kernel.tables().id());
            kernel.tables().recover(committed)?;
            former = kernel.take_former();
        }
        for tables in &mut former {
            tables.recover(writer.committed_epoch(tables.id()))?;
        }
        for tables in nfqueue.former() {
            tables.recover(writer.committed_epoch(tables.id()))?;
        }
        let reference = Reference::new(writer.last_rule_counters()?);
        let at_start = Source::ALL.map(|source| {
            let ledger = writer.ledger(source);
            (ledger.counters, ledger.missed)
        });
        Ok(Self {
            kernel,
            former,
            nfqueue,
            active: DataSource::Off,
            since_ms: unix_ms(),
            stranded: false,
            switches: 0,
            ruled: false,
            went_on: false,
            reference,
            reading: None,
            blind: None,
            passed: None,
            mode: setup.mode,
            default_policy: setup.default_policy,
            local_policy: setup.local_policy,
            quotas: setup.quotas,
            over_unsaid: false,
            notify: setup.notify,
            engine: setup.engine,
            writer,
            trouble: None,
            notices: Vec::new(),
            boot: super::gap::boot_id(),
            rates: Rates::default(),
            at_start,
            at_switch: None,
            ending: false,
            interval: setup.interval,
            on_exit: setup.on_exit,
            watches: 0,
        })
    }

    /// Puts notices into the log and, when the store takes them, among the events.
    pub fn note(&mut self, source: Source, notices: Vec<Notice>) {
        let now = unix_ms();
        for notice in notices {
            match notice.missed {
                0 => warn!("{}", notice.detail),
                _ => error!("{}", notice.detail),
            }
            let full = self.notices.len() >= MAX_NOTICES;
            match self.notices.last_mut() {
                // Its sentence is in the log; its packets must not be missing from the ledger.
                Some((_, _, last)) if full => last.missed += notice.missed,
                _ => self.notices.push((now, source, notice)),
            }
        }
    }

    /// Runs until told to stop, then ends as configured.
    pub fn run(mut self, orders: &Receiver<Order>) {
        self.come_back();
        let mut next_drain = Instant::now();
        let mut next_watch = Instant::now() + WATCH;
        loop {
            self.keep_schedules();
            let now = Instant::now();
            if now >= next_drain {
                self.drain(false);
                self.watch_quotas();
                next_drain = now + self.until_next_drain();
            }
            if now >= next_watch {
                self.watch();
                next_watch = now + WATCH;
            }
            match orders.recv_timeout(next_drain.min(next_watch).saturating_duration_since(Instant::now())) {
                // Who asked may have gone away, here and below.
                Ok(Order::Sync(answer)) => {
                    self.drain(true);
                    let _ = answer.send(Ok(self.snapshot()));
                }
                Ok(Order::SetSource(source, answer)) => {
                    let done = self.switch(source);
                    self.drain(true);
                    let _ = answer.send(done.map(|()| self.snapshot()));
                }
                Ok(Order::SetDefaultPolicy(policy, answer)) => {
                    let done = self.set_default_policy(policy);
                    let _ = answer.send(done.map(|()| self.snapshot()));
                }
                Ok(Order::SetBlocked(unit, blocked, answer)) => {
                    let done = self.set_blocked(unit, blocked);
                    let _ = answer.send(done.map(|()| self.snapshot()));
                }
                Ok(Order::LinksChanged) => self.watch_hooks(),
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.end();
    }

    /// A tick, which is at most a second where there are quotas, or less when the hour ends before or a schedule changes: a batch then belongs to one hour, and each of its
    /// packets to the same policies.
    fn until_next_drain(&self) -> Duration {
        let now = unix_ms();
        let hour = self.engine.zone().next_hour(now);
        let next = self.engine.next_change(now).map_or(hour, |change| change.min(hour));
        let until = u64::try_from(next - now).unwrap_or(0);
        let interval = if self.engine.quotas().is_empty() { self.interval } else { self.interval.min(WATCH) };
        interval.min(Duration::from_millis(until.max(1)))
    }

    /// Lets schedules change when it is time.
    fn keep_schedules(&mut self) {
        let now = unix_ms();
        if self.engine.would_tick(now)
            && let Err(e) = self.change_verdicts(|engine| {
                engine.tick(now);
            })
        {
            warn!("{e}");
        }
    }

    fn watch(&mut self) {
        self.watch_hooks();
        match self.nfqueue.watch_queues(unix_ms()) {
            Ok(notices) => self.note(Source::Nfqueue, notices),
            Err(e) => warn!("cannot look after the queues: {e}"),
        }
        self.watches = (self.watches + 1) % WATCH_RULES;
        if self.ruled && self.watches == 0 {
            self.watch_rules();
        }
    }

    fn watch_hooks(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        match kernel.sync_hooks(unix_ms()) {
            Ok(notices) if notices.is_empty() => {}
            Ok(mut notices) => {
                if !self.kernel_counts() {
                    // Somebody else does, or nobody is to.
                    notices.iter_mut().for_each(|notice| notice.missed = 0);
                }
                self.note(Source::Kernel, notices);
                self.drain(false);
            }
            Err(e) => warn!("cannot look after the hooks: {e}"),
        }
    }

    fn end(mut self) {
        if self.on_exit == OnExit::Stay {
            // What queues were too full for is known as long as they are there.
            self.drain(true);
            self.nfqueue.stop();
            self.drain(true);
            if let Some(kernel) = self.kernel {
                kernel.leave();
            }
            return;
        }
        let source = if self.active == DataSource::Nfqueue { Source::Nfqueue } else { Source::Kernel };
        let stopped = Notice::new("stopped", "no longer metering".to_owned(), 0);
        self.notices.push((unix_ms(), source, stopped));
        // Takes the counters down before the programs and rules are gone.
        self.drain(true);
        self.ending = true;
        if let Err(e) = self.count_by_none() {
            warn!("{e}");
        }
        self.drain(true);
        if let Some(trouble) = &self.trouble {
            error!(
                "the last counts stay in the flow tables until the next start, or are lost at a reboot: {trouble}"
            );
            return;
        }
        self.remove_tables();
    }

    fn remove_tables(mut self) {
        if let Err(e) = self.nfqueue.remove_tables() {
            warn!("cannot remove the flow tables of the queues: {e}");
        }
        if let Some(Err(e)) = self.kernel.map(KernelSource::remove) {
            warn!("{e}");
        }
    }
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
