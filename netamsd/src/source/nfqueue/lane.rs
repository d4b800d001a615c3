//! One queue with its thread, over all the times that it had to be started anew.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    NfqueueError,
    cache::Partition,
    netlink::{Queue, QueueOptions},
    shared::Tables,
    status::QueueStatus,
    worker::{Orders, Segments, Worker, cpu_for},
};
use crate::source::{Notice, unix_ms};

/// Looks in a row at which packets waited and none was received before the thread is said to hang.
const STUCK: u32 = 3;

/// A queue as it stands; counts are since it was first bound.
#[derive(Debug, Clone)]
pub struct LaneInfo {
    /// Number of the queue.
    pub number: u16,
    /// Super-packets come whole.
    pub gso: bool,
    /// Packets that wait for a verdict.
    pub waiting: u64,
    /// Packets that have ids, and are neither counted nor known to be lost.
    pub open: u64,
    /// Packets that came out.
    pub received: u64,
    /// Gaps in their ids.
    pub lost: u64,
    /// Interfaces that those received have passed: two for a forwarded one.
    pub passes: u64,
    /// Packets that the kernel did not queue because the queue was full.
    pub full: u64,
    /// Times that the thread had to be started anew.
    pub restarts: u64,
    /// Bound since, milliseconds UTC since 1970.
    pub since_ms: i64,
}

impl LaneInfo {
    /// Packets that are yet to be counted, or to be found lost, or to get a verdict.
    pub fn pending(&self) -> u64 {
        self.waiting.max(self.open)
    }
}

/// A queue and its thread.
pub struct Lane {
    thread: u32,
    options: QueueOptions,
    segments: Segments,
    pin: bool,
    worker: Option<Worker>,
    /// What former threads and bindings had.
    received: u64,
    lost: u64,
    passes: u64,
    full: u64,
    /// `queue_dropped` of this binding when last seen.
    full_now: u64,
    restarts: u64,
    since_ms: i64,
    /// It was said that its thread has ended and cannot be started anew.
    failed: bool,
    /// Received at the last look, and for how many looks that has not changed while packets waited.
    seen: (u64, u32),
}

impl Lane {
    /// A queue that is not bound yet. `thread` is its part of the tables; with `pin` it stays on one CPU.
    pub fn new(thread: u32, options: QueueOptions, segments: Segments, pin: bool) -> Self {
        Self {
            thread,
            options,
            segments,
            pin,
            worker: None,
            received: 0,
            lost: 0,
            passes: 0,
            full: 0,
            full_now: 0,
            restarts: 0,
            since_ms: 0,
            failed: false,
            seen: (0, 0),
        }
    }

    /// Number of the queue.
    pub fn number(&self) -> u16 {
        self.options.number
    }

    /// Binds the queue and starts its thread.
    ///
    /// # Errors
    /// When the queue cannot be had.
    pub fn start(&mut self, tables: &Tables, orders: &Arc<Orders>) -> Result<(), NfqueueError> {
        let seed = crate::source::random().map_err(|e| NfqueueError::System("/dev/urandom", e))?;
        let partition =
            Partition::open(tables.dir(), tables.geometry(), self.thread, seed, orders.judge.clone())?;
        let queue = Queue::bind(&self.options)?;
        let cpu = if self.pin { cpu_for(self.thread) } else { None };
        let worker = Worker::start(queue, partition, self.segments, Arc::clone(orders), cpu);
        self.worker = Some(worker.map_err(NfqueueError::Thread)?);
        self.since_ms = unix_ms();
        Ok(())
    }

    /// Tells the thread to end.
    pub fn tell_to_stop(&self) {
        if let Some(worker) = &self.worker {
            worker.stop();
        }
    }

    /// Waits for the thread's end.
    pub fn join(mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop();
            worker.join();
        }
    }

    /// Its line in the kernel's list, while the queue is its thread's.
    pub fn own<'a>(&self, list: &'a [QueueStatus]) -> Option<&'a QueueStatus> {
        let port_id = self.worker.as_ref()?.port_id;
        list.iter().find(|status| status.number == self.number() && status.port_id == port_id)
    }

    /// How it stands, with the kernel's list of queues.
    pub fn info(&self, list: &[QueueStatus]) -> LaneInfo {
        let status = self.own(list);
        let (received, lost, passes) = self.pulse();
        LaneInfo {
            number: self.number(),
            gso: self.options.gso,
            waiting: status.map_or(0, |s| s.waiting.into()),
            open: status.map_or(0, |s| self.open(s)),
            received,
            lost,
            passes,
            full: self.full + status.map_or(self.full_now, |s| s.queue_dropped.into()),
            restarts: self.restarts,
            since_ms: self.since_ms,
        }
    }

    /// Packets up to the one that `status` names as the last that are neither counted nor known to be lost.
    pub fn open(&self, status: &QueueStatus) -> u64 {
        let last = self.worker.as_ref().map_or(0, |worker| worker.pulse.last.load(Ordering::Acquire));
        // Ids wrap: what is more than half a round ahead is earlier.
        let ahead = status.last_id.wrapping_sub(last);
        if ahead > i32::MAX as u32 { 0 } else { ahead.into() }
    }

    fn pulse(&self) -> (u64, u64, u64) {
        let now = self.worker.as_ref().map_or((0, 0, 0), |worker| {
            let count = |word: &AtomicU64| word.load(Ordering::Relaxed);
            (count(&worker.pulse.received), count(&worker.pulse.lost), count(&worker.pulse.passes))
        });
        (self.received + now.0, self.lost + now.1, self.passes + now.2)
    }

    /// Starts the thread anew when it has ended or its queue is not its own any more.
    pub fn watch(
        &mut self,
        list: &[QueueStatus],
        tables: &Tables,
        orders: &Arc<Orders>,
        now_ms: i64,
    ) -> Option<Notice> {
        let number = self.number();
        let ended = self.worker.as_ref().is_none_or(Worker::is_finished);
        if let Some(status) = self.own(list).filter(|_| !ended) {
            self.full_now = status.queue_dropped.into();
            return self.watch_progress(status.waiting);
        }
        (self.received, self.lost, self.passes) = self.pulse();
        self.full += std::mem::take(&mut self.full_now);
        let reason = self.worker.take().and_then(|worker| {
            worker.stop();
            worker.join()
        });
        let reason = reason.unwrap_or_else(|| "the kernel gave it away".to_owned());
        match self.start(tables, orders) {
            Ok(()) => {
                self.restarts += 1;
                self.since_ms = now_ms;
                self.seen = (self.received, 0);
                self.failed = false;
                let detail = format!("queue {number} had failed and is served again: {reason}");
                Some(Notice::new("queue_restarted", detail, 0))
            }
            // Said once; the next look tries again.
            Err(e) if !self.failed => {
                self.failed = true;
                let detail =
                    format!("queue {number} has failed: {reason}; it cannot be served again yet: {e}");
                Some(Notice::new("queue_failed", detail, 0))
            }
            Err(_) => None,
        }
    }

    fn watch_progress(&mut self, waiting: u32) -> Option<Notice> {
        let (received, ..) = self.pulse();
        if waiting == 0 || received != self.seen.0 {
            self.seen = (received, 0);
            return None;
        }
        self.seen.1 = self.seen.1.saturating_add(1);
        (self.seen.1 == STUCK).then(|| {
            let detail =
                format!("queue {}: {waiting} packets wait, and its thread takes none", self.number());
            Notice::new("queue_stuck", detail, 0)
        })
    }
}
