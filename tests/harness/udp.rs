//! UDP datagrams through ordinary sockets, with what they are worth on the wire.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::ns::Namespace;
use crate::truth::Traffic;

/// A number of equal datagrams.
#[derive(Debug, Clone, Copy)]
pub struct Datagrams {
    /// Where to.
    pub to: SocketAddr,
    /// Payload bytes of each call to send.
    pub size: usize,
    /// Calls to send.
    pub count: u64,
    /// Lets the kernel cut each call's payload into datagrams of this many bytes (`UDP_SEGMENT`).
    pub segment: Option<u16>,
}

impl Datagrams {
    /// Sends them from a socket in `from`; the source port.
    pub fn send(&self, from: &Namespace) -> u16 {
        from.enter(|| self.transmit()).unwrap_or_else(|e| panic!("datagrams to {}: {e}", self.to))
    }

    fn transmit(&self) -> io::Result<u16> {
        let any: IpAddr =
            if self.to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        if let Some(bytes) = self.segment {
            let bytes = libc::c_int::from(bytes);
            // SAFETY: the pointer is to a live value of the size given.
            let done = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_UDP,
                    libc::UDP_SEGMENT,
                    (&raw const bytes).cast(),
                    mem::size_of_val(&bytes) as u32,
                )
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let payload = vec![0x5a; self.size];
        for _ in 0..self.count {
            socket.send_to(&payload, self.to)?;
        }
        Ok(socket.local_addr()?.port())
    }

    /// What they are on the wire at this MTU: computed from RFC 791, RFC 8200 and the kernel's way to fragment.
    pub fn on_wire(&self, mtu: usize) -> Traffic {
        let segment = self.segment.map_or(self.size, usize::from);
        let (full, rest) = (self.size / segment, self.size % segment);
        let mut one = Traffic::default();
        for size in std::iter::repeat_n(segment, full).chain((rest > 0).then_some(rest)) {
            let datagram = self.datagram(size + 8, mtu);
            one.packets += datagram.packets;
            one.bytes += datagram.bytes;
        }
        Traffic { packets: one.packets * self.count, bytes: one.bytes * self.count }
    }

    fn datagram(&self, udp_bytes: usize, mtu: usize) -> Traffic {
        let header = if self.to.is_ipv6() { 40 } else { 20 };
        if header + udp_bytes <= mtu {
            return Traffic { packets: 1, bytes: (header + udp_bytes) as u64 };
        }
        let header = if self.to.is_ipv6() { 48 } else { 20 };
        let packets = udp_bytes.div_ceil((mtu - header) / 8 * 8);
        Traffic { packets: packets as u64, bytes: (udp_bytes + packets * header) as u64 }
    }
}
