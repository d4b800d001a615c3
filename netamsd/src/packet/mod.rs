//! From the bytes of a packet in user space to its flow key, wire packets and layer-3 bytes.
//!
//! Pure, without allocation, and total: any bytes have an answer. It promises the answer that the kernel's parser
//! (`kmod-bpf/src/bpf/parse.h`) gives for the same packet; the test `differential` holds the two together. No length field
//! is trusted further than the packet itself. Tables, marks and verdicts are none of its business, and a later fragment is
//! left to whoever remembers first ones.
//!
//! [`link`] finds the IP header, [`ip`] reads it and what follows, [`tunnel`] goes on to the IP header inside, and
//! [`segments`] counts what a super-packet stands for. What was not captured is not there, whatever lengths say: a header
//! counts as cut short when one of its bytes was not captured. A header may be announced at an offset beyond what was
//! captured; then there is nothing of it. And nothing is read from offsets beyond [`MAX_OFFSET`], as in the kernel.

mod ip;
mod link;
mod segments;
#[cfg(test)]
mod tests;
mod tunnel;

use kmod_bpf::FlowKey;

pub use link::{Link, parse_link};
pub use tunnel::inner;

/// EtherType of IPv4 (IEEE 802 numbers, IANA).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// VLAN tags that are looked through.
const MAX_TAGS: usize = 2;
/// Last offset from which a header is read: the kernel's verifier wants a bound.
const MAX_OFFSET: usize = 0x7fff;

/// What is known of a super-packet, which stands for several wire packets that carry its headers each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gso {
    /// Payload bytes of a segment, the last one excepted; 0: no super-packet.
    pub size: u32,
    /// Segments; 0: not known, the length tells.
    pub segs: u32,
}

impl Gso {
    /// A packet that is one on the wire.
    pub const NONE: Self = Self { size: 0, segs: 0 };

    /// Wire packets as far as they are known without headers: what a packet without a valid IP header counts as.
    pub fn packets(self) -> u32 {
        if self.size == 0 { 1 } else { self.segs.max(1) }
    }
}

/// Which part of an IP packet this is, with what the parts have in common, as in [`kmod_bpf::FragmentKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragment {
    /// All of it.
    Whole,
    /// The first part, which has the ports.
    First {
        /// Identification as it lies on the wire; that of IPv4 in the lower half.
        id: u32,
        /// The protocol that the fragment itself names.
        proto: u8,
    },
    /// Another part: its flow is that of the first one.
    Later {
        /// Identification as it lies on the wire; that of IPv4 in the lower half.
        id: u32,
        /// The protocol that the fragment itself names.
        proto: u8,
    },
}

impl Fragment {
    fn of(id: u32, proto: u8, offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First { id, proto },
            _ => Self::Later { id, proto },
        }
    }
}

/// What a packet with a valid IP header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Its flow, with `used` 0 and no flag but the tunnel of an inner packet; of a later fragment, the one to use when the
    /// first was not seen.
    pub key: FlowKey,
    /// Which part of an IP packet it is.
    pub fragment: Fragment,
    /// Wire packets, at least 1.
    pub packets: u32,
    /// Layer-3 bytes of all of them.
    pub bytes: u64,
    /// A super-packet of an encapsulation that is not read or of an unknown protocol: `bytes` may lack headers.
    pub headers_unknown: bool,
    /// Offset of the IP header in the bytes that were parsed.
    pub l3: usize,
    /// Offset of the upper-layer header, which may lie beyond the captured bytes; none where there is none to be read.
    pub l4: Option<usize>,
}

/// Each packet is exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// Belongs to a flow.
    Ip(Packet),
    /// Neither IPv4 nor IPv6; [`Gso::packets`] wire packets.
    NonIp,
    /// Said to be IP, without a valid header; [`Gso::packets`] wire packets.
    Malformed,
}

/// Parses a frame with an Ethernet header. `len` is its original length in bytes, of which `frame` may hold fewer.
pub fn parse_ethernet(frame: &[u8], len: u32, gso: Gso) -> Parsed {
    outermost(Captured::new(frame, len, gso), link::ethernet(frame, 0))
}

/// Parses a packet that begins behind link-layer headers and VLAN tags and is said to be of `ethertype`. `len` is its original
/// length in bytes, of which `packet` may hold fewer.
pub fn parse_ip(packet: &[u8], len: u32, ethertype: u16, gso: Gso) -> Parsed {
    outermost(Captured::new(packet, len, gso), link::untagged(packet, 0, ethertype))
}

/// What is there to read.
#[derive(Clone, Copy)]
struct Captured<'a> {
    data: &'a [u8],
    /// Original length, at least that of `data`.
    len: u32,
    gso: Gso,
}

impl<'a> Captured<'a> {
    fn new(data: &'a [u8], len: u32, gso: Gso) -> Self {
        Self { data, len: len.max(u32::try_from(data.len()).unwrap_or(u32::MAX)), gso }
    }

    /// Original length from `l3` on.
    fn room(&self, l3: usize) -> u32 {
        self.len - l3 as u32
    }
}

/// `N` bytes at `at`, when they were captured.
fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<&[u8; N]> {
    if at > MAX_OFFSET {
        return None;
    }
    data.get(at..)?.first_chunk()
}

/// Which IP header is said to be where, below which VLAN ids.
#[derive(Clone, Copy)]
struct Announced {
    version: Version,
    l3: usize,
    tags: [u16; MAX_TAGS],
}

impl Announced {
    fn new(version: Version, l3: usize) -> Self {
        Self { version, l3, tags: [0; MAX_TAGS] }
    }
}

#[derive(Clone, Copy)]
enum Version {
    V4,
    V6,
    /// The header itself tells.
    Either,
}

/// `None` is no IP.
fn outermost(captured: Captured, announced: Option<Announced>) -> Parsed {
    let Some(announced) = announced else { return Parsed::NonIp };
    let Some(mut packet) = ip::parse(captured, announced) else { return Parsed::Malformed };
    if captured.gso.size != 0 {
        segments::count(captured, &mut packet);
    }
    Parsed::Ip(packet)
}
