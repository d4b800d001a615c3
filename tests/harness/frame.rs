//! Builds Ethernet frames byte by byte, valid ones and garbage.
//!
//! A [`Frame`] is built from the outside in: `eth().vlan(..).ipv4(..).udp(..).payload(..)`. Lengths and the IPv4 header
//! checksum are filled in by [`Frame::build`]; transport checksums are left zero, which neither routers nor meters read.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Ethernet type of IPv4.
pub const ETH_IPV4: u16 = 0x0800;
/// Ethernet type of IPv6.
pub const ETH_IPV6: u16 = 0x86dd;
/// Ethernet type of an 802.1Q tag.
pub const ETH_VLAN: u16 = 0x8100;
/// Ethernet type of an 802.1ad (outer) tag.
pub const ETH_QINQ: u16 = 0x88a8;
/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// A frame under construction.
#[derive(Debug, Clone)]
pub struct Frame {
    bytes: Vec<u8>,
    /// The IP header, whose length field [`Frame::build`] fills in.
    ip: Option<Ip>,
    /// Where the UDP header begins.
    udp_at: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Ip {
    V4 { at: usize },
    V6 { at: usize },
}

impl Frame {
    /// An Ethernet header without its type: the next layer writes it.
    pub fn eth(destination: [u8; 6], source: [u8; 6]) -> Self {
        let mut bytes = destination.to_vec();
        bytes.extend(source);
        Self { bytes, ip: None, udp_at: None }
    }

    /// A VLAN tag; `tag` is [`ETH_VLAN`] or [`ETH_QINQ`].
    pub fn vlan(mut self, tag: u16, id: u16) -> Self {
        self.bytes.extend(tag.to_be_bytes());
        self.bytes.extend(id.to_be_bytes());
        self
    }

    /// An Ethernet type of no further meaning here.
    pub fn ether_type(mut self, value: u16) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// An IPv4 header with `options` (a multiple of 4 bytes, 40 at most).
    pub fn ipv4(mut self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, options: &[u8]) -> Self {
        self = self.ether_type(ETH_IPV4);
        let at = self.bytes.len();
        let words = 5 + options.len() as u8 / 4;
        self.bytes.extend([0x40 | words, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
        self.bytes.extend(source.octets());
        self.bytes.extend(destination.octets());
        self.bytes.extend(options);
        self.ip = Some(Ip::V4 { at });
        self
    }

    /// Makes the IPv4 packet a fragment; `offset` in units of 8 bytes.
    pub fn fragment4(mut self, id: u16, offset: u16, more: bool) -> Self {
        let Some(Ip::V4 { at }) = self.ip else { panic!("fragment4 needs an IPv4 header") };
        self.bytes[at + 4..at + 6].copy_from_slice(&id.to_be_bytes());
        let field = offset | if more { 0x2000 } else { 0 };
        self.bytes[at + 6..at + 8].copy_from_slice(&field.to_be_bytes());
        self
    }

    /// An IPv6 header whose next header is `next`.
    pub fn ipv6(mut self, source: Ipv6Addr, destination: Ipv6Addr, next: u8) -> Self {
        self = self.ether_type(ETH_IPV6);
        let at = self.bytes.len();
        self.bytes.extend([0x60, 0, 0, 0, 0, 0, next, 64]);
        self.bytes.extend(source.octets());
        self.bytes.extend(destination.octets());
        self.ip = Some(Ip::V6 { at });
        self
    }

    /// An IPv6 extension header of 8 bytes without content (hop-by-hop, routing, destination options).
    pub fn extension(mut self, next: u8) -> Self {
        self.bytes.extend([next, 0, 1, 4, 0, 0, 0, 0]);
        self
    }

    /// An IPv6 fragment header; `offset` in units of 8 bytes.
    pub fn fragment6(mut self, next: u8, id: u32, offset: u16, more: bool) -> Self {
        self.bytes.extend([next, 0]);
        self.bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
        self.bytes.extend(id.to_be_bytes());
        self
    }

    /// A UDP header.
    pub fn udp(mut self, source: u16, destination: u16) -> Self {
        self.udp_at = Some(self.bytes.len());
        self.bytes.extend(source.to_be_bytes());
        self.bytes.extend(destination.to_be_bytes());
        self.bytes.extend([0; 4]);
        self
    }

    /// A TCP header with only the ACK flag.
    pub fn tcp(mut self, source: u16, destination: u16) -> Self {
        self.bytes.extend(source.to_be_bytes());
        self.bytes.extend(destination.to_be_bytes());
        self.bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        self
    }

    /// Bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// `length` bytes of payload.
    pub fn payload(mut self, length: usize) -> Self {
        self.bytes.extend(std::iter::repeat_n(0x5a, length));
        self
    }

    /// The finished frame, lengths and IPv4 checksum filled in. Not padded to 60 bytes: veth does not need it.
    pub fn build(mut self) -> Vec<u8> {
        if let Some(at) = self.udp_at {
            let length = (self.bytes.len() - at) as u16;
            self.bytes[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
        }
        match self.ip {
            Some(Ip::V4 { at }) => {
                let length = (self.bytes.len() - at) as u16;
                self.bytes[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
                set_ipv4_checksum(&mut self.bytes, at);
            }
            Some(Ip::V6 { at }) => {
                let length = (self.bytes.len() - at - 40) as u16;
                self.bytes[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
            }
            None => {}
        }
        self.bytes
    }
}

/// Writes the header checksum (RFC 1071) of the IPv4 header that begins at `at`.
pub fn set_ipv4_checksum(frame: &mut [u8], at: usize) {
    frame[at + 10..at + 12].fill(0);
    let length = usize::from(frame[at] & 15) * 4;
    let sum: u32 = frame[at..at + length]
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_checksum_matches_a_known_header() {
        // The example of RFC 1071's usual demonstration: checksum 0xb861.
        let mut header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        set_ipv4_checksum(&mut header, 0);
        assert_eq!(header[10..12], [0xb8, 0x61]);
    }

    #[test]
    fn lengths_cover_options_and_extensions() {
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let v4 = Frame::eth([1; 6], [2; 6])
            .vlan(ETH_VLAN, 7)
            .ipv4(a, b, UDP, &[1; 8])
            .udp(1, 2)
            .payload(10)
            .build();
        assert_eq!(v4.len(), 14 + 4 + 28 + 8 + 10);
        assert_eq!((v4[18], &v4[20..22]), (0x47, &46u16.to_be_bytes()[..]));
        let v6 = Frame::eth([1; 6], [2; 6])
            .ipv6(a.to_ipv6_mapped(), b.to_ipv6_mapped(), 0)
            .extension(44)
            .fragment6(UDP, 9, 185, true)
            .payload(16)
            .build();
        assert_eq!(v6[18..20], 32u16.to_be_bytes());
        assert_eq!(v6[14 + 40 + 8 + 2..][..2], [0x05, 0xc9]);
    }
}
