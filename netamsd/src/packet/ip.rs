//! The IP header and what follows it, as far as the flow key goes.

use kmod_bpf::FlowKey;

use super::{Announced, Captured, Fragment, MAX_OFFSET, Packet, Version, bytes};

/// IPv6 extension headers that are walked.
const MAX_EXTENSIONS: usize = 8;

const IPV4_HEADER: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;

pub(super) const HOP_BY_HOP: u8 = 0;
pub(super) const ICMP: u8 = 1;
pub(super) const IPIP: u8 = 4;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const DCCP: u8 = 33;
pub(super) const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
pub(super) const GRE: u8 = 47;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
pub(super) const DESTINATION_OPTIONS: u8 = 60;
const SCTP: u8 = 132;
const MOBILITY: u8 = 135;
pub(super) const UDP_LITE: u8 = 136;

/// The packet that is announced, as one on the wire; of a super-packet, whose length fields say nothing, with all its bytes.
/// `None` is a malformed one.
// Inlined, as a packet is long to be handed on.
#[inline]
pub(super) fn parse(captured: Captured, announced: Announced) -> Option<Packet> {
    let Announced { version, l3, tags: [vlan, vlan_inner] } = announced;
    let mut packet = match version {
        Version::V4 => parse_ipv4(captured, l3),
        Version::V6 => parse_ipv6(captured, l3),
        Version::Either => match bytes(captured.data, l3)? {
            [first] if first >> 4 == 6 => parse_ipv6(captured, l3),
            _ => parse_ipv4(captured, l3),
        },
    }?;
    packet.key.vlan = vlan;
    packet.key.vlan_inner = vlan_inner;
    Some(packet)
}

#[inline]
fn parse_ipv4(captured: Captured, l3: usize) -> Option<Packet> {
    let ip: &[u8; IPV4_HEADER] = bytes(captured.data, l3)?;
    let header = usize::from(ip[0] & 15) * 4;
    if ip[0] >> 4 != 4 || header < IPV4_HEADER || captured.data.len() - l3 < header {
        return None;
    }
    let room = captured.room(l3);
    let total = u32::from(u16::from_be_bytes([ip[2], ip[3]]));
    let len = if total == 0 || total > room || captured.gso.size != 0 { room } else { total };
    let proto = ip[9];
    let id = u16::from_ne_bytes([ip[4], ip[5]]).into();
    let flags = u16::from_be_bytes([ip[6], ip[7]]);
    let fragment = Fragment::of(id, proto, flags & 0x1fff, flags & 0x2000 != 0);
    let l4 = (!matches!(fragment, Fragment::Later { .. })).then_some(l3 + header);
    let key = FlowKey {
        src: mapped([ip[12], ip[13], ip[14], ip[15]]),
        dst: mapped([ip[16], ip[17], ip[18], ip[19]]),
        proto,
        version: 4,
        ..FlowKey::default()
    };
    Some(packet(captured.data, key, fragment, len, (l3, l4)))
}

fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

fn parse_ipv6(captured: Captured, l3: usize) -> Option<Packet> {
    let ip: &[u8; IPV6_HEADER] = bytes(captured.data, l3)?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let room = captured.room(l3);
    let payload = u32::from(u16::from_be_bytes([ip[4], ip[5]]));
    let total = payload + IPV6_HEADER as u32;
    let len = if payload == 0 || total > room || captured.gso.size != 0 { room } else { total };
    let Upper { proto, l4, fragment } = walk_extensions(captured.data, l3 + IPV6_HEADER, ip[6]);
    let mut key = FlowKey { proto, version: 6, ..FlowKey::default() };
    key.src.copy_from_slice(&ip[8..24]);
    key.dst.copy_from_slice(&ip[24..40]);
    Some(packet(captured.data, key, fragment, len, (l3, l4)))
}

/// What follows the extension headers.
struct Upper {
    proto: u8,
    l4: Option<usize>,
    fragment: Fragment,
}

/// Walks extension headers from `at`, the first being of kind `proto`.
fn walk_extensions(data: &[u8], mut at: usize, mut proto: u8) -> Upper {
    let mut fragment = Fragment::Whole;
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(proto) {
            break;
        }
        let Some(&[next, size, a, b, ref id @ ..]) = bytes::<8>(data, at) else {
            // Cut short: its next-header byte is the answer when it is there.
            return Upper { proto: bytes(data, at).map_or(proto, |&[next]| next), l4: None, fragment };
        };
        match proto {
            FRAGMENT => {
                let offset = u16::from_be_bytes([a, b]);
                fragment = Fragment::of(u32::from_ne_bytes(*id), next, offset >> 3, offset & 1 != 0);
                if matches!(fragment, Fragment::Later { .. }) {
                    return Upper { proto: next, l4: None, fragment };
                }
                at += 8;
            }
            AUTHENTICATION => at += (usize::from(size) + 2) * 4,
            _ => at += (usize::from(size) + 1) * 8,
        }
        proto = next;
    }
    Upper { proto, l4: (!is_extension(proto) && at <= MAX_OFFSET).then_some(at), fragment }
}

pub(super) fn is_extension(proto: u8) -> bool {
    matches!(proto, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY)
}

#[inline]
fn packet(
    data: &[u8],
    mut key: FlowKey,
    fragment: Fragment,
    len: u32,
    (l3, l4): (usize, Option<usize>),
) -> Packet {
    (key.sport, key.dport) = l4.map_or_else(Default::default, |l4| ports(data, l4, key.proto));
    Packet { key, fragment, packets: 1, bytes: len.into(), headers_unknown: false, l3, l4 }
}

fn ports(data: &[u8], l4: usize, proto: u8) -> ([u8; 2], [u8; 2]) {
    match proto {
        TCP | UDP | UDP_LITE | SCTP | DCCP => {
            bytes(data, l4).map_or_else(Default::default, |&[a, b, c, d]| ([a, b], [c, d]))
        }
        ICMP | ICMPV6 => ([0; 2], bytes(data, l4).copied().unwrap_or_default()),
        _ => Default::default(),
    }
}
