//! Readers that only read: what their way of getting packets costs, without any accounting.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use netams_tests::ns::Namespace;
use netamsd::source::nfqueue::netlink::{
    Inbox, Message, Outbox, PACKET, Queue, QueueOptions, Socket, Verdict, attributes, messages,
};

/// Number of the queue, and of the NFLOG group.
const NUMBER: u16 = 2050;
/// How long a reader waits before it looks whether it is to end.
const WAIT: Duration = Duration::from_millis(100);
/// The most that a queue copies: NFQNL_MAX_COPY_RANGE of net/netfilter/nfnetlink_queue.c.
const WHOLE: u32 = 65531;
/// The largest buffer that NFLOG gathers packets in: NFULNL_NLBUFSIZ_MAX of net/netfilter/nfnetlink_log.c.
const LOG_BUFFER: u32 = 131_072;

/// Waits for packets and deals with those that came.
type Step = Box<dyn FnMut() -> anyhow::Result<()>>;
/// Makes a reader in the network namespace of the calling thread.
pub type Open = fn() -> anyhow::Result<Step>;

/// A reader at work on a thread of its own, until dropped.
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Reader {
    /// Returns when the reader is ready for packets.
    pub fn start(namespace: &Namespace, open: Open) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, opened) = mpsc::sync_channel(1);
        let stopped = Arc::clone(&stop);
        let thread = namespace.spawn(move || {
            let mut step = open()?;
            // The other end waits for it.
            let _ = ready.send(());
            while !stopped.load(Ordering::Relaxed) {
                step()?;
            }
            Ok(())
        });
        let mut reader = Self { stop, thread: Some(thread) };
        match opened.recv() {
            Ok(()) => Ok(reader),
            Err(_) => Err(reader.end().err().context("the reader ended before it began")?),
        }
    }

    /// Ends it; what went wrong in it.
    pub fn end(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // A mistake has been told by `end`, or another one is on its way.
        let _ = self.end();
    }
}

/// The loop of every example: one message received, one verdict sent; all of the packet, nothing tuned.
pub fn naive() -> anyhow::Result<Step> {
    let mut socket = Socket::open()?;
    let mut outbox = Outbox::default();
    let [a, b, c, d] = WHOLE.to_be_bytes();
    outbox
        .message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_CONFIG, NUMBER)
        .attribute(libc::NFQA_CFG_CMD, &[libc::NFQNL_CFG_CMD_BIND as u8, 0, 0, 0])
        .attribute(libc::NFQA_CFG_PARAMS, &[a, b, c, d, libc::NFQNL_COPY_PACKET as u8]);
    socket.send(outbox.bytes())?;
    let mut inbox = Inbox::new(1, WHOLE as usize + 512);
    Ok(Box::new(move || {
        receive(&mut socket, &mut inbox)?;
        for (kind, body) in inbox.datagrams().flat_map(messages) {
            let Some(message) = (kind == PACKET).then(|| Message::parse(body)).flatten() else { continue };
            let [a, b, c, d] = message.id.to_be_bytes();
            outbox.clear();
            outbox
                .message(libc::NFNL_SUBSYS_QUEUE, libc::NFQNL_MSG_VERDICT, NUMBER)
                .attribute(libc::NFQA_VERDICT_HDR, &[0, 0, 0, libc::NF_ACCEPT as u8, a, b, c, d]);
            socket.send(outbox.bytes())?;
        }
        Ok(())
    }))
}

/// The daemon's way to read a queue, with nothing behind it.
pub fn queue() -> anyhow::Result<Step> {
    let mut queue = Queue::bind(&QueueOptions { number: NUMBER, ..QueueOptions::default() })?;
    Ok(Box::new(move || {
        let received = queue.receive(WAIT, |message| {
            black_box(message);
        })?;
        if received.packets > 0 {
            queue.accept_through(received.last, None)?;
        }
        Ok(())
    }))
}

/// The same with a verdict for each packet, many in one send.
pub fn verdicts() -> anyhow::Result<Step> {
    let mut queue = Queue::bind(&QueueOptions { number: NUMBER, ..QueueOptions::default() })?;
    let mut ids = Vec::new();
    Ok(Box::new(move || {
        queue.receive(WAIT, |message| ids.push(message.id))?;
        for id in ids.drain(..) {
            queue.verdict(id, Verdict::Accept, None);
        }
        Ok(queue.send()?)
    }))
}

/// Copies of the packets' heads, which pass without waiting for anybody.
pub fn nflog() -> anyhow::Result<Step> {
    let mut socket = Socket::open()?;
    socket.set_no_enobufs(true)?;
    socket.set_buffer(QueueOptions::default().buffer_bytes)?;
    let mut outbox = Outbox::default();
    outbox
        .message(libc::NFNL_SUBSYS_ULOG, libc::NFULNL_MSG_CONFIG, NUMBER)
        .attribute(libc::NFULA_CFG_CMD, &[libc::NFULNL_CFG_CMD_BIND as u8])
        .attribute(libc::NFULA_CFG_MODE, &[0, 0, 0, 96, libc::NFULNL_COPY_PACKET as u8, 0])
        .attribute(libc::NFULA_CFG_NLBUFSIZ, &LOG_BUFFER.to_be_bytes())
        .attribute(libc::NFULA_CFG_QTHRESH, &512u32.to_be_bytes());
    socket.send(outbox.bytes())?;
    let mut inbox = Inbox::new(8, LOG_BUFFER as usize);
    Ok(Box::new(move || {
        receive(&mut socket, &mut inbox)?;
        for (_, body) in inbox.datagrams().flat_map(messages) {
            black_box(attributes(body).find(|(kind, _)| *kind == libc::NFULA_PAYLOAD));
        }
        Ok(())
    }))
}

/// Messages that were lost are no reason to end.
fn receive(socket: &mut Socket, inbox: &mut Inbox) -> io::Result<()> {
    match socket.receive(inbox, WAIT) {
        Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
        other => other,
    }
}
