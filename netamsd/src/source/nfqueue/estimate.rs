//! How many wire packets a super-packet stands for, when nobody tells the size of its segments: an inference.
//!
//! A TCP sender cuts at the smaller one of what the receiver announced in its SYN and what the way's MTU leaves, less the
//! options that each segment carries (RFC 879, RFC 6691). Right for flows seen from their SYN on a path whose smallest MTU
//! is that of the device they came by; wrong where a route has a smaller one, for flows joined in the middle, and for UDP
//! senders that choose their own size (UDP_SEGMENT). Of a tunnel's packet it is the one inside that is cut. What is counted so
//! is flagged.

use kmod_bpf::FlowKey;

use crate::packet::{Gso, Packet};

/// Flows whose SYN is remembered, a power of two; 16 bytes each.
const FLOWS: usize = 1 << 16;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_HEADER: u32 = 20;
const UDP_HEADER: u32 = 8;
const SYN: u8 = 0x02;

/// Maximum segment sizes that receivers have announced.
pub struct Estimator {
    /// By hash: who the flow is, and the size. A newer flow takes the place of an older one.
    announced: Vec<(u64, u16)>,
}

impl Default for Estimator {
    fn default() -> Self {
        Self { announced: vec![(0, 0); FLOWS] }
    }
}

impl Estimator {
    /// Remembers what a SYN announces for the flow in the other direction. `bytes` are those that `packet` was parsed from.
    pub fn observe(&mut self, packet: &Packet, bytes: &[u8]) {
        let Some(header) = packet.l4.and_then(|l4| bytes.get(l4..)) else { return };
        if packet.key.proto != TCP || header.get(13).is_none_or(|flags| flags & SYN == 0) {
            return;
        }
        let end = (usize::from(header[12] >> 4) * 4).min(header.len());
        if let Some(mss) = header.get(20..end).and_then(announced_mss) {
            let id = identity(&packet.key, true);
            self.announced[id as usize % FLOWS] = (id, mss);
        }
    }

    /// The size of the segments of a super-packet, with `inner` in its tunnel, that came by a device of this MTU.
    pub fn gso(&self, outer: &Packet, inner: Option<&Packet>, bytes: &[u8], mtu: u32) -> Gso {
        let packet = inner.filter(|inner| [TCP, UDP].contains(&inner.key.proto)).unwrap_or(outer);
        let Some(l4) = packet.l4 else { return Gso { size: mtu, segs: 0 } };
        let room = mtu.saturating_sub((l4 - outer.l3) as u32);
        let size = if packet.key.proto == TCP {
            let header = bytes.get(l4 + 12).map_or(TCP_HEADER, |offset| u32::from(offset >> 4) * 4);
            let id = identity(&packet.key, false);
            let known = self.announced[id as usize % FLOWS];
            let announced = if known.0 == id { u32::from(known.1) } else { u32::MAX };
            room.saturating_sub(TCP_HEADER).min(announced).saturating_sub(header.saturating_sub(TCP_HEADER))
        } else {
            room.saturating_sub(UDP_HEADER)
        };
        Gso { size: size.max(1), segs: 0 }
    }
}

/// The value of the option "maximum segment size" (kind 2, RFC 9293).
fn announced_mss(mut options: &[u8]) -> Option<u16> {
    loop {
        match *options {
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([high, low])),
            [1, ..] => options = &options[1..],
            [kind, len, ..] if kind > 1 && len >= 2 => options = options.get(usize::from(len)..)?,
            _ => return None,
        }
    }
}

/// A number for a flow, or for the one in the other direction; never 0.
fn identity(key: &FlowKey, reverse: bool) -> u64 {
    use std::hash::{Hash, Hasher};
    let (source, destination) = ((key.src, key.sport), (key.dst, key.dport));
    let ends = if reverse { (destination, source) } else { (source, destination) };
    let mut hasher = rustc_hash::FxHasher::default();
    ends.hash(&mut hasher);
    hasher.finish() | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{ETHERTYPE_IPV4, Parsed, inner, parse_ip};

    /// An IPv4 TCP packet between 10.0.0.1 and 10.0.0.2, with 12 bytes of options.
    fn tcp(forward: bool, flags: u8, options: [u8; 12]) -> Vec<u8> {
        let mut bytes = vec![0; 52];
        bytes[0] = 0x45;
        bytes[3] = 52;
        bytes[9] = TCP;
        let (a, b) = if forward { (1, 2) } else { (2, 1) };
        bytes[12..20].copy_from_slice(&[10, 0, 0, a, 10, 0, 0, b]);
        bytes[20..24].copy_from_slice(&[0, a, 0, b]);
        bytes[32] = 8 << 4;
        bytes[33] = flags;
        bytes[40..52].copy_from_slice(&options);
        bytes
    }

    fn parsed(bytes: &[u8], len: u32) -> Packet {
        match parse_ip(bytes, len, ETHERTYPE_IPV4, Gso::NONE) {
            Parsed::Ip(packet) => packet,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_receivers_syn_and_the_mtu_decide() {
        const NONE: [u8; 12] = [1; 12];
        let mss = |mss: u16| {
            let [high, low] = mss.to_be_bytes();
            [1, 1, 4, 2, 2, 4, high, low, 1, 1, 1, 1]
        };
        let mut estimator = Estimator::default();
        let size = |estimator: &Estimator, forward, mtu| {
            let data = tcp(forward, 0x10, NONE);
            estimator.gso(&parsed(&data, 30_000), None, &data, mtu).size
        };
        assert_eq!(size(&estimator, true, 1500), 1500 - 40 - 12, "the MTU alone");
        let syn = tcp(false, SYN, mss(536));
        estimator.observe(&parsed(&syn, 52), &syn);
        assert_eq!(size(&estimator, true, 1500), 536 - 12, "announced by the receiver");
        assert_eq!(size(&estimator, false, 1500), 1448, "not what the sender announced");
        assert_eq!(size(&estimator, true, 500), 500 - 40 - 12, "the smaller one");
        let larger = tcp(false, SYN, mss(9000));
        estimator.observe(&parsed(&larger, 52), &larger);
        assert_eq!(size(&estimator, true, 1500), 1448);
        assert_eq!(size(&estimator, true, 10), 1, "never nothing");
    }

    #[test]
    fn what_a_tunnel_carries_is_what_is_cut() {
        let carried = |data: Vec<u8>| {
            let mut outer = data[..20].to_vec();
            outer[9] = 4;
            [outer, data].concat()
        };
        let inside = |bytes: &[u8], len| {
            let outer = parsed(bytes, len);
            (outer, inner(bytes, len, Gso::NONE, &outer))
        };
        let data = carried(tcp(true, 0x10, [1; 12]));
        let size = |estimator: &Estimator| {
            let (outer, inner) = inside(&data, 30_000);
            estimator.gso(&outer, inner.as_ref(), &data, 1500).size
        };
        let mut estimator = Estimator::default();
        assert_eq!(size(&estimator), 1500 - 20 - 40 - 12);
        let syn = carried(tcp(false, SYN, [2, 4, 0x02, 0x18, 1, 1, 1, 1, 1, 1, 1, 1]));
        estimator.observe(&inside(&syn, 72).1.unwrap(), &syn);
        assert_eq!(size(&estimator), 536 - 12, "announced inside");
    }

    #[test]
    fn options_that_lie_announce_nothing() {
        for options in [&[][..], &[2], &[2, 4, 5], &[3, 0, 2, 4, 1, 1], &[0, 2, 4, 1, 1], &[5, 200, 2, 4]] {
            assert_eq!(announced_mss(options), None, "{options:?}");
        }
        assert_eq!(announced_mss(&[1, 1, 3, 3, 7, 2, 4, 5, 0xb4]), Some(1460));
    }
}
