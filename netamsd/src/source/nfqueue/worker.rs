//! One thread a queue: receives packets, counts them, and sends their verdicts.
//!
//! ```text
//! netfilter queue --> receive (up to 256) --> parse, count each --> verdicts: drops, then "accept up to"
//!        ^                                                              |
//!        +--------------------------------------------------------------+
//! ```
//!
//! A packet is counted before its verdict is sent: a daemon that is killed in between has counted packets that the kernel
//! then drops, and passed none that it has not counted.

use std::{
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use rustc_hash::FxHashMap;
use tracing::warn;

use super::{
    cache::{self, Partition, Way},
    estimate::Estimator,
    netlink::{Message, Queue, QueueError, Verdict},
};
use crate::{
    packet::{Gso, Packet, Parsed, inner, parse_ip},
    source::Judge,
};

/// How long a thread waits for packets before it looks whether it is to end.
const WAIT: Duration = Duration::from_millis(100);
/// How long an interface's MTU is believed.
const MTU_AGE: Duration = Duration::from_secs(10);
const DEFAULT_MTU: u32 = 1500;

/// How super-packets are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segments {
    /// By the size that the tc program has written into the mark, under this mask; by inference where there is none.
    Stamped(u32),
    /// The kernel cuts them before.
    Cut,
    /// By inference.
    Inferred,
}

/// The marks by which the gate knows packets that come back with a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// Bits that are used.
    pub mask: u32,
    /// To pass.
    pub accept: u32,
    /// To be dropped.
    pub drop: u32,
}

/// What all threads are told while they run.
#[derive(Debug, Default)]
pub struct Orders {
    /// The bit of the mark that says that a packet has been counted.
    pub bit: u32,
    /// Who says which packets pass, where verdicts are enforced.
    pub judge: Option<Judge>,
    /// Mark what is counted with it; 0 outside a handover.
    pub handover: AtomicU32,
    /// Verdicts go to the connmark by these marks, and packets are not counted here: mask (0: not so), accept, drop.
    pub offload: [AtomicU32; 3],
}

impl Orders {
    fn decided(&self) -> Option<Decided> {
        let [mask, accept, drop] = self.offload.each_ref().map(|word| word.load(Ordering::SeqCst));
        (mask != 0).then_some(Decided { mask, accept, drop })
    }
}

/// What a thread says of itself.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Packets that came out of the queue.
    pub received: AtomicU64,
    /// Gaps in their ids.
    pub lost: AtomicU64,
    /// Interfaces that those received have passed or were about to: two for a forwarded one.
    pub passes: AtomicU64,
    /// Id up to which all packets have been counted and have their verdict, or are lost.
    pub last: AtomicU32,
}

/// A running thread.
pub struct Worker {
    thread: JoinHandle<Result<(), QueueError>>,
    stop: Arc<AtomicBool>,
    /// Port id of its socket.
    pub port_id: u32,
    /// What it has done.
    pub pulse: Arc<Pulse>,
}

impl Worker {
    /// Starts a thread that serves `queue`, on one CPU if that is given.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(
        queue: Queue,
        partition: Partition,
        segments: Segments,
        orders: Arc<Orders>,
        cpu: Option<usize>,
    ) -> std::io::Result<Self> {
        let (stop, pulse) = (Arc::new(AtomicBool::new(false)), Arc::new(Pulse::default()));
        let (stopped, beat) = (Arc::clone(&stop), Arc::clone(&pulse));
        let (name, port_id) = (format!("queue-{}", queue.number()), queue.port_id());
        let thread = thread::Builder::new().name(name).spawn(move || {
            if let Some(Err(e)) = cpu.map(stay_on) {
                warn!("cannot keep the thread of queue {} on one CPU: {e}", queue.number());
            }
            Service::new(partition, segments, orders, beat).run(queue, &stopped)
        })?;
        Ok(Self { thread, stop, port_id, pulse })
    }

    /// Whether the thread has ended by itself.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Tells the thread to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Waits for its end; the reason, if it was not told to.
    pub fn join(self) -> Option<String> {
        match self.thread.join() {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some("the thread has panicked".to_owned()),
        }
    }
}

/// A packet that waits for its verdict to be sent.
#[derive(Clone, Copy)]
struct Judged {
    id: u32,
    verdict: Verdict,
    mark: u32,
}

struct Service {
    partition: Partition,
    segments: Segments,
    orders: Arc<Orders>,
    pulse: Arc<Pulse>,
    estimator: Option<Estimator>,
    mtus: FxHashMap<u32, (u32, Instant)>,
    judged: Vec<Judged>,
    /// Packets may have been lost behind the last one received.
    unsure: bool,
}

impl Service {
    fn new(partition: Partition, segments: Segments, orders: Arc<Orders>, pulse: Arc<Pulse>) -> Self {
        let estimator = (segments != Segments::Cut).then(Estimator::default);
        let judged = Vec::with_capacity(super::netlink::BATCH);
        let mtus = FxHashMap::default();
        Self { partition, segments, orders, pulse, estimator, mtus, judged, unsure: false }
    }

    fn run(mut self, mut queue: Queue, stop: &AtomicBool) -> Result<(), QueueError> {
        while !stop.load(Ordering::SeqCst) {
            self.turn(&mut queue)?;
        }
        queue.unbind();
        Ok(())
    }

    fn turn(&mut self, queue: &mut Queue) -> Result<(), QueueError> {
        let mut entered = false;
        let (mut handover, mut decided) = (0, None);
        let mut passes = 0;
        self.judged.clear();
        let received = queue.receive(WAIT, |message| {
            if !entered {
                entered = true;
                self.partition.enter();
                // Inside the epoch, so that whoever gives an order can wait until it is followed.
                handover = self.orders.handover.load(Ordering::SeqCst);
                decided = self.orders.decided();
            }
            passes += if way(message.hook) == Way::Through { 2 } else { 1 };
            match decided {
                Some(decided) => self.decide(message, decided),
                None => self.count(message, handover),
            }
        });
        let sent = if entered { self.send(queue) } else { Ok(()) };
        if entered {
            self.partition.leave();
        }
        let received = received?;
        self.pulse.received.fetch_add(u64::from(received.packets), Ordering::Relaxed);
        self.pulse.lost.fetch_add(received.lost, Ordering::Relaxed);
        self.pulse.passes.fetch_add(passes, Ordering::Relaxed);
        if received.packets > 0 {
            self.pulse.last.store(received.last, Ordering::Release);
            self.unsure = true;
        } else if self.unsure {
            self.look_behind(queue);
        }
        sent
    }

    /// Counts what was lost behind the last packet: the gap would show only when another one comes.
    fn look_behind(&mut self, queue: &mut Queue) {
        let Some(lost) = queue.lost_behind() else { return };
        self.unsure = false;
        if lost > 0 {
            self.partition.enter();
            // Where verdicts alone are given, the kernel source counts.
            if self.orders.decided().is_none() {
                self.partition.lose(lost.into());
            }
            self.partition.leave();
            self.pulse.lost.fetch_add(lost.into(), Ordering::Relaxed);
            self.pulse.last.fetch_add(lost, Ordering::Release);
        }
    }

    /// Verdicts other than acceptance one by one, then acceptance by ranges of ids: as many as there are different marks.
    fn send(&mut self, queue: &mut Queue) -> Result<(), QueueError> {
        for one in self.judged.iter().filter(|one| one.verdict != Verdict::Accept) {
            queue.verdict(one.id, one.verdict, Some(one.mark));
        }
        let mut accepted = self.judged.iter().filter(|one| one.verdict == Verdict::Accept).peekable();
        while let Some(one) = accepted.next() {
            if accepted.peek().is_none_or(|next| next.mark != one.mark) {
                queue.accept_through(one.id, Some(one.mark))?;
            }
        }
        queue.send()
    }

    /// A verdict alone: the rules of the gate keep it in the connmark, and the kernel source counts.
    fn decide(&mut self, message: &Message<'_>, decided: Decided) {
        let parsed = parse_ip(message.payload, message.len, message.ethertype, Gso::NONE);
        let inner = carried(&parsed, message, Gso::NONE);
        let passes = self.partition.passes(&parsed, inner.as_ref());
        let mark = message.mark & !decided.mask | if passes { decided.accept } else { decided.drop };
        self.judged.push(Judged { id: message.id, verdict: Verdict::Repeat, mark });
    }

    fn count(&mut self, message: &Message<'_>, handover: u32) {
        // The gate may have set the bit, and the handover be over.
        let mut mark = message.mark & !self.orders.bit;
        let mut stamp = 0;
        if message.gso
            && let Segments::Stamped(mask) = self.segments
        {
            mark &= !mask;
            stamp = (message.mark & mask) >> mask.trailing_zeros();
        }
        let parse = |gso| parse_ip(message.payload, message.len, message.ethertype, gso);
        let mut gso = Gso { size: stamp, segs: 0 };
        let mut parsed = parse(gso);
        let mut known = cache::Segments::Known;
        if message.gso && stamp == 0 {
            known = cache::Segments::Estimated;
            gso = self.infer(&parsed, message);
            parsed = parse(gso);
        }
        let inner = carried(&parsed, message, gso);
        if !message.gso
            && let (Parsed::Ip(packet), Some(estimator)) = (&parsed, &mut self.estimator)
        {
            estimator.observe(inner.as_ref().unwrap_or(packet), message.payload);
        }
        let way = way(message.hook);
        let passes = self.partition.count(&parsed, inner.as_ref(), way, known, u64::from(message.gap));
        let verdict = if passes { Verdict::Accept } else { Verdict::Drop };
        self.judged.push(Judged { id: message.id, verdict, mark: mark | handover });
    }

    fn infer(&mut self, parsed: &Parsed, message: &Message<'_>) -> Gso {
        let device = if message.indev != 0 { message.indev } else { message.outdev };
        let mtu = self.mtu(device);
        match (parsed, &self.estimator) {
            (Parsed::Ip(packet), Some(estimator)) => {
                let inner = carried(parsed, message, Gso::NONE);
                estimator.gso(packet, inner.as_ref(), message.payload, mtu)
            }
            _ => Gso::NONE,
        }
    }

    fn mtu(&mut self, device: u32) -> u32 {
        let now = Instant::now();
        if let Some((mtu, since)) = self.mtus.get(&device)
            && now.duration_since(*since) < MTU_AGE
        {
            return *mtu;
        }
        let mtu = interface_mtu(device).unwrap_or(DEFAULT_MTU);
        self.mtus.insert(device, (mtu, now));
        mtu
    }
}

/// The packet in the tunnel of the one that was parsed from this message.
fn carried(parsed: &Parsed, message: &Message<'_>, gso: Gso) -> Option<Packet> {
    let Parsed::Ip(packet) = parsed else { return None };
    inner(message.payload, message.len, gso, packet)
}

/// The CPU for the thread of a queue, counting queues from 0: the last one first, since interrupts mostly go to the first
/// ones. Left to itself the scheduler puts the thread where the packet was queued, which is where the next one is received.
pub fn cpu_for(thread: u32) -> Option<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let cpus: Vec<usize> =
        (0..CpuSet::count()).rev().filter(|cpu| allowed.is_set(*cpu) == Ok(true)).collect();
    cpus.get(thread as usize % cpus.len().max(1)).copied()
}

fn stay_on(cpu: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Where netfilter's hooks stand (`enum nf_inet_hooks` of linux/netfilter.h): local in 1, forward 2, local out 3.
fn way(hook: u8) -> Way {
    match i32::from(hook) {
        libc::NF_INET_LOCAL_IN => Way::In,
        libc::NF_INET_LOCAL_OUT => Way::Out,
        _ => Way::Through,
    }
}

/// The MTU of a device in the network namespace of this thread, by SIOCGIFMTU (netdevice(7)).
fn interface_mtu(index: u32) -> Option<u32> {
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Unix,
        nix::sys::socket::SockType::Datagram,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )
    .ok()?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: `ifr_name` has the length that the first call writes at most, terminated; the second one gets that ifreq and
    // a socket that is open, and fills in the MTU.
    let found = unsafe {
        !libc::if_indextoname(index, request.ifr_name.as_mut_ptr()).is_null()
            && libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) == 0
    };
    if !found {
        return None;
    }
    // SAFETY: filled in by the call above.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}
