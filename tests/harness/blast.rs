//! Sends given frames fast, and knows exactly how many arrived.
//!
//! An AF_PACKET socket with `PACKET_QDISC_BYPASS` hands frames to the veth from the sender's own context. The peer's
//! receive path then runs on the same CPU before the send returns (softirq on enabling bottom halves), so its backlog
//! (1000 packets a CPU, a setting of the whole machine) does not fill up, as long as senders stay on their CPU. Even
//! so nothing is believed: [`Blast::send`] compares with the peer's receive counter.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::ns::Namespace;
use crate::truth::device;

/// Frames handed over per system call.
const BATCH: usize = 64;

/// A burst of frames.
#[derive(Debug, Clone)]
pub struct Blast {
    frames: Vec<Vec<u8>>,
    count: u64,
    cpu: Option<usize>,
    rate: Option<u64>,
    stop: Arc<AtomicBool>,
}

impl Blast {
    /// Will send `count` frames, taking `frames` in turn.
    pub fn new(frames: Vec<Vec<u8>>, count: u64) -> Self {
        assert!(!frames.is_empty(), "a blast needs a frame to send");
        Self { frames, count, cpu: None, rate: None, stop: Arc::default() }
    }

    /// Sends from this CPU only.
    pub fn on_cpu(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Sends at most so many frames a second.
    pub fn rate(mut self, frames_per_second: u64) -> Self {
        self.rate = Some(frames_per_second);
        self
    }

    /// Ends early, between two batches, once `stop` is set.
    pub fn until(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = Arc::clone(stop);
        self
    }

    /// Sends from `device_name` in `from` and returns the number of frames sent once `peer_device` in `peer` has received
    /// them all. Panics when it has received another number: then something else was sent, or something was dropped.
    pub fn send(self, from: &Namespace, device_name: &str, peer: &Namespace, peer_device: &str) -> u64 {
        let before = device(peer, peer_device);
        let sent = from
            .enter(|| self.transmit(device_name))
            .unwrap_or_else(|e| panic!("send by {device_name}: {e}"));
        let received = device(peer, peer_device).rx_packets - before.rx_packets;
        assert_eq!(sent, received, "frames sent by {device_name} and received by {peer_device} differ");
        sent
    }

    /// Sends from a device of the calling thread's namespace; the number of frames sent, without any check.
    pub fn transmit(&self, device_name: &str) -> io::Result<u64> {
        if let Some(cpu) = self.cpu {
            let mut set = CpuSet::new();
            set.set(cpu)?;
            sched_setaffinity(Pid::from_raw(0), &set)?;
        }
        let socket = open(device_name)?;
        // A ring in which each frame comes equally often, long enough for a whole batch.
        let rounds = BATCH.div_ceil(self.frames.len());
        let mut vectors: Vec<libc::iovec> = std::iter::repeat_n(&self.frames, rounds)
            .flatten()
            .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() })
            .collect();
        let messages: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all-zero is a valid mmsghdr: no address, no control data.
                let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        self.pump(&socket, messages)
    }

    fn pump(&self, socket: &OwnedFd, mut messages: Vec<libc::mmsghdr>) -> io::Result<u64> {
        let started = Instant::now();
        let (mut sent, mut next) = (0, 0);
        while sent < self.count && !self.stop.load(Ordering::Relaxed) {
            let length = BATCH.min(messages.len() - next).min((self.count - sent) as usize);
            let batch = &mut messages[next..next + length];
            // SAFETY: the headers point into vectors and frames that outlive the call; the kernel writes msg_len only.
            let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), batch.as_mut_ptr(), length as u32, 0) };
            if done < 0 {
                match io::Error::last_os_error() {
                    // The device dropped the first frame of the batch; it is sent again.
                    e if e.raw_os_error() == Some(libc::ENOBUFS) => std::thread::yield_now(),
                    e => return Err(e),
                }
                continue;
            }
            sent += done as u64;
            next = (next + done as usize) % messages.len();
            if let Some(rate) = self.rate {
                let due = Duration::from_nanos(sent * 1_000_000_000 / rate);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
        }
        Ok(sent)
    }
}

fn open(device_name: &str) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; a non-negative result is a descriptor that nobody else owns.
    let socket = unsafe {
        // Protocol 0: sends only, so that the socket does not take copies of what passes.
        let raw = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(raw)
    };
    let on: libc::c_int = 1;
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = if_nametoindex(device_name)? as i32;
    // SAFETY: both pointers are to live values of the sizes given.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const on).cast(),
            mem::size_of_val(&on) as u32,
        ) < 0
            || libc::bind(socket.as_raw_fd(), (&raw const address).cast(), mem::size_of_val(&address) as u32)
                < 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(socket) }
}
