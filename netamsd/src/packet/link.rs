//! Below IP: from the first byte of a frame to the IP header that it announces.
//!
//! Looked through are VLAN tags, PPPoE sessions and MPLS stacks, each in front of the next: tags, then a session or a stack,
//! and a stack in a session. Everything else is no IP, and so is one of these headers when it is cut short. What is behind
//! the last of them is another matter: once IP is announced, its header being there or not is for [`ip`](super::ip) to say.
//! The length and code fields of PPPoE are not looked at.

use super::{
    Announced, Captured, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Gso, MAX_TAGS, Parsed, Version, bytes, outermost,
};

/// 802.1Q, 802.1ad, and the number that QinQ had before.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Unicast and multicast (RFC 5332).
const ETHERTYPES_MPLS: [u16; 2] = [0x8847, 0x8848];
/// RFC 2516.
const ETHERTYPE_PPPOE_SESSION: u16 = 0x8864;
const VLAN_ID: u16 = 0x0fff;

/// Protocol numbers of PPP (IANA).
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;
const PPP_MPLS: [u16; 2] = [0x0281, 0x0283];
/// Address and control in front of the protocol (RFC 1662).
const PPP_ADDRESS_CONTROL: [u8; 2] = [0xff, 0x03];
/// First bytes of Cisco's framing: unicast and multicast.
const CISCO_HDLC: [u8; 2] = [0x0f, 0x8f];

const ETHERNET_HEADER: usize = 14;
const PPPOE_HEADER: usize = 6;
const COOKED_HEADER: usize = 16;
const COOKED2_HEADER: usize = 20;
const NULL_HEADER: usize = 4;

/// Address families in front of a packet of BSD's loopback: IPv4, and the numbers of IPv6 in the several systems.
const AF_INET: u32 = 2;
const AF_INET6: [u32; 5] = [10, 23, 24, 28, 30];

/// What the frames of a capture begin with (tcpdump.org, link-layer header types).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// `ETHERNET`.
    Ethernet,
    /// `LINUX_SLL`: 16 bytes, the EtherType last.
    Cooked,
    /// `LINUX_SLL2`: 20 bytes, the EtherType first.
    Cooked2,
    /// `RAW`: IP, whose version tells which.
    Ip,
    /// `IPV4`.
    Ipv4,
    /// `IPV6`.
    Ipv6,
    /// `NULL`: an address family in the byte order of the machine that captured.
    Null,
    /// `LOOP`: an address family in network byte order.
    Loopback,
    /// `PPP` and `PPP_HDLC`.
    Ppp,
}

impl Link {
    /// By the number in a capture file; `None` of one whose frames are not read. 12 and 14 are `RAW` in files of some systems.
    pub fn new(linktype: u16) -> Option<Self> {
        Some(match linktype {
            0 => Self::Null,
            1 => Self::Ethernet,
            9 | 50 => Self::Ppp,
            12 | 14 | 101 => Self::Ip,
            108 => Self::Loopback,
            113 => Self::Cooked,
            228 => Self::Ipv4,
            229 => Self::Ipv6,
            276 => Self::Cooked2,
            _ => return None,
        })
    }
}

/// Parses a frame of a capture. `len` is its original length in bytes, of which `frame` may hold fewer.
pub fn parse_link(link: Link, frame: &[u8], len: u32, gso: Gso) -> Parsed {
    let announced = match link {
        Link::Ethernet => ethernet(frame, 0),
        Link::Cooked => {
            bytes(frame, COOKED_HEADER - 2).and_then(|kind| tagged(frame, COOKED_HEADER, be16(*kind)))
        }
        // The whole header has to be there.
        Link::Cooked2 => bytes::<COOKED2_HEADER>(frame, 0)
            .and_then(|header| tagged(frame, COOKED2_HEADER, be16([header[0], header[1]]))),
        Link::Ip => Some(Announced::new(Version::Either, 0)),
        Link::Ipv4 => Some(Announced::new(Version::V4, 0)),
        Link::Ipv6 => Some(Announced::new(Version::V6, 0)),
        Link::Null | Link::Loopback => bsd(frame, link),
        Link::Ppp => match *frame {
            [first, ..] if CISCO_HDLC.contains(&first) => {
                bytes(frame, 2).and_then(|kind| tagged(frame, 4, be16(*kind)))
            }
            [a, b, ..] if [a, b] == PPP_ADDRESS_CONTROL => ppp(frame, 2),
            _ => ppp(frame, 0),
        },
    };
    outermost(Captured::new(frame, len, gso), announced)
}

/// An Ethernet header at `at`.
pub(super) fn ethernet(data: &[u8], at: usize) -> Option<Announced> {
    let ethertype = bytes(data, at + ETHERNET_HEADER - 2)?;
    tagged(data, at + ETHERNET_HEADER, be16(*ethertype))
}

/// What is of `ethertype` at `at`, below VLAN tags.
fn tagged(data: &[u8], mut at: usize, mut ethertype: u16) -> Option<Announced> {
    let mut tags = [0; MAX_TAGS];
    for tag in &mut tags {
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            break;
        }
        let &[a, b, c, d] = bytes(data, at)?;
        *tag = be16([a, b]) & VLAN_ID;
        ethertype = be16([c, d]);
        at += 4;
    }
    Some(Announced { tags, ..untagged(data, at, ethertype)? })
}

/// What is of `ethertype` at `at`, a VLAN tag being no IP.
pub(super) fn untagged(data: &[u8], at: usize, ethertype: u16) -> Option<Announced> {
    match ethertype {
        ETHERTYPE_IPV4 => Some(Announced::new(Version::V4, at)),
        ETHERTYPE_IPV6 => Some(Announced::new(Version::V6, at)),
        ETHERTYPE_PPPOE_SESSION => ppp(data, at + PPPOE_HEADER),
        kind if ETHERTYPES_MPLS.contains(&kind) => mpls(data, at),
        _ => None,
    }
}

/// The protocol field of PPP at `at`: two bytes, or an odd one alone.
fn ppp(data: &[u8], mut at: usize) -> Option<Announced> {
    let &[first] = bytes(data, at)?;
    let mut protocol = u16::from(first);
    at += 1;
    if first & 1 == 0 {
        let &[second] = bytes(data, at)?;
        protocol = be16([first, second]);
        at += 1;
    }
    match protocol {
        PPP_IPV4 => Some(Announced::new(Version::V4, at)),
        PPP_IPV6 => Some(Announced::new(Version::V6, at)),
        kind if PPP_MPLS.contains(&kind) => mpls(data, at),
        _ => None,
    }
}

/// A stack of labels of any depth at `at`; what follows has no type and tells by its first four bits (RFC 4928).
fn mpls(data: &[u8], mut at: usize) -> Option<Announced> {
    loop {
        let &[_, _, bottom, _] = bytes(data, at)?;
        at += 4;
        if bottom & 1 != 0 {
            break;
        }
    }
    let &[first] = bytes(data, at)?;
    match first >> 4 {
        4 => Some(Announced::new(Version::V4, at)),
        6 => Some(Announced::new(Version::V6, at)),
        _ => None,
    }
}

fn bsd(data: &[u8], link: Link) -> Option<Announced> {
    let &family = bytes::<NULL_HEADER>(data, 0)?;
    let network = u32::from_be_bytes(family);
    let families = [network, if link == Link::Null { network.swap_bytes() } else { network }];
    if families.contains(&AF_INET) {
        Some(Announced::new(Version::V4, NULL_HEADER))
    } else if families.iter().any(|family| AF_INET6.contains(family)) {
        Some(Announced::new(Version::V6, NULL_HEADER))
    } else {
        None
    }
}

fn be16(bytes: [u8; 2]) -> u16 {
    u16::from_be_bytes(bytes)
}
