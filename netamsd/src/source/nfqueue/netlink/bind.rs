//! Binding a queue to a socket, and finding out whether that has worked.

use std::io;
use std::time::Duration;

use super::{Inbox, Outbox, QueueError, Socket, messages, wire};
use crate::source::nfqueue::status::{self, COPY_PACKET, QueueStatus};

/// What the kernel adds to the bytes it copies of a packet: headers and the attributes of `nfqnl_build_packet_message`.
pub(super) const OVERHEAD: usize = 192;

/// How a queue is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// Its number.
    pub number: u16,
    /// Bytes of each packet that are copied, 1 to 65531.
    pub copy_bytes: u32,
    /// Packets that may wait in it.
    pub max_packets: u32,
    /// Super-packets come whole; otherwise the kernel cuts them before they are queued.
    pub gso: bool,
    /// Packets for which there is no room pass; otherwise they are dropped.
    pub fail_open: bool,
    /// Receive buffer in bytes; what the kernel grants is [`Queue::buffer`].
    pub buffer_bytes: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            number: 0,
            copy_bytes: 128,
            max_packets: 65535,
            gso: true,
            fail_open: true,
            buffer_bytes: 16 << 20,
        }
    }
}

/// A socket that has the queue.
pub(super) fn socket(options: &QueueOptions, inbox: &mut Inbox) -> Result<Socket, QueueError> {
    let number = options.number;
    let failed = |e| QueueError::Socket(number, e);
    let mut socket = Socket::open().map_err(|e| match e.raw_os_error() {
        Some(libc::EPROTONOSUPPORT) => QueueError::Unsupported,
        _ => failed(e),
    })?;
    socket.set_no_enobufs(true).map_err(failed)?;
    socket.set_buffer(options.buffer_bytes).map_err(failed)?;
    socket.send(configuration(options).bytes()).map_err(failed)?;
    let port = socket.port_id().map_err(failed)?;
    match status::find(number).map_err(|e| QueueError::Status(status::PATH, e))? {
        Some(status) if status.port_id == port => as_asked(options, &status).map(|()| socket),
        Some(status) => Err(QueueError::Taken { number, owner: status::owner(status.port_id) }),
        // Without a queue nothing but the error can have been sent.
        None => Err(refusal(number, &mut socket, inbox)),
    }
}

fn configuration(options: &QueueOptions) -> Outbox {
    let known = libc::NFQA_CFG_F_GSO | libc::NFQA_CFG_F_FAIL_OPEN;
    let mut flags = 0;
    if options.gso {
        flags |= libc::NFQA_CFG_F_GSO;
    }
    if options.fail_open {
        flags |= libc::NFQA_CFG_F_FAIL_OPEN;
    }
    let [a, b, c, d] = options.copy_bytes.to_be_bytes();
    let mut outbox = Outbox::default();
    outbox
        .message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_CONFIG, options.number)
        .attribute(libc::NFQA_CFG_CMD, &[libc::NFQNL_CFG_CMD_BIND as u8, 0, 0, 0])
        .attribute(libc::NFQA_CFG_FLAGS, &(flags as u32).to_be_bytes())
        .attribute(libc::NFQA_CFG_MASK, &(known as u32).to_be_bytes())
        .attribute(libc::NFQA_CFG_QUEUE_MAXLEN, &options.max_packets.to_be_bytes())
        .attribute(libc::NFQA_CFG_PARAMS, &[a, b, c, d, COPY_PACKET]);
    outbox
}

fn as_asked(options: &QueueOptions, status: &QueueStatus) -> Result<(), QueueError> {
    if status.copy_mode == COPY_PACKET && status.copy_range == options.copy_bytes {
        return Ok(());
    }
    Err(QueueError::Differs {
        number: options.number,
        mode: status.copy_mode,
        range: status.copy_range,
        asked: options.copy_bytes,
    })
}

/// Why there is no queue: what the kernel answered.
fn refusal(number: u16, socket: &mut Socket, inbox: &mut Inbox) -> QueueError {
    if let Err(e) = socket.receive(inbox, Duration::ZERO) {
        return QueueError::Socket(number, e);
    }
    let answers = inbox.datagrams().flat_map(messages);
    let errors = answers.filter(|(kind, _)| i32::from(*kind) == libc::NLMSG_ERROR);
    match errors.filter_map(|(_, body)| wire::errno(body)).find(|errno| *errno != 0) {
        Some(libc::EPERM) => QueueError::Rights,
        // No handler for the subsystem (nfnetlink_rcv_msg).
        Some(libc::EINVAL) => QueueError::Unsupported,
        Some(errno) => QueueError::Bind(number, io::Error::from_raw_os_error(errno)),
        None => QueueError::Bind(number, io::ErrorKind::NotFound.into()),
    }
}
