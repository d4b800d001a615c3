//! A super-packet stands for several wire packets, and each of them carries the headers: from the outermost IP header to the
//! end of the innermost TCP or UDP header, for it is that one's payload which is cut.
//!
//! A tunnel's packet with UDP outside looks like the packet of an application that has its UDP payload cut (UDP_SEGMENT) and
//! happens to use the port. It is taken for a tunnel's when there is TCP or UDP inside. When there is nothing of that kind, UDP
//! ends the headers unless its destination port is that of a tunnel which the kernel cuts inside.

use super::{
    Captured, Packet, bytes,
    ip::{HOP_BY_HOP, IPV6_HEADER, TCP, UDP},
    tunnel,
};

const UDP_HEADER: u32 = 8;
/// RFC 2675; the kernel puts it into IPv6 super-packets of more than 64 KiB, and takes it out again when it cuts them.
pub(super) const JUMBO_OPTION: u8 = 0xc2;
/// UDP ports of encapsulations whose super-packets are cut inside the tunnel: VXLAN (two), Geneve, GTP-U.
const TUNNEL_PORTS: [u16; 4] = [4789, 8472, 6081, 2152];

/// Headers that each segment carries.
#[derive(Clone, Copy)]
pub(super) struct Headers {
    /// Bytes on the wire, as far as they are known.
    bytes: u32,
    /// Bytes that are in the super-packet alone.
    unsent: u32,
    /// There are more, of unknown length.
    unknown: bool,
}

impl Headers {
    /// From the IP header of a packet to the end of its own TCP or UDP header.
    pub fn of(data: &[u8], packet: &Packet) -> Self {
        let unsent = jumbo_header(data, packet);
        let Some(l4) = packet.l4 else { return Self { bytes: 0, unsent, unknown: true } };
        let network = (l4 - packet.l3) as u32 - unsent;
        let (upper, unknown) = match packet.key.proto {
            TCP => (bytes(data, l4 + 12).map_or(0, |[offset]| u32::from(offset >> 4) * 4), false),
            UDP if !TUNNEL_PORTS.contains(&u16::from_be_bytes(packet.key.dport)) => (UDP_HEADER, false),
            _ => (0, true),
        };
        Self { bytes: network + upper, unsent, unknown }
    }

    /// From the IP header of `outer`, through a tunnel if there is one.
    fn through_tunnels(captured: Captured, outer: &Packet) -> Self {
        let data = captured.data;
        if let Some(inner) = tunnel::innermost(captured, outer) {
            let headers = Self::of(data, &inner.packet);
            if !headers.unknown {
                let around = (inner.packet.l3 - outer.l3) as u32 - inner.unsent;
                let unsent = headers.unsent + inner.unsent;
                return Self { bytes: around + headers.bytes, unsent, unknown: false };
            }
        }
        Self::of(data, outer)
    }
}

/// The hop-by-hop header of a jumbo super-packet is not on the wire: its length, otherwise 0.
pub(super) fn jumbo_header(data: &[u8], packet: &Packet) -> u32 {
    let ip = packet.l3;
    let jumbo = packet.key.version == 6
        && matches!(bytes(data, ip + 4), Some([0, 0, HOP_BY_HOP]))
        && matches!(bytes(data, ip + IPV6_HEADER), Some([_, 0, JUMBO_OPTION, _]));
    if jumbo { 8 } else { 0 }
}

/// Makes the outermost packet of a super-packet, whose `bytes` are all there are, its segments.
pub(super) fn count(captured: Captured, outer: &mut Packet) {
    let size = u64::from(captured.gso.size);
    let headers = Headers::through_tunnels(captured, outer);
    let payload = outer.bytes.saturating_sub((headers.unsent + headers.bytes).into());
    outer.packets = match captured.gso.segs {
        0 => payload.div_ceil(size).max(1) as u32,
        segs => segs,
    };
    spread(outer, headers);
}

/// Bytes of `packets` segments, from those of the super-packet.
pub(super) fn spread(packet: &mut Packet, headers: Headers) {
    packet.bytes -= u64::from(headers.unsent);
    packet.bytes += u64::from(packet.packets - 1) * u64::from(headers.bytes);
    packet.headers_unknown = headers.unknown;
}
