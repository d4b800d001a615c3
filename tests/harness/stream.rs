//! A TCP connection on which the server sends until it is told to end, while something else is done.
//!
//! Until it is told to begin nothing is sent on it, after the handshake.

use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::lab::{Lab, SERVER4};
use crate::tcp::wait_until_closed;

/// How long a call may wait until it looks whether it is to end.
const PAUSE: Duration = Duration::from_millis(50);
/// Receive buffer of the client: what fits the receive backlog even as single packets.
const WINDOW: libc::c_int = 256 << 10;

/// A connection under way.
pub struct Stream {
    begin: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    ends: [JoinHandle<()>; 2],
}

impl Stream {
    /// Connects from the client to this port of the server.
    pub fn connect(lab: &Lab, port: u16) -> Self {
        let (begin, stop) = (Arc::default(), Arc::default());
        let received = Arc::new(AtomicU64::new(0));
        let server = SocketAddr::new(SERVER4.into(), port);
        let listener = lab.server.enter(|| TcpListener::bind(server)).expect("listen");
        let there = lab.client.enter(|| TcpStream::connect(server)).expect("connect");
        let (here, _) = listener.accept().expect("accept");
        let (begun, told, sum) = (Arc::clone(&begin), Arc::clone(&stop), Arc::clone(&received));
        let sender = lab.server.spawn(move || send(here, &begun, &told));
        let receiver = lab.client.spawn(move || receive(there, &sum));
        Self { begin, stop, received, ends: [sender, receiver] }
    }

    /// Has the server send.
    pub fn begin(&self) {
        self.begin.store(true, Ordering::Relaxed);
    }

    /// Payload bytes that the client has received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Ends it and returns when both ends have closed; the payload bytes that the client has received.
    pub fn end(self, lab: &Lab) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for end in self.ends {
            end.join().expect("an end of the connection");
        }
        wait_until_closed(lab);
        self.received.load(Ordering::Relaxed)
    }
}

fn send(mut stream: TcpStream, begin: &AtomicBool, stop: &AtomicBool) {
    stream.set_write_timeout(Some(PAUSE)).expect("set a timeout");
    while !begin.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
        thread::sleep(PAUSE);
    }
    let payload = vec![0x5a; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&payload) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => panic!("send: {e}"),
            _ => {}
        }
    }
}

fn receive(mut stream: TcpStream, received: &AtomicU64) {
    let window = WINDOW;
    // SAFETY: the pointer is to a live value of the size given.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const window).cast(),
            mem::size_of_val(&window) as u32,
        )
    };
    assert_eq!(done, 0, "set the receive buffer");
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer).expect("receive") {
            0 => return,
            bytes => received.fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }
}
