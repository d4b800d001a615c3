//! One queue: bound, read in batches, answered in batches.

use std::io;
use std::time::Duration;

use tracing::warn;

use super::bind::{self, OVERHEAD, QueueOptions};
use super::{Inbox, Message, Outbox, QueueError, Socket, gap, messages, wire};
use crate::source::nfqueue::status::{self, QueueStatus};

/// Packets received in one system call, at most.
pub const BATCH: usize = 256;
/// Length of a verdict with its mark.
const VERDICT_BYTES: usize = 40;
/// Half of all ids: a batch verdict so far ahead reaches all packets that wait (nfq_id_after).
const ALL_AHEAD: u32 = i32::MAX as u32;

/// What is to be done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Let it go on behind the rule that queued it.
    Accept,
    /// Discard it.
    Drop,
    /// Let it go through the chains of this hook again, from the first one.
    Repeat,
}

impl Verdict {
    fn number(self) -> u32 {
        (match self {
            Self::Accept => libc::NF_ACCEPT,
            Self::Drop => libc::NF_DROP,
            Self::Repeat => libc::NF_REPEAT,
        }) as u32
    }
}

/// What a call to [`Queue::receive`] has brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets.
    pub packets: u32,
    /// Id of the first; says nothing when there is none.
    pub first: u32,
    /// Id of the last; says nothing when there is none.
    pub last: u32,
    /// Packets that should have come between them or before, and did not: the sum of the gaps.
    pub lost: u64,
}

/// A bound queue. Each packet waits in the kernel until it has a verdict.
///
/// When it is dropped, or its process dies, the kernel *drops* all packets that wait (instance_destroy_rcu calls nfqnl_flush
/// with `NF_DROP`); [`Queue::unbind`] lets them pass. The kernel also drops those of an interface that goes down
/// (nfqnl_dev_drop); a verdict on them is answered `ENOENT`, which is no error here.
#[derive(Debug)]
pub struct Queue {
    pub(super) number: u16,
    pub(super) socket: Socket,
    port_id: u32,
    inbox: Inbox,
    outbox: Outbox,
    last: u32,
    /// Last id that was given, as it was at the last look while nothing came.
    given: Option<u32>,
    /// What the kernel answered to a verdict; returned by the next receive.
    refused: Option<i32>,
}

impl Queue {
    /// Binds a queue in the network namespace of this thread.
    ///
    /// One message does everything: a queue that is bound and not configured discards its packets, `--queue-bypass` or not
    /// (nfqnl_enqueue_packet answers `EINVAL`). No acknowledgement is asked for, since packets may come before it; the
    /// kernel's list of queues tells afterwards whose the queue is.
    ///
    /// # Errors
    /// When somebody else has the queue, rights are missing, or the kernel does not know what is asked. A queue that is
    /// bound already answers `EPERM` to other sockets and `EBUSY` to its own (nfqnl_recv_config).
    pub fn bind(options: &QueueOptions) -> Result<Self, QueueError> {
        let mut inbox = Inbox::new(BATCH, OVERHEAD + options.copy_bytes as usize);
        let socket = bind::socket(options, &mut inbox)?;
        let port_id = socket.port_id().map_err(|e| QueueError::Socket(options.number, e))?;
        let granted = socket.buffer().map_err(|e| QueueError::Socket(options.number, e))?;
        if granted < 2 * options.buffer_bytes {
            warn!(
                "netfilter queue {} has a buffer of {} bytes, not {}: less load is enough to lose packets; raise net.core.rmem_max",
                options.number,
                granted / 2,
                options.buffer_bytes
            );
        }
        let outbox = Outbox::with_capacity((BATCH + 1) * VERDICT_BYTES);
        Ok(Self {
            number: options.number,
            socket,
            port_id,
            inbox,
            outbox,
            last: 0,
            given: None,
            refused: None,
        })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Port id of its socket, by which the kernel's list tells whose a queue is.
    pub fn port_id(&self) -> u32 {
        self.port_id
    }

    /// Bytes that fit the receive buffer, as the kernel counts them: twice what was asked for, if granted.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn buffer(&self) -> Result<usize, QueueError> {
        self.socket.buffer().map_err(|e| QueueError::Socket(self.number, e))
    }

    /// Its line in the kernel's list, `None` when it is not there: call it in the namespace in which it was bound.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn status(&self) -> Result<Option<QueueStatus>, QueueError> {
        status::find(self.number).map_err(|e| QueueError::Status(status::PATH, e))
    }

    /// Receives up to [`BATCH`] packets and calls `on` for each in turn; waits up to `timeout` when there are none. Verdicts
    /// are given afterwards.
    ///
    /// # Errors
    /// When the socket fails, or the kernel refused an earlier verdict.
    pub fn receive(
        &mut self,
        timeout: Duration,
        mut on: impl FnMut(&Message<'_>),
    ) -> Result<Received, QueueError> {
        if let Some(errno) = self.refused.take() {
            return Err(QueueError::Refused(self.number, io::Error::from_raw_os_error(errno)));
        }
        let mut received = Received::default();
        while let Err(e) = self.socket.receive(&mut self.inbox, timeout) {
            // Messages were lost; gaps will tell how many, and what waits can still be read.
            if e.raw_os_error() != Some(libc::ENOBUFS) {
                return Err(QueueError::Socket(self.number, e));
            }
        }
        for (kind, body) in self.inbox.datagrams().flat_map(messages) {
            if kind == PACKET {
                let Some(mut message) = Message::parse(body) else { continue };
                message.gap = gap(self.last, message.id);
                self.last = message.id;
                self.given = None;
                if received.packets == 0 {
                    received.first = message.id;
                }
                received.packets += 1;
                received.last = message.id;
                received.lost += u64::from(message.gap);
                on(&message);
            } else if i32::from(kind) == libc::NLMSG_ERROR {
                let errno = wire::errno(body).filter(|errno| ![0, libc::ENOENT].contains(errno));
                self.refused = self.refused.or(errno);
            }
        }
        Ok(received)
    }

    /// Packets that were lost behind the last one received: no later packet has come whose id shows the gap. `None` when some
    /// wait that have not been received, or the kernel's list does not tell, or a gap was seen for the first time: it has to
    /// be the same at the next call, with no packet received in between. Call it when each packet received has its verdict.
    pub fn lost_behind(&mut self) -> Option<u32> {
        let own = |queue: &Self| queue.status().ok()?.filter(|status| status.port_id == queue.port_id);
        let given = own(self)?.last_id;
        // The list's columns are not of one moment. But if nothing waits now, every packet with an id up to the one seen
        // before has either come or never will.
        if own(self)?.waiting != 0 {
            return None;
        }
        let lost = given.wrapping_sub(self.last);
        if lost > 0 && self.given.replace(given) != Some(given) {
            return None;
        }
        self.given = None;
        self.last = given;
        Some(lost)
    }

    /// Adds the verdict on one packet to those of the next [`Queue::send`] or [`Queue::accept_through`]. It need not follow
    /// the order of arrival. `mark` replaces the packet's whole fwmark; without it the mark stays.
    pub fn verdict(&mut self, id: u32, verdict: Verdict, mark: Option<u32>) {
        self.add(libc::NFQNL_MSG_VERDICT, id, verdict, mark);
    }

    /// Sends the collected verdicts, and after them one that accepts every packet up to `id` that still waits. `mark` replaces
    /// the whole fwmark of each of these (nfqnl_recv_verdict_batch).
    ///
    /// # Errors
    /// When the socket fails. What the kernel refuses comes with the next [`Queue::receive`].
    pub fn accept_through(&mut self, id: u32, mark: Option<u32>) -> Result<(), QueueError> {
        self.add(libc::NFQNL_MSG_VERDICT_BATCH, id, Verdict::Accept, mark);
        self.send()
    }

    /// Sends the collected verdicts.
    ///
    /// # Errors
    /// As [`Queue::accept_through`].
    pub fn send(&mut self) -> Result<(), QueueError> {
        if self.outbox.bytes().is_empty() {
            return Ok(());
        }
        let sent = self.socket.send(self.outbox.bytes());
        self.outbox.clear();
        sent.map_err(|e| QueueError::Socket(self.number, e))
    }

    /// Lets all packets pass that wait, also those that have not been received, and gives the queue back. Those that are
    /// queued at this very moment are dropped: remove the rules first.
    pub fn unbind(mut self) {
        self.add(libc::NFQNL_MSG_VERDICT_BATCH, self.last.wrapping_add(ALL_AHEAD), Verdict::Accept, None);
    }

    fn add(&mut self, kind: libc::c_int, id: u32, verdict: Verdict, mark: Option<u32>) {
        let [a, b, c, d] = verdict.number().to_be_bytes();
        let [e, f, g, h] = id.to_be_bytes();
        let message = self.outbox.message(libc::NFNL_SUBSYS_QUEUE, kind, self.number);
        message.attribute(libc::NFQA_VERDICT_HDR, &[a, b, c, d, e, f, g, h]);
        if let Some(mark) = mark {
            message.attribute(libc::NFQA_MARK, &mark.to_be_bytes());
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Closing alone gives the queue back later where a child between fork and exec still has the descriptor.
        let message = self.outbox.message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_CONFIG, self.number);
        message.attribute(libc::NFQA_CFG_CMD, &[libc::NFQNL_CFG_CMD_UNBIND as u8, 0, 0, 0]);
        // When it fails, closing is what is left.
        let _ = self.send();
    }
}

/// Type of a message that brings a packet.
pub const PACKET: u16 = (libc::NFNL_SUBSYS_QUEUE as u16) << 8 | libc::NFQNL_MSG_PACKET as u16;
