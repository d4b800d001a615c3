//! From the bytes of a packet in user space to its flow key, wire packets and layer-3 bytes.
//!
//! Pure, without allocation, and total: any bytes have an answer. It promises the answer that the kernel's parser
//! (`kmod-bpf/src/bpf/parse.h`) gives for the same packet; the test `differential` holds the two together. No length field
//! is trusted further than the packet itself. Tables, marks and verdicts are none of its business, and a later fragment is
//! left to whoever remembers first ones.

#[cfg(test)]
mod tests;

use kmod_bpf::FlowKey;

/// EtherType of IPv4 (IEEE 802 numbers, IANA).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad, and the number that QinQ had before.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const VLAN_ID: u16 = 0x0fff;
/// VLAN tags that are looked through.
const MAX_TAGS: usize = 2;
/// IPv6 extension headers that are walked.
const MAX_EXTENSIONS: usize = 8;

const ETHERNET_HEADER: usize = 14;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: u32 = 8;

const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
const SCTP: u8 = 132;
const MOBILITY: u8 = 135;
const UDP_LITE: u8 = 136;

/// RFC 2675; the kernel puts it into IPv6 super-packets of more than 64 KiB, and takes it out again when it cuts them.
const JUMBO_OPTION: u8 = 0xc2;
/// UDP ports of encapsulations whose super-packets are cut inside the tunnel: VXLAN (two), Geneve, GTP-U.
const TUNNEL_PORTS: [u16; 4] = [4789, 8472, 6081, 2152];

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
    /// Its flow, with `used` and `fragment` 0; of a later fragment, the one to use when the first was not seen.
    pub key: FlowKey,
    /// Which part of an IP packet it is.
    pub fragment: Fragment,
    /// Wire packets, at least 1.
    pub packets: u32,
    /// Layer-3 bytes of all of them.
    pub bytes: u64,
    /// A super-packet of an encapsulation or of an unknown protocol: `bytes` may lack headers.
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
    let Some(&ethertype) = bytes(frame, ETHERNET_HEADER - 2) else {
        return Parsed::NonIp;
    };
    let mut ethertype = u16::from_be_bytes(ethertype);
    let mut l3 = ETHERNET_HEADER;
    let mut tags = [0; MAX_TAGS];
    for tag in &mut tags {
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            break;
        }
        let Some(&[a, b, c, d]) = bytes(frame, l3) else {
            return Parsed::NonIp;
        };
        *tag = u16::from_be_bytes([a, b]) & VLAN_ID;
        ethertype = u16::from_be_bytes([c, d]);
        l3 += 4;
    }
    parse(Captured::new(frame, len, gso), ethertype, l3, tags)
}

/// Parses a packet that begins at layer 3 and is said to be of `ethertype`. `len` is its original length in bytes, of which
/// `packet` may hold fewer.
pub fn parse_ip(packet: &[u8], len: u32, ethertype: u16, gso: Gso) -> Parsed {
    parse(Captured::new(packet, len, gso), ethertype, 0, [0; MAX_TAGS])
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
    data.get(at..)?.first_chunk()
}

fn parse(captured: Captured, ethertype: u16, l3: usize, [vlan, vlan_inner]: [u16; MAX_TAGS]) -> Parsed {
    let parsed = match ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(captured, l3),
        ETHERTYPE_IPV6 => parse_ipv6(captured, l3),
        _ => return Parsed::NonIp,
    };
    parsed.map_or(Parsed::Malformed, |mut packet| {
        packet.key.vlan = vlan;
        packet.key.vlan_inner = vlan_inner;
        Parsed::Ip(packet)
    })
}

/// `None` is a malformed packet.
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
    Some(packet(captured, key, fragment, Layers { l3, l4, len, unsent: 0 }))
}

fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// `None` is a malformed packet.
fn parse_ipv6(captured: Captured, l3: usize) -> Option<Packet> {
    let ip: &[u8; IPV6_HEADER] = bytes(captured.data, l3)?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let room = captured.room(l3);
    let payload = u32::from(u16::from_be_bytes([ip[4], ip[5]]));
    let total = payload + IPV6_HEADER as u32;
    let super_packet = captured.gso.size != 0;
    let len = if payload == 0 || total > room || super_packet { room } else { total };
    let upper = l3 + IPV6_HEADER;
    let jumbo = super_packet && payload == 0 && ip[6] == HOP_BY_HOP && is_jumbo(captured.data, upper);
    let unsent = if jumbo { 8 } else { 0 };
    let Upper { proto, l4, fragment } = walk_extensions(captured.data, upper, ip[6]);
    let mut key = FlowKey { proto, version: 6, ..FlowKey::default() };
    key.src.copy_from_slice(&ip[8..24]);
    key.dst.copy_from_slice(&ip[24..40]);
    Some(packet(captured, key, fragment, Layers { l3, l4, len, unsent }))
}

fn is_jumbo(data: &[u8], at: usize) -> bool {
    matches!(bytes(data, at), Some([_, 0, JUMBO_OPTION, _]))
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
            return Upper { proto: data.get(at).copied().unwrap_or(proto), l4: None, fragment };
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
    Upper { proto, l4: (!is_extension(proto)).then_some(at), fragment }
}

fn is_extension(proto: u8) -> bool {
    matches!(proto, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY)
}

/// Where the headers are, and how many layer-3 bytes there are, of which the first `unsent` ones behind the IP header are
/// not on the wire.
#[derive(Clone, Copy)]
struct Layers {
    l3: usize,
    l4: Option<usize>,
    len: u32,
    unsent: u32,
}

fn packet(captured: Captured, mut key: FlowKey, fragment: Fragment, layers: Layers) -> Packet {
    let Layers { l3, l4, len, unsent } = layers;
    (key.sport, key.dport) = l4.map_or_else(Default::default, |l4| ports(captured.data, l4, key.proto));
    let mut packet =
        Packet { key, fragment, packets: 1, bytes: (len - unsent).into(), headers_unknown: false, l3, l4 };
    if captured.gso.size != 0 {
        count_segments(captured, layers, &mut packet);
    }
    packet
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

/// A super-packet stands for several wire packets, and each of them carries the headers.
fn count_segments(captured: Captured, layers: Layers, packet: &mut Packet) {
    let Layers { l3, l4, len, unsent } = layers;
    let Gso { size, segs } = captured.gso;
    let len = len - unsent;
    let mut headers = l4.map_or(0, |l4| (l4 - l3) as u32 - unsent);
    match (l4, packet.key.proto) {
        (Some(l4), TCP) => headers += captured.data.get(l4 + 12).map_or(0, |b| u32::from(b >> 4) * 4),
        (Some(_), UDP) if !TUNNEL_PORTS.contains(&u16::from_be_bytes(packet.key.dport)) => {
            headers += UDP_HEADER;
        }
        _ => packet.headers_unknown = true,
    }
    packet.packets = if segs != 0 { segs } else { len.saturating_sub(headers).div_ceil(size).max(1) };
    packet.bytes = u64::from(len) + u64::from(packet.packets - 1) * u64::from(headers);
}
