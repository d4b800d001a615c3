//! The in-kernel half of netams: compiled eBPF objects and the layout of what they share with the daemon.
//!
//! This crate promises that its structs are the C structs of `src/bpf/abi.h`, byte by byte: sizes are asserted when it is
//! compiled, and a test compares every field with the object's BTF. It loads and attaches nothing.

#![forbid(unsafe_code)]

/// Object bytes with the alignment that an ELF reader wants.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static NETAMS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/netams.o")));
static VARIANTS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/variants.o")));
static ANSWER: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/answer.o")));
static VERDICTS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/verdicts.o")));

/// The ELF object with the programs and maps of the meter.
pub static OBJECT: &[u8] = &NETAMS.0;
/// The ELF object with the programs that the benchmark compares the meter with; never attached.
pub static VARIANTS_OBJECT: &[u8] = &VARIANTS.0;
/// The ELF object with the parser alone, which answers with an [`Answer`]; never attached.
pub static ANSWER_OBJECT: &[u8] = &ANSWER.0;

/// The ELF object that judges [`FlowKey`]s of the map `subjects`, one a run; never attached.
pub static VERDICTS_OBJECT: &[u8] = &VERDICTS.0;

/// Version of the layout below; kept in [`Control`].
pub const ABI: u32 = 4;
/// Slots of a set.
pub const WAYS: usize = 4;
/// `used` of a flow key in the half 0; in the half 1 it is one more, and 0 marks a free slot.
pub const USED: u8 = 2;
/// Bits of a [`PrefixKey`] in front of the address.
pub const SCOPE_BITS: u32 = 96;
/// Halves of each table.
pub const HALVES: usize = 2;

/// Bits of [`FlowKey::flags`].
pub mod key_flag {
    /// Later fragments, ports unknown.
    pub const FRAGMENT: u8 = 1;
    /// Super-packets of unknown segment size; only in user space.
    pub const ESTIMATED: u8 = 2;
    /// Each of these packets has an inner flow as well.
    pub const CARRIER: u8 = 4;
    /// By a verdict: what is counted here did not pass.
    pub const DROPPED: u8 = 64;
    /// Lowest of the three bits for a [`super::tunnel`].
    pub const TUNNEL_SHIFT: u8 = 3;
}

/// What is directly around the packet of an inner flow, in [`FlowKey::flags`].
pub mod tunnel {
    /// Nothing: a flow of the outer layer.
    pub const NONE: u8 = 0;
    /// IPv4 or IPv6.
    pub const IP: u8 = 1;
    /// GRE.
    pub const GRE: u8 = 2;
    /// VXLAN.
    pub const VXLAN: u8 = 3;
    /// Geneve.
    pub const GENEVE: u8 = 4;
    /// Teredo.
    pub const TEREDO: u8 = 5;
    /// GTP-U.
    pub const GTPU: u8 = 6;
    /// Bits that these numbers take.
    pub const MASK: u8 = 7;
}

/// Bits of [`Control::flags`].
pub mod flag {
    /// Do not count: another source does.
    pub const PAUSED: u32 = 1;
    /// Write segment sizes into the packets' marks, for the netfilter queues.
    pub const STAMP: u32 = 2;
    /// Judge each packet: verdicts that slots have may be former ones.
    pub const REJUDGE: u32 = 8;
    /// Two sources run: who counts a packet marks it, and a marked one is not counted again.
    pub const HANDOVER: u32 = 4;
}

/// What of a packet, beside its addresses, a prefix of the prefix table is bound to.
pub mod scope {
    /// Its outer VLAN id.
    pub const VLAN: u32 = 1;
    /// Its inner VLAN id.
    pub const VLAN_INNER: u32 = 2;
    /// The tunnel around it.
    pub const TUNNEL: u32 = 4;
    /// Combinations of these.
    pub const COMBINATIONS: u32 = 8;
}

/// Bits of [`UnitRules::flags`].
pub mod unit_flag {
    /// It has a list of policies that let its packets pass.
    pub const HAS_LIST: u32 = 1;
    /// The administrator blocks it.
    pub const BLOCKED: u32 = 2;
    /// It is over its quota.
    pub const OVER_QUOTA: u32 = 4;
    /// Without a list, what becomes of its packets is what becomes of those of no unit.
    pub const NO_LOCAL_PASS: u32 = 8;
    /// Of unit 0: packets that nobody decides are dropped if no side is a unit.
    pub const DROP_ALL: u32 = 16;
    /// Of unit 0: packets that nobody decides are dropped if one side is a unit.
    pub const DROP_LOCAL: u32 = 32;
}

/// Parts of a word: a number of a unit, or of a policy's first rule, in a sequence.
pub mod word {
    /// It is the last one.
    pub const LAST: u32 = 0x8000_0000;
    /// The policy must not hold.
    pub const NOT: u32 = 0x4000_0000;
    /// The number.
    pub const NUMBER: u32 = 0x3fff_ffff;
}

/// [`Rule::test`].
pub mod test {
    /// The end: whether `low` is not 0.
    pub const ANSWER: u8 = 0;
    /// Protocol.
    pub const PROTO: u8 = 1;
    /// Source port, of protocols that have ports.
    pub const SPORT: u8 = 2;
    /// Destination port, of protocols that have ports.
    pub const DPORT: u8 = 3;
    /// Outer VLAN id; 0 is none.
    pub const VLAN: u8 = 4;
    /// Inner VLAN id; 0 is none.
    pub const VLAN_INNER: u8 = 5;
    /// Key of the tunnel around an inner flow, if its kind is one of the bits of `list`.
    pub const TUNNEL: u8 = 6;
    /// Number of the data source.
    pub const SOURCE: u8 = 7;
    /// Value of the longest prefix of a list around an address.
    pub const PREFIX: u8 = 8;
    /// An address belongs to unit `low`.
    pub const UNIT: u8 = 9;
    /// Schedule `low` holds now.
    pub const SCHEDULE: u8 = 10;
}

/// [`Rule::side`].
pub mod side {
    /// Source.
    pub const SOURCE: u8 = 0;
    /// Destination.
    pub const DESTINATION: u8 = 1;
    /// The one that is not the unit's.
    pub const OTHER: u8 = 2;
}

/// What becomes of a packet, and why it is dropped: the strongest reason last.
pub mod verdict {
    /// It passes.
    pub const PASS: u32 = 0;
    /// Nobody lets it pass.
    pub const BY_DEFAULT: u32 = 1;
    /// No policy of a unit's list holds.
    pub const BY_POLICY: u32 = 2;
    /// A unit is over its quota.
    pub const BY_QUOTA: u32 = 3;
    /// A unit is blocked.
    pub const BLOCKED: u32 = 4;
}

/// Rules that are followed in a policy; more are not looked at.
pub const MAX_RULES: usize = 128;
/// Policies in a list.
pub const MAX_LIST: usize = 64;
/// Units of a class.
pub const MAX_UNITS: usize = 64;
/// Hard quotas of a unit.
pub const MAX_UNIT_QUOTAS: usize = 16;
/// Hard quotas of both sides of a flow.
pub const MAX_FLOW_QUOTAS: usize = 6;
/// [`QuotaRule::first`] where no policy has to hold.
pub const EVERY_PACKET: u32 = u32::MAX;

/// Names of the maps in [`OBJECT`].
pub mod map {
    /// Array of one [`super::Control`].
    pub const CONTROL: &str = "control";
    /// Array of [`super::Counters`], halves * CPUs.
    pub const COUNTERS: &str = "counters";
    /// Array of [`super::FlowSet`], halves * CPUs * sets.
    pub const FLOWS: &str = "flows";
    /// Hash of [`super::FlowKey`] to [`super::SpillValue`], both halves.
    pub const SPILL: &str = "spill";
    /// Array of [`super::OverflowCell`], halves * CPUs * classes.
    pub const OVERFLOW: &str = "overflow";
    /// Least-recently-used hash of [`super::FragmentKey`] to the [`super::FlowKey`] of the first fragment.
    pub const FRAGMENTS: &str = "fragments";
    /// Longest-prefix table of [`super::PrefixKey`] to class.
    pub const PREFIXES: &str = "prefixes";
    /// Array of the first [`word`](super::word) of each class's units.
    pub const CLASS_UNITS: &str = "class_units";
    /// Array of [`word`](super::word)s.
    pub const WORDS: &str = "words";
    /// Array of [`super::UnitRules`].
    pub const UNITS: &str = "units";
    /// Array of [`super::Rule`].
    pub const RULES: &str = "rules";
    /// Array of `u32`, whether each schedule holds.
    pub const SCHEDULES: &str = "schedules";
    /// Longest-prefix table of [`super::ListKey`] to a value.
    pub const LISTS: &str = "lists";
    /// Array of [`super::QuotaRule`].
    pub const QUOTA_RULES: &str = "quota_rules";
    /// Array of [`super::QuotaRoom`].
    pub const QUOTA_ROOMS: &str = "quota_rooms";
    /// Array of [`super::QuotaUse`].
    pub const QUOTA_USES: &str = "quota_uses";
    /// Those that hold counts, and are pinned; so are those of quotas, where there are any.
    pub const ALL: [&str; 7] = [CONTROL, COUNTERS, FLOWS, SPILL, OVERFLOW, FRAGMENTS, PREFIXES];
}

/// Names of the constants in [`OBJECT`] that are set before it is loaded.
pub mod constant {
    /// `u32`: possible CPUs.
    pub const CPUS: &str = "cfg_cpus";
    /// `u32`: first-level sets a CPU and a half, a power of two.
    pub const SETS: &str = "cfg_sets";
    /// `u32`: overflow cells a CPU and a half.
    pub const CLASSES: &str = "cfg_classes";
    /// `u32`, 1 to 65535: the `tc_index` of a packet that has been counted in a flow.
    pub const MARK: &str = "cfg_mark";
    /// `u32`, 1 to 65535: the `tc_index` of a packet that has been counted as no IP.
    pub const MARK_OTHER: &str = "cfg_mark_other";
    /// `u32`: 0 accounts the outer layer alone, 1 inner flows too, 2 charges units by them.
    pub const TUNNELS: &str = "cfg_tunnels";
    /// `u32`: whether verdicts are enforced.
    pub const ENFORCE: &str = "cfg_enforce";
    /// `u32`: how many hard quotas there are.
    pub const QUOTAS: &str = "cfg_quotas";
    /// `u32`: which of the eight combinations of [`scope`](super::scope) bits units ask for, a bit each.
    pub const SCOPES: &str = "cfg_scopes";
    /// `u32`: the bit of `skb->mark` that packets carry which have been counted, during a handover.
    pub const HANDOVER: &str = "cfg_handover";
    /// `u32`: the lowest of the 16 bits of `skb->mark` that segment sizes are written to.
    pub const STAMP_SHIFT: &str = "cfg_stamp_shift";
    /// `[u64; 8]`: random odd multipliers of the hash.
    pub const SEED: &str = "cfg_seed";
}

/// Programs of [`OBJECT`], by device kind (`true`: Ethernet header) and place.
pub mod program {
    /// Ingress of a device that packets reach first.
    pub const fn enter(ethernet: bool) -> &'static str {
        if ethernet { "netams_enter" } else { "netams_enter_l3" }
    }
    /// Ingress of a device on top of another one, and of loopback.
    pub const fn upper(ethernet: bool) -> &'static str {
        if ethernet { "netams_upper" } else { "netams_upper_l3" }
    }
    /// Egress.
    pub const fn leave(ethernet: bool) -> &'static str {
        if ethernet { "netams_leave" } else { "netams_leave_l3" }
    }
    /// Ingress of a device that is not metered: writes segment sizes into marks, and counts nothing.
    pub const STAMP: &str = "netams_stamp";
    /// Returns the time in which stamps are given; never attached.
    pub const CLOCK: &str = "netams_clock";
    /// Every program starts like this, and nobody else's does.
    pub const PREFIX: &str = "netams_";
    /// All that are attached.
    pub const ALL: [&str; 7] =
        [enter(true), upper(true), leave(true), enter(false), upper(false), leave(false), STAMP];
}

macro_rules! abi {
    ($(#[$meta:meta])* $name:ident, $size:literal { $($(#[$field_meta:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl $name {
            /// Name, offset and size in bytes of each field.
            pub const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$ty>())),*];
        }
    };
}

abi!(
    /// Identity of a flow; ports in network order, VLAN ids in host order, IPv4 addresses v4-mapped.
    FlowKey, 48 {
        /// Source address.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
        /// Source port.
        sport: [u8; 2],
        /// Destination port; ICMP: type, code.
        dport: [u8; 2],
        /// Outer VLAN id, 0 where there is none.
        vlan: u16,
        /// Inner VLAN id, 0 where there is none.
        vlan_inner: u16,
        /// GRE key, VNI or TEID of the tunnel around an inner flow, in host order; 0 where there is none.
        tunnel: u32,
        /// Upper-layer protocol.
        proto: u8,
        /// 4 or 6.
        version: u8,
        /// [`key_flag`]s, and the kind of tunnel around an inner flow.
        flags: u8,
        /// [`USED`] plus the half that the entry belongs to.
        used: u8,
    }
);
abi!(
    /// One flow of a set.
    FlowSlot, 64 {
        /// Which flow.
        key: FlowKey,
        /// Layer-3 bytes.
        bytes: u64,
        /// Wire packets.
        packets: u32,
        /// Stamp of the last packet, the lower half of jiffies.
        last: u32,
    }
);
abi!(
    /// Four flows whose keys hash alike.
    FlowSet, 320 {
        /// The flows.
        slot: [FlowSlot; WAYS],
        /// Stamp of the first packet, never 0; 0 marks a free slot.
        first: [u32; WAYS],
        /// Hard quotas that each flow is charged to, their numbers and 1; 0 where there are no more.
        quotas: [[u16; MAX_FLOW_QUOTAS]; WAYS],
    }
);
abi!(
    /// Value of the second-level table.
    SpillValue, 24 {
        /// Wire packets.
        packets: u64,
        /// Layer-3 bytes.
        bytes: u64,
        /// Stamp of the first packet.
        first: u32,
        /// Stamp of the last packet.
        last: u32,
    }
);
abi!(
    /// What the fragments of one packet have in common.
    FragmentKey, 40 {
        /// Source address.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
        /// Identification, as on the wire.
        id: u32,
        /// The protocol that the fragment itself names.
        proto: u8,
        /// 4 or 6.
        version: u8,
        /// 0: outer, 1: inner.
        layer: u16,
    }
);
abi!(
    /// Traffic of a prefix for which the tables had no room.
    OverflowCell, 32 {
        /// Wire packets to it.
        in_packets: u64,
        /// Layer-3 bytes to it.
        in_bytes: u64,
        /// Wire packets from it.
        out_packets: u64,
        /// Layer-3 bytes from it.
        out_bytes: u64,
    }
);
abi!(
    /// Key of the prefix table; in front of the address 0 is whatever it may be.
    PrefixKey, 32 {
        /// Bits, [`SCOPE_BITS`] and 0 to 128 more.
        len: u32,
        /// Outer VLAN id.
        vlan: u16,
        /// Inner VLAN id.
        vlan_inner: u16,
        /// Key of the tunnel, if there is a kind.
        tunnel: u32,
        /// A [`tunnel`].
        tunnel_kind: u32,
        /// Address, v4-mapped for IPv4.
        addr: [u8; 16],
    }
);
abi!(
    /// Counters of one CPU in one half, in wire packets unless a name says bytes.
    Counters, 192 {
        /// Passed the ingress hooks.
        packets_in: u64,
        /// Passed the egress hooks.
        packets_out: u64,
        /// Passed a hook after another one had counted them.
        already_counted: u64,
        /// Neither IPv4 nor IPv6.
        non_ip: u64,
        /// Said to be IP, without a valid header.
        malformed: u64,
        /// Tables full: counted by prefix only.
        overflow_packets: u64,
        /// Layer-3 bytes of those.
        overflow_bytes: u64,
        /// Accounted in the second-level table.
        spilled: u64,
        /// Later fragments, accounted without ports.
        fragments: u64,
        /// Super-packets of an encapsulation.
        gso_headers_unknown: u64,
        /// Map lookups that cannot fail and did.
        no_slot: u64,
        /// Wire packets inferred from super-packets of unknown segment size; only in user space.
        estimated: u64,
        /// Dropped by a verdict.
        dropped: u64,
        /// Only in user space, as is the next: packets that came out of the queue, super-packets as one.
        queued: u64,
        /// Gaps in their ids.
        queue_lost: u64,
        /// Have an inner flow, for which the tables had no room.
        inner_overflow_packets: u64,
        /// Inner layer-3 bytes of those.
        inner_overflow_bytes: u64,
        /// Zero.
        reserved: [u64; 7],
    }
);
abi!(
    /// State of a set of maps; the daemon writes `epoch` and `flags` while programs run.
    Control, 56 {
        /// Its lowest bit is the half that is being filled.
        epoch: u64,
        /// Random identity of this set of maps.
        table: u64,
        /// Identity of the store that the counts belong to.
        store: u64,
        /// [`ABI`].
        abi: u32,
        /// Possible CPUs.
        cpus: u32,
        /// First-level sets a CPU and a half.
        sets: u32,
        /// Overflow cells a CPU and a half.
        classes: u32,
        /// [`flag`]s; 0: count.
        flags: u32,
        /// [`TUNNELS`](constant::TUNNELS) of the programs that fill them.
        tunnels: u32,
        /// Says whether two sets of maps have the same hard quotas; 0: none.
        quotas: u64,
    }
);
abi!(
    /// How packets of a unit are judged.
    UnitRules, 16 {
        /// [`unit_flag`]s.
        flags: u32,
        /// Where its list of policies begins among the [`word`]s.
        list: u32,
        /// Where the numbers of its hard quotas' rules begin among the [`word`]s, 0 if there are none.
        quotas: u32,
        /// Zero.
        reserved: u32,
    }
);
abi!(
    /// One step of a policy.
    Rule, 16 {
        /// A [`test`](mod@test).
        test: u8,
        /// A [`side`], of tests on addresses.
        side: u8,
        /// How many rules further it goes on if the test holds.
        yes: u16,
        /// And if it does not.
        no: u16,
        /// Of `PREFIX` the list, of `TUNNEL` a bit set of [`tunnel`] kinds.
        list: u16,
        /// The test holds for numbers from this one.
        low: u32,
        /// To this one.
        high: u32,
    }
);
abi!(
    /// Which packets of a unit are charged to a quota.
    QuotaRule, 16 {
        /// The quota's number.
        quota: u32,
        /// Bit set of [`side`]s where the unit is.
        sides: u32,
        /// First rule of the policy that has to hold, or [`EVERY_PACKET`].
        first: u32,
        /// Zero.
        reserved: u32,
    }
);
abi!(
    /// A hard quota as the daemon says.
    QuotaRoom, 24 {
        /// Bytes that [`QuotaUse::used`] may have together.
        room: u64,
        /// When the period began, milliseconds UTC since 1970.
        start_ms: i64,
        /// Another one for each period, never 0.
        turn: u64,
    }
);
abi!(
    /// What the programs have counted of a hard quota since the maps were made.
    QuotaUse, 24 {
        /// Whoever writes has it.
        lock: u32,
        /// The turn in which a packet found no room.
        over: u32,
        /// Bytes, by half.
        used: [u64; 2],
    }
);
abi!(
    /// Key of the table of lists.
    ListKey, 24 {
        /// Bits, 32 and 0 to 128 more.
        len: u32,
        /// Number of the list.
        list: u32,
        /// Address, v4-mapped for IPv4.
        addr: [u8; 16],
    }
);
abi!(
    /// What the parser of the kernel half says of a packet.
    Answer, 72 {
        /// Its flow, with `used` and `fragment` 0.
        key: FlowKey,
        /// Layer-3 bytes of all wire packets.
        bytes: u64,
        /// Wire packets.
        segs: u32,
        /// Identification of a fragment, as on the wire.
        fragment_id: u32,
        /// 0: IP, 1: not IP, 2: malformed; if not IP, nothing but `segs` is said.
        parsed: u8,
        /// 0: whole, 1: first fragment, 2: later one.
        fragment: u8,
        /// The protocol that a fragment itself names.
        fragment_proto: u8,
        /// 1: a super-packet whose headers are not known.
        headers_unknown: u8,
        /// Zero.
        reserved: u32,
    }
);
