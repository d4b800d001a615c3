//! The one domain record: a flow, what was counted of it, and a batch of such counts.
//!
//! Pure data. Every source yields a [`Batch`]; the policy engine charges it to units and the store commits both in one
//! transaction. Nothing here knows where packets come from or where counts go.

use std::net::{IpAddr, Ipv6Addr};

/// Identity of a unidirectional flow. IPv4 addresses are held v4-mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address, v4-mapped for IPv4.
    pub src: Ipv6Addr,
    /// Destination address, v4-mapped for IPv4.
    pub dst: Ipv6Addr,
    /// Source port, 0 where there is none.
    pub sport: u16,
    /// Destination port; ICMP: type * 256 + code.
    pub dport: u16,
    /// Outer VLAN id, 0 where there is none.
    pub vlan: u16,
    /// Inner VLAN id of QinQ, 0 where there is none.
    pub vlan_inner: u16,
    /// Upper-layer protocol, after IPv6 extension headers.
    pub proto: u8,
    /// IP version on the wire, 4 or 6.
    pub version: u8,
    /// Later fragments whose first fragment was not seen: ports are 0 and say nothing.
    pub fragment: bool,
}

impl FlowKey {
    /// Source address in its own family.
    pub fn src_ip(&self) -> IpAddr {
        canonical(self.src, self.version)
    }

    /// Destination address in its own family.
    pub fn dst_ip(&self) -> IpAddr {
        canonical(self.dst, self.version)
    }
}

fn canonical(address: Ipv6Addr, version: u8) -> IpAddr {
    match address.to_ipv4_mapped() {
        Some(v4) if version == 4 => v4.into(),
        _ => address.into(),
    }
}

/// What was counted of one flow in one batch. A key may occur several times in a batch; counts are then added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDelta {
    /// Which flow.
    pub key: FlowKey,
    /// Wire packets.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
    /// First packet of the batch, milliseconds UTC since 1970.
    pub first_ms: i64,
    /// Last packet of the batch, milliseconds UTC since 1970.
    pub last_ms: i64,
}

/// Packets and layer-3 bytes to (`in`) and from (`out`) an address prefix or a unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InOut {
    /// Wire packets to it.
    pub in_packets: u64,
    /// Layer-3 bytes to it.
    pub in_bytes: u64,
    /// Wire packets from it.
    pub out_packets: u64,
    /// Layer-3 bytes from it.
    pub out_bytes: u64,
}

impl InOut {
    /// Adds `other` to each count.
    pub fn add(&mut self, other: &Self) {
        self.in_packets += other.in_packets;
        self.in_bytes += other.in_bytes;
        self.out_packets += other.out_packets;
        self.out_bytes += other.out_bytes;
    }
}

/// What one unit used in one hour: how policy tells the store what to add to that unit's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitCharge {
    /// Index into the configured units.
    pub unit: u32,
    /// Beginning of the hour, milliseconds UTC since 1970.
    pub hour_ms: i64,
    /// What is to be added.
    pub counts: InOut,
}

/// Traffic that was counted by its sides' units alone because the flow table was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowDelta {
    /// An address of the configured prefix that matched longest, in no longer one; v4-mapped for IPv4.
    pub address: Ipv6Addr,
    /// What went to and came from that prefix.
    pub counts: InOut,
}

/// The ledger's terms of one batch, in wire packets unless a name says bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Passed the ingress hooks.
    pub packets_in: u64,
    /// Passed the egress hooks.
    pub packets_out: u64,
    /// Passed a hook after another hook of ours had counted them.
    pub already_counted: u64,
    /// In `Batch::flows`.
    pub flow_packets: u64,
    /// Layer-3 bytes in `Batch::flows`.
    pub flow_bytes: u64,
    /// Counted by unit only.
    pub overflow_packets: u64,
    /// Layer-3 bytes of those.
    pub overflow_bytes: u64,
    /// Neither IPv4 nor IPv6.
    pub non_ip: u64,
    /// Said to be IP, but without a valid header.
    pub malformed: u64,
    /// Later fragments accounted without ports.
    pub fragments: u64,
    /// Packets accounted in the second-level table.
    pub spilled: u64,
    /// Super-packets of an encapsulation whose header length is not known.
    pub gso_headers_unknown: u64,
}

impl Counters {
    /// Wire packets that are to be found in flows, overflow, non_ip, malformed or lost.
    pub fn seen(&self) -> u64 {
        (self.packets_in + self.packets_out).saturating_sub(self.already_counted)
    }

    /// Seen and in no other term; zero unless there is a bug.
    pub fn lost(&self) -> i64 {
        let accounted = self.flow_packets + self.overflow_packets + self.non_ip + self.malformed;
        self.seen().wrapping_sub(accounted) as i64
    }

    /// Adds `other` to each count.
    pub fn add(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.already_counted += other.already_counted;
        self.flow_packets += other.flow_packets;
        self.flow_bytes += other.flow_bytes;
        self.overflow_packets += other.overflow_packets;
        self.overflow_bytes += other.overflow_bytes;
        self.non_ip += other.non_ip;
        self.malformed += other.malformed;
        self.fragments += other.fragments;
        self.spilled += other.spilled;
        self.gso_headers_unknown += other.gso_headers_unknown;
    }
}

/// Everything a source counted in one epoch. `(table, epoch)` names it: the store commits a batch of that name once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Random identity of the flow tables it was read from.
    pub table: u64,
    /// Epoch of those tables, counting from 1.
    pub epoch: u64,
    /// Flow counts; a key may occur several times.
    pub flows: Vec<FlowDelta>,
    /// Counts without flow detail.
    pub overflow: Vec<OverflowDelta>,
    /// The ledger's terms.
    pub counters: Counters,
}
