//! What a tunnel's packet carries: the innermost IP packet of up to three levels.
//!
//! A level is the way from one IP header to the next. It is there when the tunnel's headers were captured and the IP header
//! behind them is not malformed; otherwise the search ends with what was found before. Of a packet with UDP, the first port
//! of a tunnel decides, in the order of [`udp`], and what is no such tunnel is none: ports are not tried one after another.

use kmod_bpf::{FlowKey, key_flag, tunnel};

use super::{
    Announced, Captured, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Gso, Packet, Version, bytes,
    ip::{self, GRE, IPIP, IPV6, UDP},
    link,
    segments::{self, Headers},
};

/// IP headers below the outermost one.
const MAX_LEVELS: usize = 3;

/// An Ethernet frame (transparent Ethernet bridging, RFC 1701).
const ETHERTYPE_ETHERNET: u16 = 0x6558;

const UDP_HEADER: usize = 8;
/// UDP destination ports.
const VXLAN_PORT: u16 = 4789;
const GENEVE_PORT: u16 = 6081;
/// UDP ports on either side.
const TEREDO_PORT: u16 = 3544;
const GTPU_PORT: u16 = 2152;

/// GRE flags of RFC 2784 and 2890: the three that make the header longer, and those of headers that are not read: source
/// routing (RFC 1701) and other versions.
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
const GRE_OTHER: u16 = 0x4007;
/// The VNI is valid.
const VXLAN_VNI: u8 = 0x08;
/// GTP version 1, not GTP', in the upper four bits.
const GTP_V1: u8 = 3;
/// Message type of a user's packet.
const GTP_T_PDU: u8 = 255;
/// Any of: next extension header, sequence number, N-PDU number.
const GTP_OPTIONAL: u8 = 0x07;
const GTP_EXTENSION: u8 = 0x04;

/// The innermost packet in the tunnel of `outer`, which was parsed from the same `data`, `len` and `gso`. Its wire packets are
/// those of `outer`, its key tells the kind and key of the tunnel directly around it, and its VLAN ids are those of the
/// nearest Ethernet header. Which fragment it is is remembered apart from outer fragments.
pub fn inner(data: &[u8], len: u32, gso: Gso, outer: &Packet) -> Option<Packet> {
    let captured = Captured::new(data, len, gso);
    let mut packet = innermost(captured, outer)?.packet;
    packet.packets = outer.packets;
    if gso.size != 0 {
        let headers = Headers::of(data, &packet);
        segments::spread(&mut packet, headers);
    }
    Some(packet)
}

/// A packet in a tunnel, as one on the wire.
pub(super) struct Innermost {
    pub packet: Packet,
    /// Bytes between the outermost IP header and its own that are not on the wire, see [`segments`].
    pub unsent: u32,
}

pub(super) fn innermost(captured: Captured, outer: &Packet) -> Option<Innermost> {
    let mut found: Option<Innermost> = None;
    for _ in 0..MAX_LEVELS {
        let (around, mut unsent) = found.as_ref().map_or((outer, 0), |found| (&found.packet, found.unsent));
        let Some(packet) = carried(captured, around) else { break };
        if captured.gso.size != 0 {
            unsent += segments::jumbo_header(captured.data, around);
        }
        found = Some(Innermost { packet, unsent });
    }
    found
}

/// The packet directly in the tunnel of `around`.
fn carried(captured: Captured, around: &Packet) -> Option<Packet> {
    let data = captured.data;
    let at = around.l4?;
    let Tunnel { kind, key, payload } = match around.key.proto {
        IPIP => Tunnel { kind: tunnel::IP, key: 0, payload: Payload::Ip(Version::V4, at) },
        IPV6 => Tunnel { kind: tunnel::IP, key: 0, payload: Payload::Ip(Version::V6, at) },
        GRE => gre(data, at)?,
        UDP => udp(data, at, &around.key)?,
        _ => return None,
    };
    let announced = match payload {
        Payload::Ip(version, l3) => Announced { version, l3, tags: [around.key.vlan, around.key.vlan_inner] },
        Payload::Ethernet(at) => link::ethernet(data, at)?,
    };
    let mut packet = ip::parse(captured, announced)?;
    packet.key.tunnel = key;
    packet.key.flags = kind << key_flag::TUNNEL_SHIFT;
    Some(packet)
}

struct Tunnel {
    /// One of [`kmod_bpf::tunnel`].
    kind: u8,
    key: u32,
    payload: Payload,
}

/// What begins where.
enum Payload {
    Ip(Version, usize),
    Ethernet(usize),
}

impl Payload {
    /// Of GRE and Geneve.
    fn of(ethertype: u16, at: usize) -> Option<Self> {
        match ethertype {
            ETHERTYPE_IPV4 => Some(Self::Ip(Version::V4, at)),
            ETHERTYPE_IPV6 => Some(Self::Ip(Version::V6, at)),
            ETHERTYPE_ETHERNET => Some(Self::Ethernet(at)),
            _ => None,
        }
    }
}

fn gre(data: &[u8], at: usize) -> Option<Tunnel> {
    let &[a, b, c, d] = bytes(data, at)?;
    let (flags, ethertype) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    if flags & GRE_OTHER != 0 {
        return None;
    }
    let mut at = at + 4;
    if flags & GRE_CHECKSUM != 0 {
        at += 4;
    }
    let mut key = 0;
    if flags & GRE_KEY != 0 {
        key = u32::from_be_bytes(*bytes(data, at)?);
        at += 4;
    }
    if flags & GRE_SEQUENCE != 0 {
        at += 4;
    }
    Some(Tunnel { kind: tunnel::GRE, key, payload: Payload::of(ethertype, at)? })
}

fn udp(data: &[u8], at: usize, key: &FlowKey) -> Option<Tunnel> {
    let (sport, dport) = (u16::from_be_bytes(key.sport), u16::from_be_bytes(key.dport));
    let _: &[u8; UDP_HEADER] = bytes(data, at)?;
    let at = at + UDP_HEADER;
    if dport == VXLAN_PORT {
        vxlan(data, at)
    } else if dport == GENEVE_PORT {
        geneve(data, at)
    } else if sport == TEREDO_PORT || dport == TEREDO_PORT {
        Some(teredo(data, at))
    } else if sport == GTPU_PORT || dport == GTPU_PORT {
        gtpu(data, at)
    } else {
        None
    }
}

fn vxlan(data: &[u8], at: usize) -> Option<Tunnel> {
    let &[flags, _, _, _, a, b, c, _] = bytes(data, at)?;
    let key = u32::from_be_bytes([0, a, b, c]);
    let payload = Payload::Ethernet(at + 8);
    (flags & VXLAN_VNI != 0).then_some(Tunnel { kind: tunnel::VXLAN, key, payload })
}

/// Version 0, with options.
fn geneve(data: &[u8], at: usize) -> Option<Tunnel> {
    let &[first, _, c, d, e, f, g, _] = bytes(data, at)?;
    if first >> 6 != 0 {
        return None;
    }
    let options = usize::from(first & 0x3f) * 4;
    let payload = Payload::of(u16::from_be_bytes([c, d]), at + 8 + options)?;
    Some(Tunnel { kind: tunnel::GENEVE, key: u32::from_be_bytes([0, e, f, g]), payload })
}

/// An authentication header (client identifier, authentication value, nonce, confirmation) and an origin indication may be in
/// front of the IPv6 header.
fn teredo(data: &[u8], mut at: usize) -> Tunnel {
    if let Some(&[0, 1, id, value]) = bytes(data, at) {
        at += 4 + usize::from(id) + usize::from(value) + 9;
    }
    if let Some([0, 0]) = bytes(data, at) {
        at += 8;
    }
    Tunnel { kind: tunnel::TEREDO, key: 0, payload: Payload::Ip(Version::V6, at) }
}

fn gtpu(data: &[u8], at: usize) -> Option<Tunnel> {
    let &[flags, message, _, _, ref teid @ ..] = bytes::<8>(data, at)?;
    if flags >> 4 != GTP_V1 || message != GTP_T_PDU {
        return None;
    }
    let mut at = at + 8;
    if flags & GTP_OPTIONAL != 0 {
        let &[_, _, _, mut next] = bytes(data, at)?;
        at += 4;
        // Each ends with the type of the next one; whether the first one's is to be read, the flag says.
        while flags & GTP_EXTENSION != 0 && next != 0 {
            let &[words] = bytes(data, at)?;
            if words == 0 {
                return None;
            }
            at += usize::from(words) * 4;
            [next] = *bytes(data, at - 1)?;
        }
    }
    let payload = Payload::Ip(Version::Either, at);
    Some(Tunnel { kind: tunnel::GTPU, key: u32::from_be_bytes(*teid), payload })
}
