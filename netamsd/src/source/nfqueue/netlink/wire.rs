//! Netlink messages of the netfilter subsystems as bytes (include/uapi/linux/netlink.h, netfilter/nfnetlink.h).
//!
//! Pure. Nothing that is read is believed: lengths that do not fit end the walk.

/// Length of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// Length of `struct nfgenmsg`, which follows the header in every message of netfilter.
const NETFILTER_HEADER: usize = 4;
/// The flags nested and network byte order share the word with an attribute's type.
const TYPE_MASK: u16 = 0x3fff;

/// Messages for the kernel, collected for one send.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// Where the last message begins.
    last: usize,
}

impl Outbox {
    /// An empty one that has to grow only beyond `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), last: 0 }
    }

    /// Begins a request: `subsystem` and `kind` are `NFNL_SUBSYS_*` and the subsystem's message, `resource` the number of
    /// the queue or group.
    pub fn message(&mut self, subsystem: libc::c_int, kind: libc::c_int, resource: u16) -> &mut Self {
        self.last = self.bytes.len();
        let kind = (subsystem as u16) << 8 | kind as u16;
        self.bytes.extend(((HEADER + NETFILTER_HEADER) as u32).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        // Sequence number and port id: answers are told apart by their contents, and the kernel knows its sender.
        self.bytes.extend([0; 8]);
        self.bytes.extend([libc::AF_UNSPEC as u8, libc::NFNETLINK_V0 as u8]);
        self.bytes.extend(resource.to_be_bytes());
        self
    }

    /// Adds an attribute to the message that was begun last.
    pub fn attribute(&mut self, kind: libc::c_int, value: &[u8]) -> &mut Self {
        self.bytes.extend((4 + value.len() as u16).to_ne_bytes());
        self.bytes.extend((kind as u16).to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let length = (self.bytes.len() - self.last) as u32;
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// What has been collected.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what has been collected; the memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.last = 0;
    }
}

/// Type and body of each message in a datagram.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, rest) = datagram.split_first_chunk::<4>()?;
        let length = u32::from_ne_bytes(*length) as usize;
        let kind = u16::from_ne_bytes(*rest.first_chunk()?);
        let body = datagram.get(HEADER..length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Type and value of each attribute in the body of a netfilter message.
pub fn attributes(body: &[u8]) -> impl Iterator<Item = (i32, &[u8])> {
    let mut rest = body.get(NETFILTER_HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let ([a, b, c, d], _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((i32::from(u16::from_ne_bytes([*c, *d]) & TYPE_MASK), value))
    })
}

/// The number in network byte order that a value begins with.
pub fn be32(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// The error that an `NLMSG_ERROR` carries, as a positive `errno`; 0 is an acknowledgement.
pub(super) fn errno(body: &[u8]) -> Option<i32> {
    body.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes).wrapping_neg())
}
