//! A packet as a queue tells of it.

use super::wire::{attributes, be32};

/// `NFQA_SKB_GSO` of include/uapi/linux/netfilter/nfnetlink_queue.h.
const SKB_GSO: u32 = 1 << 1;

/// A queued packet. Borrows the buffer that it was received in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Identity in its queue; the verdict names it.
    pub id: u32,
    /// Packets that were given ids between the one before and this one, and never came: see [`gap`].
    pub gap: u32,
    /// `NF_INET_*`: 1 input, 2 forward, 3 output.
    pub hook: u8,
    /// Ethertype, 0x0800 or 0x86dd.
    pub ethertype: u16,
    /// Its fwmark.
    pub mark: u32,
    /// Index of the interface that it came in by, 0 when none.
    pub indev: u32,
    /// Index of the interface that it will leave by, 0 when none.
    pub outdev: u32,
    /// It from the network layer on, as much of it as the queue copies.
    pub payload: &'a [u8],
    /// Its length in bytes from the network layer on.
    pub len: u32,
    /// It is a super-packet, which stands for several on the wire.
    pub gso: bool,
}

impl<'a> Message<'a> {
    /// Reads the body of an `NFQNL_MSG_PACKET`; `None` when it names no packet. `gap` is left at 0.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let mut message = Self::default();
        let mut whole = None;
        let mut named = false;
        for (kind, value) in attributes(body) {
            match kind {
                libc::NFQA_PACKET_HDR => {
                    // struct nfqnl_msg_packet_hdr: id, ethertype, hook.
                    let [a, b, c, d, e, f, hook] = *value.first_chunk()?;
                    message.id = u32::from_be_bytes([a, b, c, d]);
                    message.ethertype = u16::from_be_bytes([e, f]);
                    message.hook = hook;
                    named = true;
                }
                libc::NFQA_MARK => message.mark = be32(value).unwrap_or_default(),
                libc::NFQA_IFINDEX_INDEV => message.indev = be32(value).unwrap_or_default(),
                libc::NFQA_IFINDEX_OUTDEV => message.outdev = be32(value).unwrap_or_default(),
                libc::NFQA_CAP_LEN => whole = be32(value),
                libc::NFQA_SKB_INFO => message.gso = be32(value).is_some_and(|flags| flags & SKB_GSO != 0),
                libc::NFQA_PAYLOAD => message.payload = value,
                _ => {}
            }
        }
        // The kernel tells the whole length only when it copies less (nfqnl_build_packet_message).
        message.len = whole.unwrap_or(message.payload.len() as u32);
        named.then_some(message)
    }
}

/// Packets whose ids lie between `last` and `id`. Ids count up from 1 and wrap at 32 bits; one that does not come after
/// `last` is no gap.
///
/// A packet consumes an id when it is handed to the socket (`__nfqnl_enqueue_packet`), so a gap is what the socket's full
/// buffer refused, to the packet: without fail-open the kernel drops it and counts `user_dropped`, with fail-open it lets it
/// pass and counts nothing. A packet that finds the *queue* full consumes no id: it is counted as `queue_dropped`, and with
/// fail-open passes uncounted. So gaps and `queue_dropped` never tell of the same packet, and with fail-open only a
/// counter in front of the queue knows what a full queue let pass.
pub fn gap(last: u32, id: u32) -> u32 {
    match id.wrapping_sub(last) {
        0 => 0,
        ahead if ahead > i32::MAX as u32 => 0,
        ahead => ahead - 1,
    }
}
