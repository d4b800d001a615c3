//! Captures made of frames, in any of the formats.

/// One frame and when it was captured.
#[derive(Clone)]
pub struct Shot {
    pub time_ms: i64,
    pub frame: Vec<u8>,
}

/// An IPv4 packet with a UDP header and `payload` bytes behind it.
pub fn udp(src: [u8; 4], dst: [u8; 4], ports: [u16; 2], payload: usize) -> Vec<u8> {
    let len = 28 + payload as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    packet.extend(src);
    packet.extend(dst);
    ports.iter().for_each(|port| packet.extend(port.to_be_bytes()));
    packet.extend((8 + payload as u16).to_be_bytes());
    packet.extend([0; 2]);
    packet.resize(len.into(), 0);
    packet
}

/// `packet` in Ethernet, below VLAN tags.
pub fn ethernet(tags: &[u16], packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    for tag in tags {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x08, 0x00]);
    frame.extend(packet);
    frame
}

/// `inner`, an Ethernet frame, in VXLAN.
pub fn vxlan(src: [u8; 4], dst: [u8; 4], vni: u32, inner: &[u8]) -> Vec<u8> {
    let mut packet = udp(src, dst, [50_000, 4789], 8 + inner.len());
    let header = packet.len() - 8 - inner.len();
    packet[header] = 0x08;
    packet[header + 4..header + 8].copy_from_slice(&(vni << 8).to_be_bytes());
    packet[header + 8..].copy_from_slice(inner);
    packet
}

/// Numbers of one byte order.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub big: bool,
}

impl Order {
    pub const BOTH: [Self; 2] = [Self { big: false }, Self { big: true }];

    pub fn u16(self, n: u16) -> [u8; 2] {
        if self.big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    pub fn u32(self, n: u32) -> [u8; 4] {
        if self.big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    pub fn u64(self, n: u64) -> [u8; 8] {
        if self.big { n.to_be_bytes() } else { n.to_le_bytes() }
    }

    /// The header of a pcap file.
    pub fn pcap(self, nanoseconds: bool, link: u32) -> Vec<u8> {
        let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut file = self.u32(magic).to_vec();
        file.extend(self.u16(2));
        file.extend(self.u16(4));
        [0, 0, 262_144, link].iter().for_each(|word| file.extend(self.u32(*word)));
        file
    }

    /// A record of a pcap file that claims these lengths.
    pub fn record(self, time: [u32; 2], captured: u32, len: u32, data: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        [time[0], time[1], captured, len].iter().for_each(|word| record.extend(self.u32(*word)));
        record.extend(data);
        record
    }

    /// A pcap file.
    pub fn pcap_of(self, nanoseconds: bool, link: u32, shots: &[Shot]) -> Vec<u8> {
        let mut file = self.pcap(nanoseconds, link);
        for Shot { time_ms, frame } in shots {
            let [seconds, ms] = [time_ms.div_euclid(1000) as u32, time_ms.rem_euclid(1000) as u32];
            let fraction = ms * if nanoseconds { 1_000_000 } else { 1000 };
            let len = frame.len() as u32;
            file.extend(self.record([seconds, fraction], len, len, frame));
        }
        file
    }

    /// A block of a pcapng file.
    pub fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let size = self.u32(12 + body.len().next_multiple_of(4) as u32);
        let mut block = self.u32(kind).to_vec();
        block.extend(size);
        block.extend(body);
        block.resize(block.len().next_multiple_of(4), 0);
        block.extend(size);
        block
    }

    /// A section header of unknown length.
    pub fn section(self) -> Vec<u8> {
        let mut body = self.u32(0x1a2b_3c4d).to_vec();
        body.extend(self.u16(1));
        body.extend(self.u16(0));
        body.extend([0xff; 8]);
        self.block(0x0a0d_0d0a, &body)
    }

    /// An interface description with options.
    pub fn interface(self, link: u16, snapshot_len: u32, options: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = self.u16(link).to_vec();
        body.extend([0; 2]);
        body.extend(self.u32(snapshot_len));
        for (code, value) in options {
            body.extend(self.u16(*code));
            body.extend(self.u16(value.len() as u16));
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        if !options.is_empty() {
            body.extend([0; 4]);
        }
        self.block(1, &body)
    }

    /// An enhanced packet block.
    pub fn enhanced(self, interface: u32, ticks: u64, len: u32, data: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        [interface, (ticks >> 32) as u32, ticks as u32, data.len() as u32, len]
            .iter()
            .for_each(|word| body.extend(self.u32(*word)));
        body.extend(data);
        self.block(6, &body)
    }

    /// A packet block, which is obsolete.
    pub fn obsolete(self, interface: u16, ticks: u64, len: u32, data: &[u8]) -> Vec<u8> {
        let mut body = self.u16(interface).to_vec();
        body.extend([0; 2]);
        [(ticks >> 32) as u32, ticks as u32, data.len() as u32, len]
            .iter()
            .for_each(|word| body.extend(self.u32(*word)));
        body.extend(data);
        self.block(2, &body)
    }

    /// A simple packet block.
    pub fn simple(self, len: u32, data: &[u8]) -> Vec<u8> {
        let mut body = self.u32(len).to_vec();
        body.extend(data);
        self.block(3, &body)
    }
}
