//! What netamsd and its clients say to each other over the control socket.
//!
//! A connection carries frames in both directions (see [`frame`]). The client opens with [`Hello`], the daemon
//! answers with [`Welcome`] or a typed [`Error`]; after that each [`Request`] gets exactly one [`Response`], in order.
//! This crate holds data only: no I/O beyond reading and writing a frame. How a single value is written for people is in
//! [`text`], for whoever shows one; layout is theirs.

#![forbid(unsafe_code)]

pub mod frame;
mod ledger;
mod policy;
mod source;
pub mod text;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use ledger::{Ledger, Ledgers, Terms};
pub use policy::{
    ExplainQuery, Explained, ExplainedUnit, Part, Policies, PolicyUnit, QuotaUse, Quotas, UnitReport,
};
pub use source::{NfqueueStatus, Queue, Rule, Rules, SourceKind, SourceStatus, Verdict};

/// First field of every [`Hello`] and [`Welcome`]: refuses whatever is not this protocol.
pub const COOKIE: u32 = 0x4e_45_54_41;
/// Version of the messages below; a client and a daemon talk only when theirs are equal.
pub const VERSION: u32 = 4;
/// Where the daemon listens unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/netams/control.sock";
/// Environment variable that tells `ngctl` another socket.
pub const SOCKET_ENV: &str = "NETAMS_SOCKET";

/// What the client says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Always [`COOKIE`].
    pub cookie: u32,
    /// The client's [`VERSION`].
    pub version: u32,
}

/// The daemon's answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Always [`COOKIE`].
    pub cookie: u32,
    /// The daemon's [`VERSION`].
    pub version: u32,
    /// IANA name of the zone in which times are shown and days are cut, for instance `Europe/Berlin`.
    pub timezone: String,
}

/// First answer of the daemon on each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Greeting {
    /// The client may send requests.
    Welcome(Welcome),
    /// The client may not, and why; the daemon closes the connection.
    Refused(Error),
}

/// A question or command to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request", content = "args")]
pub enum Request {
    /// The daemon as a node with its hooks: `ngctl list`, `ngctl show netams:`.
    Node,
    /// The historical counters: `ngctl msg netams: info`.
    Info,
    /// Every term of the accounting identity: `ngctl ledger`.
    Ledger,
    /// Flow records: `ngctl flows`.
    Flows(FlowQuery),
    /// Totals by unit: `ngctl units`.
    Units,
    /// Recorded gaps and other events, newest first, at most this many: `ngctl events`.
    Events(u32),
    /// The source of packets: `ngctl source`.
    Source,
    /// Switch to this source: `ngctl msg netams: source kernel`. Answered by [`Response::Source`] when it counts, or by
    /// [`Error::Failed`].
    SetSource(SourceKind),
    /// What happens from now on to packets that no policy decides: `ngctl msg netams: default_policy drop`. Answered by
    /// [`Response::Source`].
    SetDefaultPolicy(Verdict),
    /// The netfilter rules that the daemon has installed: `ngctl rules`.
    Rules,
    /// One unit in full: `ngctl units UNIT`.
    Unit(String),
    /// What policies counted: `ngctl policies`.
    Policies,
    /// Use of the quotas, of one unit or of all: `ngctl quota`.
    Quotas(Option<String>),
    /// How a packet is counted and judged: `ngctl explain`.
    Explain(ExplainQuery),
    /// Block a unit, or no longer: `ngctl block`, `ngctl allow`. Answered by [`Response::Unit`].
    SetBlocked {
        /// Which unit.
        unit: String,
        /// Whether none of its packets passes.
        blocked: bool,
    },
}

/// The answer to the [`Request`] of the same name, or an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "response", content = "value")]
pub enum Response {
    /// Answer to [`Request::Node`].
    Node(Node),
    /// Answer to [`Request::Info`].
    Info(Info),
    /// Answer to [`Request::Ledger`].
    Ledger(Ledgers),
    /// Answer to [`Request::Flows`].
    Flows(Flows),
    /// Answer to [`Request::Units`].
    Units(Units),
    /// Answer to [`Request::Events`].
    Events(Vec<Event>),
    /// Answer to [`Request::Source`], [`Request::SetSource`] and [`Request::SetDefaultPolicy`]: how things are now.
    Source(SourceStatus),
    /// Answer to [`Request::Rules`].
    Rules(Rules),
    /// Answer to [`Request::Unit`] and [`Request::SetBlocked`].
    Unit(UnitReport),
    /// Answer to [`Request::Policies`].
    Policies(Policies),
    /// Answer to [`Request::Quotas`].
    Quotas(Quotas),
    /// Answer to [`Request::Explain`].
    Explain(Explained),
    /// The request failed.
    Error(Error),
}

/// Why a request, or a connection, was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
pub enum Error {
    /// The first frame was not a [`Hello`] of this protocol.
    #[error("this is not the netams protocol")]
    NotNetams,
    /// Both sides speak netams, in different versions.
    #[error(
        "version mismatch: daemon speaks protocol {daemon}, client {client}; install the same release of both"
    )]
    Version {
        /// Protocol version of the daemon.
        daemon: u32,
        /// Protocol version of the client.
        client: u32,
    },
    /// Too many clients at once; try again.
    #[error("the daemon already serves its limit of {0} connections; try again")]
    Busy(u32),
    /// The peer's user may not do this.
    #[error("permission denied: {0}")]
    Denied(String),
    /// The request cannot be understood or names something that does not exist.
    #[error("{0}")]
    Invalid(String),
    /// What the request needs could not be had, for this reason; everything is as it was before.
    #[error("{0}; nothing has changed")]
    Failed(String),
    /// What the request needs could not be had, and neither could what was there before.
    #[error("{0}")]
    Broken(String),
    /// The store cannot answer now.
    #[error("store: {0}")]
    Store(String),
    /// The daemon is shutting down.
    #[error("the daemon is shutting down")]
    Closing,
}

/// The daemon seen as a netgraph node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Node name, without the colon.
    pub name: String,
    /// Node type.
    pub kind: String,
    /// Node id, shown in hexadecimal.
    pub id: u32,
    /// Version of the daemon.
    pub version: String,
    /// When the daemon started, milliseconds UTC since 1970.
    pub started_ms: i64,
    /// Where packets are taken from, in order of interface and direction.
    pub hooks: Vec<Hook>,
}

/// One attachment of the kernel program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub ifindex: u32,
    /// `ingress` or `egress`.
    pub direction: String,
    /// `tcx` or `clsact`.
    pub attach: String,
    /// Kernel id of the attached program.
    pub program_id: u32,
    /// Name of the attached program.
    pub program: String,
    /// 1 when our program sees packets before every other program of the hook.
    pub position: u32,
    /// Programs on the hook, ours included.
    pub programs: u32,
    /// Attached since, milliseconds UTC since 1970.
    pub since_ms: i64,
}

/// The historical answer; field order is the order in which `ngctl` prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Node id, shown in hexadecimal.
    pub id: u32,
    /// Wire packets that passed the ingress hooks, or came in through a queue.
    pub packets_in: u64,
    /// Wire packets that passed the egress hooks, or went out through a queue.
    pub packets_out: u64,
    /// 0 off, 1 tee, 2 divert.
    pub mode: u8,
    /// Log level: 0 info, 1 debug, 2 trace.
    pub debug: u8,
    /// Unidirectional flows, inner ones included, that are neither idle nor cut by the active timeout.
    pub active_flows: u64,
    /// Flow records since the store was created, inner ones included.
    pub total_flows: u64,
    /// 1 drop, 2 pass.
    pub default_policy: u8,
}

/// How flow records are selected and ordered. Unset fields select everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowQuery {
    /// Either side belongs to this unit.
    pub unit: Option<String>,
    /// The source is in this prefix.
    pub src: Option<IpNet>,
    /// The destination is in this prefix.
    pub dst: Option<IpNet>,
    /// Protocol number.
    pub proto: Option<u8>,
    /// Either port.
    pub port: Option<u16>,
    /// Flows that had packets at or after this time, milliseconds UTC since 1970.
    pub since_ms: Option<i64>,
    /// Which packets' flows; layers are never mixed.
    pub layer: Layer,
    /// Order, always largest or newest first.
    pub sort: FlowSort,
    /// At most this many.
    pub top: Option<u32>,
}

/// Which packet of a frame a flow is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The outermost one.
    #[default]
    Outer,
    /// The innermost one of a tunnel.
    Inner,
}

/// Order of flow records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowSort {
    /// Layer-3 bytes.
    #[default]
    Bytes,
    /// Wire packets.
    Packets,
    /// First packet.
    First,
    /// Last packet.
    Last,
}

/// The selected flow records and the totals of all that matched, also of those beyond `top`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// At most `top` records, in the order asked for.
    pub flows: Vec<Flow>,
    /// Records that matched.
    pub matched: u64,
    /// Wire packets of all that matched.
    pub packets: u64,
    /// Layer-3 bytes of all that matched.
    pub bytes: u64,
    /// Records that matched and are [`Flow::estimated`].
    pub estimated: u64,
    /// Why the newest counts are missing here: the store does not take them now. They are kept in the flow tables.
    pub stale: Option<String>,
}

/// One unidirectional flow record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// IP version, 4 or 6.
    pub version: u8,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Upper-layer protocol number.
    pub proto: u8,
    /// Source port, 0 where there is none.
    pub sport: u16,
    /// Destination port; ICMP: type * 256 + code.
    pub dport: u16,
    /// Outer VLAN id, 0 where there is none.
    pub vlan: u16,
    /// Inner VLAN id of QinQ, 0 where there is none.
    pub vlan_inner: u16,
    /// What is directly around the packets of an inner flow; none of an outer one.
    pub tunnel: Option<Tunnel>,
    /// Later fragments whose first fragment was not seen.
    pub fragment: bool,
    /// Some of its packets were inferred from super-packets whose segment size is not known: packets and bytes are not
    /// exact.
    pub estimated: bool,
    /// First packet, milliseconds UTC since 1970.
    pub first_ms: i64,
    /// Last packet, milliseconds UTC since 1970.
    pub last_ms: i64,
    /// Wire packets.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
}

/// A tunnel around the packets of an inner flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// `ip`, `gre`, `vxlan`, `geneve`, `teredo` or `gtpu`.
    pub kind: String,
    /// GRE key, VNI or TEID; 0 where there is none.
    pub key: u32,
}

/// Packets and layer-3 bytes in both directions, seen from a unit: `in` is traffic to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InOut {
    /// Wire packets to the unit.
    pub in_packets: u64,
    /// Layer-3 bytes to the unit.
    pub in_bytes: u64,
    /// Wire packets from the unit.
    pub out_packets: u64,
    /// Layer-3 bytes from the unit.
    pub out_bytes: u64,
}

/// Totals of all configured units, in the order of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units {
    /// One entry a unit.
    pub units: Vec<UnitTotals>,
    /// Wire packets in the store that were inferred from super-packets whose segment size is not known; when this is 0, all
    /// totals are exact.
    pub estimated: u64,
    /// Why the newest counts are missing here: the store does not take them now. They are kept in the flow tables.
    pub stale: Option<String>,
}

/// What one unit has used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitTotals {
    /// Unit name.
    pub name: String,
    /// `host`, `user`, `net`, `cluster` or `group`.
    pub kind: String,
    /// Since local midnight.
    pub today: InOut,
    /// Since the first of the local month.
    pub month: InOut,
    /// Since the store was created.
    pub total: InOut,
    /// Dropped by verdicts since the store was created: in none of the counts above.
    pub dropped: InOut,
    /// None of its packets passes: the administrator has blocked it.
    pub blocked: bool,
    /// None of its packets passes: it is over a hard quota.
    pub over_quota: bool,
}

/// Something the administrator should know of, kept in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, milliseconds UTC since 1970.
    pub time_ms: i64,
    /// Short name of the kind, for instance `hook_replaced`.
    pub kind: String,
    /// One sentence.
    pub detail: String,
    /// Packets that passed meanwhile, by the interfaces' own counters.
    pub missed: u64,
}
