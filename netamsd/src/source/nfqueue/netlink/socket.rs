//! A netlink socket to netfilter that receives many messages in one call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, connect, getsockname,
    getsockopt, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// The socket. Its port id is its name in the kernel's lists.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    timeout: Duration,
}

impl Socket {
    /// A socket that talks to the kernel alone.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` where the kernel has no nfnetlink.
    pub fn open() -> io::Result<Self> {
        let netfilter = SockProtocol::NetlinkNetFilter;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, netfilter)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // Other processes can then send nothing to it (netlink_getsockbyportid of net/netlink/af_netlink.c).
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self { fd, timeout: Duration::ZERO })
    }

    /// The kernel's name for it: the pid for a process's first netfilter socket, some other number for the next.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn port_id(&self) -> io::Result<u32> {
        Ok(getsockname::<NetlinkAddr>(self.fd.as_raw_fd())?.pid())
    }

    /// Asks for a receive buffer of so many bytes, past the machine's limit where the capabilities suffice.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_buffer(&self, bytes: usize) -> io::Result<()> {
        setsockopt(&self.fd, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.fd, sockopt::RcvBuf, &bytes))
            .map_err(Into::into)
    }

    /// Bytes that fit the receive buffer, the kernel's own overhead included: about 830 a packet.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn buffer(&self) -> io::Result<usize> {
        Ok(getsockopt(&self.fd, sockopt::RcvBuf)?)
    }

    /// With `on` a full receive buffer costs the messages that do not fit, and no more. Otherwise the kernel also discards
    /// every later message until all that wait have been read, and answers a read with `ENOBUFS` (netlink_overrun of
    /// net/netlink/af_netlink.c).
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_no_enobufs(&self, on: bool) -> io::Result<()> {
        let on = libc::c_int::from(on);
        // SAFETY: the pointer is to a live value of the size given.
        let done = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_NO_ENOBUFS,
                (&raw const on).cast(),
                size_of_val(&on) as u32,
            )
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends messages; the kernel has carried them out when this returns. Errors come as messages.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Receives what is there into `inbox`, or waits for it up to `timeout`, rounded up to microseconds; `inbox` is empty
    /// when nothing came, or a signal did.
    ///
    /// # Errors
    /// Those of `recvmmsg`, `ENOBUFS` included: messages were lost, and the next call goes on behind them.
    pub fn receive(&mut self, inbox: &mut Inbox, timeout: Duration) -> io::Result<()> {
        inbox.filled = 0;
        let mut flags = libc::MSG_WAITFORONE;
        if timeout.is_zero() {
            flags |= libc::MSG_DONTWAIT;
        } else if timeout != self.timeout {
            // A time of zero would mean forever.
            let micros = timeout.as_micros().clamp(1, i64::MAX as u128) as i64;
            let time = TimeVal::new(micros / 1_000_000, micros % 1_000_000);
            setsockopt(&self.fd, sockopt::ReceiveTimeout, &time)?;
            self.timeout = timeout;
        }
        let headers = &mut inbox.headers;
        // SAFETY: the headers point to vectors and buffers that `inbox` owns and never moves.
        let received = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as u32,
                flags,
                std::ptr::null_mut(),
            )
        };
        if received >= 0 {
            inbox.filled = received as usize;
            return Ok(());
        }
        match io::Error::last_os_error() {
            e if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
            e => Err(e),
        }
    }
}

/// Buffers for a batch of datagrams, made once.
#[derive(Debug)]
pub struct Inbox {
    // Vectors and not boxes: the headers keep pointers into them.
    buffers: Vec<u8>,
    _vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    size: usize,
    filled: usize,
}

// SAFETY: its pointers lead to what it owns itself, wherever it is used.
unsafe impl Send for Inbox {}

impl Inbox {
    /// Room for `count` datagrams of at most `size` bytes each; longer ones are cut.
    pub fn new(count: usize, size: usize) -> Self {
        let size = size.next_multiple_of(64);
        let mut buffers = vec![0u8; count * size];
        let mut vectors: Vec<libc::iovec> = buffers
            .chunks_exact_mut(size)
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: size })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all-zero is a valid mmsghdr: no address, no control data.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self { buffers, _vectors: vectors, headers, size, filled: 0 }
    }

    /// The datagrams that were received last, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let lengths = self.headers[..self.filled].iter().map(|header| header.msg_len as usize);
        self.buffers
            .chunks_exact(self.size)
            .zip(lengths)
            .map(|(buffer, length)| &buffer[..length.min(buffer.len())])
    }
}
