//! What really moved, from counters that have nothing to do with the meter.
//!
//! * [`Tcp`]: the sender's own count of segments. Linux leaves retransmissions out of `OutSegs` (RFC 1213), so wire
//!   packets are `OutSegs + RetransSegs`. No bytes.
//! * [`qdisc`]: the pfifo at the sender's eth0 counts each super-packet as its segments, with the headers that each
//!   carries, Ethernet included: layer-3 bytes are its bytes less 14 a packet.
//! * [`device`]: interface counters; they count super-packets, so they tell wire packets only of what cannot be one.
//! * [`crate::capture`]: the packets themselves, with offloads off.
//!
//! That these agree is a test of its own (`live/instruments.rs`).

use std::fs;
use std::ops::{AddAssign, Sub};

use crate::ns::Namespace;

/// Length of an Ethernet header in bytes.
pub const ETHERNET: u64 = 14;

/// Wire packets and their layer-3 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Wire packets.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { packets: self.packets - before.packets, bytes: self.bytes - before.bytes }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// What the qdisc at `eth0` of a lab's end has sent.
pub fn qdisc(end: &Namespace) -> Traffic {
    qdisc_of(end, "eth0", ETHERNET)
}

/// What the root qdisc of an interface, whose link-layer headers have `header` bytes, has sent.
pub fn qdisc_of(namespace: &Namespace, device: &str, header: u64) -> Traffic {
    let json = namespace.run(&format!("tc -j -s qdisc show dev {device} root"));
    let qdiscs: serde_json::Value = serde_json::from_str(&json).expect("tc prints JSON");
    let field = |name: &str| qdiscs[0][name].as_u64().unwrap_or_else(|| panic!("no {name} in {json}"));
    let packets = field("packets");
    Traffic { packets, bytes: field("bytes") - header * packets }
}

/// TCP segments that a namespace has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tcp {
    /// Segments, retransmissions excluded.
    pub out: u64,
    /// Retransmitted segments.
    pub retransmitted: u64,
}

impl Tcp {
    /// Reads the counters of a namespace.
    pub fn read(namespace: &Namespace) -> Self {
        let text = namespace
            .enter(|| fs::read_to_string("/proc/thread-self/net/snmp"))
            .expect("the namespace's protocol counters");
        let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (rows.next().expect("Tcp names"), rows.next().expect("Tcp values"));
        let field = |wanted: &str| {
            let pair = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == wanted);
            pair.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no Tcp {wanted}"))
        };
        Self { out: field("OutSegs"), retransmitted: field("RetransSegs") }
    }

    /// Wire packets sent since `before` was read.
    pub fn packets_since(&self, before: &Self) -> u64 {
        self.out + self.retransmitted - before.out - before.retransmitted
    }
}

/// Counters of an interface; frames as the driver sees them, bytes with Ethernet headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Device {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames received and dropped.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames dropped instead of sent.
    pub tx_dropped: u64,
}

/// Reads the counters of an interface; all zero when it does not exist.
pub fn device(namespace: &Namespace, name: &str) -> Device {
    let text =
        namespace.enter(|| fs::read_to_string("/proc/thread-self/net/dev")).expect("interface counters");
    let Some(line) = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{name}:"))) else {
        return Device::default();
    };
    let column: Vec<u64> = line.split_whitespace().map(|word| word.parse().expect("a counter")).collect();
    Device {
        rx_bytes: column[0],
        rx_packets: column[1],
        rx_dropped: column[3],
        tx_bytes: column[8],
        tx_packets: column[9],
        tx_dropped: column[11],
    }
}
