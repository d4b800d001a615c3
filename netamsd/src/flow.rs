//! The one domain record: a flow, what was counted of it, and a batch of such counts.
//!
//! Pure data. Every source yields a [`Batch`]; the policy engine charges it to units and the store commits both in one
//! transaction. Nothing here knows where packets come from or where counts go.

use std::net::{IpAddr, Ipv6Addr};

/// Which data source counted something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// eBPF programs on tc hooks.
    #[default]
    Kernel,
    /// The daemon itself, from netfilter queues.
    Nfqueue,
    /// A capture, by `netamsd replay`.
    Replay,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Nfqueue, Self::Replay];

    /// Name as configured, stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Nfqueue => "nfqueue",
            Self::Replay => "replay",
        }
    }
}

/// How the packet of an inner flow is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encapsulation {
    /// Directly in IPv4 or IPv6: IPIP, 6in4, 4in6, 6in6.
    Ip,
    /// GRE, RFC 2784 and 2890.
    Gre,
    /// VXLAN, RFC 7348.
    Vxlan,
    /// Geneve, RFC 8926.
    Geneve,
    /// Teredo, RFC 4380.
    Teredo,
    /// GTP-U, 3GPP TS 29.281.
    Gtpu,
}

impl Encapsulation {
    /// All of them, in the order of the numbers by which the flow tables and the store know them, from 1.
    pub const ALL: [Self; 6] = [Self::Ip, Self::Gre, Self::Vxlan, Self::Geneve, Self::Teredo, Self::Gtpu];

    /// Number in the flow tables and the store.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// By its number; `None` for 0 and for unknown ones.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }

    /// Name as it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Gre => "gre",
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
            Self::Teredo => "teredo",
            Self::Gtpu => "gtpu",
        }
    }
}

/// The tunnel directly around the packet of an inner flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnel {
    /// Its kind.
    pub kind: Encapsulation,
    /// GRE key, VNI of VXLAN and Geneve, TEID of GTP-U; 0 where there is none.
    pub key: u32,
}

/// One of the two layers in which traffic in tunnels is seen; they are never added together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layer {
    /// Packets as they are on the wire.
    #[default]
    Outer,
    /// The innermost packets of tunnels, and packets that no tunnel carries.
    Inner,
}

/// What is asked of a packet beside its addresses; 0 and `None` ask nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Outer VLAN id.
    pub vlan: u16,
    /// Inner VLAN id.
    pub vlan_inner: u16,
    /// The tunnel directly around it.
    pub tunnel: Option<Tunnel>,
}

impl Scope {
    /// Every packet.
    pub const ANY: Self = Self { vlan: 0, vlan_inner: 0, tunnel: None };
    /// Which of its three fields ask something is a number below this.
    pub const SELECTIONS: u8 = 8;

    /// Which fields ask something: a bit each, the first the lowest.
    pub fn selection(&self) -> u8 {
        u8::from(self.vlan != 0) | u8::from(self.vlan_inner != 0) << 1 | u8::from(self.tunnel.is_some()) << 2
    }

    /// With the fields of `selection` alone; `None` if one of these asks nothing.
    pub fn only(&self, selection: u8) -> Option<Self> {
        let has = |bit: u8| selection & bit != 0;
        let only = Self {
            vlan: if has(1) { self.vlan } else { 0 },
            vlan_inner: if has(2) { self.vlan_inner } else { 0 },
            tunnel: self.tunnel.filter(|_| has(4)),
        };
        (only.selection() == selection).then_some(only)
    }

    /// The wider scopes and itself, as far as `selections`, a bit set of [`selection`](Self::selection) numbers, has them:
    /// all that a packet is in whose own VLAN ids and tunnel this is.
    pub fn around(self, selections: u8) -> impl Iterator<Item = Self> {
        // From bit to bit, and not through all numbers: mostly there is none or one.
        let mut left = selections;
        let wanted = std::iter::from_fn(move || {
            let lowest = left.trailing_zeros() as u8;
            left &= left.wrapping_sub(1);
            (lowest < Self::SELECTIONS).then_some(lowest)
        });
        wanted.filter_map(move |selection| self.only(selection))
    }

    /// The packets that are in both; `None` if there can be none.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let id = |a: u16, b: u16| match (a, b) {
            (0, id) | (id, 0) => Some(id),
            _ => (a == b).then_some(a),
        };
        let tunnel = match (self.tunnel, other.tunnel) {
            (None, tunnel) | (tunnel, None) => tunnel,
            (a, b) if a == b => a,
            _ => return None,
        };
        Some(Self {
            vlan: id(self.vlan, other.vlan)?,
            vlan_inner: id(self.vlan_inner, other.vlan_inner)?,
            tunnel,
        })
    }
}

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
    /// What is directly around the packet; `None` in the outer layer.
    pub tunnel: Option<Tunnel>,
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

    /// The narrowest scope that its packets are in.
    pub fn scope(&self) -> Scope {
        Scope { vlan: self.vlan, vlan_inner: self.vlan_inner, tunnel: self.tunnel }
    }
}

/// An address as it is held: v4-mapped for IPv4.
pub fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// An address as it is held, in its own family.
pub fn canonical(address: Ipv6Addr, version: u8) -> IpAddr {
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
    /// Some of its wire packets were inferred from super-packets whose segment size is not known.
    pub estimated: bool,
    /// An outer flow's packets that have an inner flow as well.
    pub carrier: bool,
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

/// A prefix that overflow is counted by: the packets of a scope that have an address in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// Which packets.
    pub scope: Scope,
    /// An address of the prefix, v4-mapped for IPv4, that is in no longer prefix of the scope.
    pub address: Ipv6Addr,
    /// Length, 0 to 128 bits.
    pub len: u8,
}

/// What a unit's counts are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// All that passed.
    #[default]
    Traffic,
    /// What passed and a policy of the unit's list holds for: index into the configured policies.
    Policy(u32),
    /// What did not pass, for this reason.
    Dropped(&'static str),
}

/// The reason of drops by policies that are no longer in force.
pub const CHANGED: &str = "changed";

/// What one unit used in one hour: how policy tells the store what to add to that unit's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitCharge {
    /// Index into the configured units.
    pub unit: u32,
    /// Which of its accounts.
    pub account: Account,
    /// Beginning of the hour, milliseconds UTC since 1970.
    pub hour_ms: i64,
    /// What is to be added.
    pub counts: InOut,
}

/// Traffic that was counted by its sides' units alone because the flow table was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowDelta {
    /// The scope: a packet counts once in each that the configured prefixes have.
    pub scope: Scope,
    /// An address of the prefix that matched longest there, in no longer one; v4-mapped for IPv4.
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
    /// In outer flows of `Batch::flows`.
    pub flow_packets: u64,
    /// Layer-3 bytes of those.
    pub flow_bytes: u64,
    /// Packets of those that have an inner flow: what inner flows in `Batch::flows` have, which the terms above leave out.
    pub inner_packets: u64,
    /// Inner layer-3 bytes of those.
    pub inner_bytes: u64,
    /// Packets whose inner flow found the tables full: counted by unit at most.
    pub inner_overflow_packets: u64,
    /// Inner layer-3 bytes of those.
    pub inner_overflow_bytes: u64,
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
    /// Wire packets that were inferred from super-packets whose segment size is not known; in flows.
    pub estimated: u64,
    /// Dropped by a verdict: in none of `Batch::flows`.
    pub dropped: u64,
    /// Packets that the netfilter rules in front of the queues have counted; a super-packet is one.
    pub reference: u64,
    /// Packets that came out of the queues; a super-packet is one.
    pub queued: u64,
    /// Never came out of a queue because the socket's buffer was full: gaps in the packets' ids.
    pub queue_lost: u64,
    /// Never came out of a queue because the queue was full.
    pub queue_full: u64,
    /// Counted by the rules and not queued: nobody was listening, or the queue let them pass because it was full.
    pub bypassed: u64,
}

impl Counters {
    /// Packets that are to be found in flows, overflow, non_ip, malformed, dropped or lost: wire packets, but for those
    /// that never came out of a queue, where a super-packet is one.
    pub fn seen(&self) -> u64 {
        (self.packets_in + self.packets_out).saturating_sub(self.already_counted) + self.not_queued()
    }

    /// Packets that the rules have counted and that never came out of a queue, for whatever reason.
    pub fn not_queued(&self) -> u64 {
        self.queue_lost + self.queue_full + self.bypassed
    }

    /// Seen and in no other term: those that never came out of a queue, and what only a bug can explain.
    pub fn lost(&self) -> i64 {
        let accounted =
            self.flow_packets + self.overflow_packets + self.non_ip + self.malformed + self.dropped;
        self.seen().wrapping_sub(accounted) as i64
    }

    /// What of `lost` has no reason; zero unless there is a bug.
    pub fn unexplained(&self) -> i64 {
        self.lost().wrapping_sub(self.not_queued() as i64)
    }

    /// Adds a flow to the terms of its layer.
    pub fn add_flow(&mut self, flow: &FlowDelta) {
        let (packets, bytes) = match flow.key.tunnel {
            None => (&mut self.flow_packets, &mut self.flow_bytes),
            Some(_) => (&mut self.inner_packets, &mut self.inner_bytes),
        };
        *packets += flow.packets;
        *bytes += flow.bytes;
    }

    /// Adds `other` to each count.
    pub fn add(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.already_counted += other.already_counted;
        self.flow_packets += other.flow_packets;
        self.flow_bytes += other.flow_bytes;
        self.inner_packets += other.inner_packets;
        self.inner_bytes += other.inner_bytes;
        self.inner_overflow_packets += other.inner_overflow_packets;
        self.inner_overflow_bytes += other.inner_overflow_bytes;
        self.overflow_packets += other.overflow_packets;
        self.overflow_bytes += other.overflow_bytes;
        self.non_ip += other.non_ip;
        self.malformed += other.malformed;
        self.fragments += other.fragments;
        self.spilled += other.spilled;
        self.gso_headers_unknown += other.gso_headers_unknown;
        self.estimated += other.estimated;
        self.dropped += other.dropped;
        self.reference += other.reference;
        self.queued += other.queued;
        self.queue_lost += other.queue_lost;
        self.queue_full += other.queue_full;
        self.bypassed += other.bypassed;
    }
}

/// Everything a source counted in one epoch. `(table, epoch)` names it: the store commits a batch of that name once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Who counted.
    pub source: Source,
    /// Random identity of the flow tables it was read from.
    pub table: u64,
    /// Epoch of those tables, counting from 1.
    pub epoch: u64,
    /// The layer by whose addresses units are charged; `overflow` is that layer's alone.
    pub charged: Layer,
    /// Flow counts; a key may occur several times.
    pub flows: Vec<FlowDelta>,
    /// What verdicts have dropped, as far as there was room to tell the flows.
    pub dropped: Vec<FlowDelta>,
    /// Counts without flow detail.
    pub overflow: Vec<OverflowDelta>,
    /// The ledger's terms.
    pub counters: Counters,
}
