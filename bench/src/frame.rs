//! Frames for the benchmarks.

/// A frame and the place of the last four bytes of its source address.
pub struct Frame {
    /// Name in tables.
    pub name: &'static str,
    /// The frame, from the Ethernet header.
    pub bytes: Vec<u8>,
    /// Offset of the four bytes that tell flows apart.
    pub place: u32,
}

impl Frame {
    /// `struct __sk_buff` that tells the benchmark's programs how many flows the frame stands for, and where.
    pub fn context(&self, flows: u32) -> [u8; 192] {
        // mark is the third word, cb[0] the 13th.
        let mut context = [0; 192];
        context[8..12].copy_from_slice(&flows.to_ne_bytes());
        context[48..52].copy_from_slice(&self.place.to_ne_bytes());
        context
    }
}

const UDP: [u8; 8] = [0x30, 0x39, 0x00, 0x35, 0x00, 0x1a, 0, 0];

fn ethernet(tags: &[u16], kind: u16) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    for tag in tags {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(kind.to_be_bytes());
    frame
}

/// IPv4/UDP, 60 bytes without tags.
pub fn ipv4(name: &'static str, tags: &[u16]) -> Frame {
    let mut bytes = ethernet(tags, 0x0800);
    let place = bytes.len() as u32 + 12;
    bytes.extend([0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1]);
    bytes.extend(UDP);
    bytes.extend([0; 18]);
    Frame { name, bytes, place }
}

/// IPv6/UDP.
pub fn ipv6(name: &'static str) -> Frame {
    let mut bytes = ethernet(&[], 0x86dd);
    let place = bytes.len() as u32 + 20;
    bytes.extend([0x60, 0, 0, 0, 0, 26, 17, 64]);
    bytes.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend(UDP);
    bytes.extend([0; 18]);
    Frame { name, bytes, place }
}

/// IPv4/UDP in VXLAN over IPv4/UDP; flows differ inside and not outside.
pub fn vxlan(name: &'static str) -> Frame {
    let inside = ipv4(name, &[]);
    let len = |headers: usize| ((inside.bytes.len() + headers) as u16).to_be_bytes();
    let mut bytes = ethernet(&[], 0x0800);
    bytes.extend([0x45, 0]);
    bytes.extend(len(20 + 8 + 8));
    bytes.extend([0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 7, 192, 0, 2, 8]);
    // Port 4789, and network 5001 (RFC 7348).
    bytes.extend([0x30, 0x39, 0x12, 0xb5]);
    bytes.extend(len(8 + 8));
    bytes.extend([0, 0, 8, 0, 0, 0, 0, 0x13, 0x89, 0]);
    let place = bytes.len() as u32 + inside.place;
    bytes.extend(inside.bytes);
    Frame { name, bytes, place }
}
