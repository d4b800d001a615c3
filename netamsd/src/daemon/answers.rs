//! One small function a request.

use std::{net::Ipv6Addr, path::PathBuf, sync::Arc};

use ipnet::IpNet;
use netams_proto::{
    Error, Event, Flow, FlowQuery, FlowSort, Flows, Hook, InOut, Info, Ledger, Ledgers, Node, Request,
    Response, Rules, SourceKind, SourceStatus, Terms, UnitTotals, Units as UnitReport, Verdict,
};

use super::meter::Snapshot;
use crate::{
    flow::{self, Counters},
    policy::{UnitConfig, Units, Zone},
    source::unix_ms,
    store::{AddressRange, FlowOrder, FlowRecord, FlowSelection, Reader, StoreError},
};

/// Name and type of the node, as netgraph would show them.
pub const NODE: &str = "netams";

/// What answers need beside the meter's snapshot; it does not change while the daemon runs.
pub struct Context {
    /// Node id.
    pub id: u32,
    /// Milliseconds UTC since 1970.
    pub started_ms: i64,
    /// 0 off, 1 tee, 2 divert.
    pub mode: u8,
    /// 0 info, 1 debug, 2 trace.
    pub debug: u8,
    /// Configured units, in order.
    pub configured: Vec<UnitConfig>,
    /// The same, for lookups.
    pub units: Arc<Units>,
    /// Zone in which days are cut.
    pub zone: Zone,
    /// State folder.
    pub state: PathBuf,
    /// The kernel source's ledger when the daemon started.
    pub baseline: Terms,
}

/// Answers `request`. Blocks on the database for those that read it.
pub fn answer(context: &Arc<Context>, snapshot: Snapshot, request: Request) -> Response {
    let result = match request {
        Request::Node => Ok(Response::Node(node(context, snapshot))),
        Request::Info => Ok(Response::Info(info(context, &snapshot))),
        Request::Ledger => Ok(Response::Ledger(ledgers(context, snapshot))),
        Request::Flows(query) => flows(context, snapshot, &query).map(Response::Flows),
        Request::Units => units(context, snapshot).map(Response::Units),
        Request::Events(most) => events(context, most).map(Response::Events),
        Request::Source => Ok(Response::Source(source(context, &snapshot))),
        Request::SetSource(_) => Err(Error::Failed("only the kernel source is built in".to_owned())),
        Request::SetDefaultPolicy(_) => Err(Error::Failed("no source is built in that drops".to_owned())),
        Request::Rules => Ok(Response::Rules(Rules::default())),
    };
    result.unwrap_or_else(Response::Error)
}

fn node(context: &Context, snapshot: Snapshot) -> Node {
    let hook = |h: crate::source::kernel::HookInfo| Hook {
        interface: h.interface,
        ifindex: h.ifindex,
        direction: h.direction.name().to_owned(),
        attach: h.style.name().to_owned(),
        program_id: h.program_id,
        program: h.program.to_owned(),
        position: h.position,
        programs: h.programs,
        since_ms: h.since_ms,
    };
    let mut hooks: Vec<Hook> = snapshot.hooks.into_iter().map(hook).collect();
    hooks.sort_by(|a, b| (&a.interface, &b.direction).cmp(&(&b.interface, &a.direction)));
    Node {
        name: NODE.to_owned(),
        kind: NODE.to_owned(),
        id: context.id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: context.started_ms,
        hooks,
    }
}

fn info(context: &Context, snapshot: &Snapshot) -> Info {
    /// Nothing is dropped without a policy.
    const PASS: u8 = 2;
    Info {
        id: context.id,
        packets_in: snapshot.counters.packets_in,
        packets_out: snapshot.counters.packets_out,
        mode: context.mode,
        debug: context.debug,
        active_flows: snapshot.active_flows,
        total_flows: snapshot.total_flows,
        default_policy: PASS,
    }
}

fn ledgers(context: &Context, snapshot: Snapshot) -> Ledgers {
    let total = terms(&snapshot.counters, snapshot.missed);
    let since_start = total.since(&context.baseline);
    let kernel = Ledger {
        source: flow::Source::Kernel.name().to_owned(),
        active: context.mode != 0,
        total,
        since_start,
        since_switch: since_start,
        waiting: 0,
        commits: snapshot.commits,
        last_commit_ms: snapshot.last_commit_ms,
    };
    Ledgers {
        ledgers: vec![kernel],
        started_ms: context.started_ms,
        switched_ms: None,
        store_error: snapshot.trouble,
    }
}

/// A source's counters as the ledger's terms.
pub fn terms(c: &Counters, missed: u64) -> Terms {
    Terms {
        packets_in: c.packets_in,
        packets_out: c.packets_out,
        already_counted: c.already_counted,
        seen: c.seen(),
        flow_packets: c.flow_packets,
        flow_bytes: c.flow_bytes,
        overflow_packets: c.overflow_packets,
        overflow_bytes: c.overflow_bytes,
        non_ip: c.non_ip,
        malformed: c.malformed,
        dropped: c.dropped,
        lost: c.lost(),
        unexplained: c.unexplained(),
        missed,
        fragments: c.fragments,
        spilled: c.spilled,
        gso_headers_unknown: c.gso_headers_unknown,
        estimated: c.estimated,
        reference: c.reference,
        queued: c.queued,
        queue_lost: c.queue_lost,
        queue_full: c.queue_full,
        bypassed: c.bypassed,
    }
}

/// The kernel source alone, which has counted since the daemon's start or not at all.
fn source(context: &Context, snapshot: &Snapshot) -> SourceStatus {
    let counted = terms(&snapshot.counters, snapshot.missed).since(&context.baseline);
    let seconds = (unix_ms() - context.started_ms).max(1) as f64 / 1000.0;
    SourceStatus {
        source: if context.mode == 0 { SourceKind::Off } else { SourceKind::Kernel },
        since_ms: context.started_ms,
        switches: 0,
        mode: "tee".to_owned(),
        default_policy: Verdict::Pass,
        packets_per_s: counted.seen as f64 / seconds,
        bits_per_s: (counted.flow_bytes + counted.overflow_bytes) as f64 * 8.0 / seconds,
        nfqueue: None,
    }
}

fn flows(context: &Context, snapshot: Snapshot, query: &FlowQuery) -> Result<Flows, Error> {
    let unit = match &query.unit {
        None => None,
        Some(name) => Some(context.units.ranges(name).ok_or_else(|| unknown_unit(context, name))?),
    };
    let selection = FlowSelection {
        unit,
        src: query.src.map(range),
        dst: query.dst.map(range),
        proto: query.proto,
        port: query.port,
        since_ms: query.since_ms,
        order: match query.sort {
            FlowSort::Bytes => FlowOrder::Bytes,
            FlowSort::Packets => FlowOrder::Packets,
            FlowSort::First => FlowOrder::First,
            FlowSort::Last => FlowOrder::Last,
        },
        top: query.top,
    };
    let found = reader(context)?.flows(&selection).map_err(store)?;
    Ok(Flows {
        flows: found.flows.into_iter().map(flow).collect(),
        matched: found.matched,
        packets: found.packets,
        bytes: found.bytes,
        estimated: 0,
        stale: snapshot.trouble,
    })
}

fn flow(record: FlowRecord) -> Flow {
    let key = record.key;
    Flow {
        version: key.version,
        src: key.src_ip(),
        dst: key.dst_ip(),
        proto: key.proto,
        sport: key.sport,
        dport: key.dport,
        vlan: key.vlan,
        vlan_inner: key.vlan_inner,
        fragment: key.fragment,
        estimated: false,
        first_ms: record.first_ms,
        last_ms: record.last_ms,
        packets: record.packets,
        bytes: record.bytes,
    }
}

fn units(context: &Context, snapshot: Snapshot) -> Result<UnitReport, Error> {
    let reader = reader(context)?;
    let now = unix_ms();
    let since = |from| -> Result<std::collections::HashMap<String, flow::InOut>, Error> {
        Ok(reader.unit_totals(from).map_err(store)?.into_iter().collect())
    };
    let today = since(Some(context.zone.day_start(now)))?;
    let month = since(Some(context.zone.month_start(now)))?;
    let total = since(None)?;
    let of = |totals: &std::collections::HashMap<String, flow::InOut>, name: &str| {
        let counts = totals.get(name).copied().unwrap_or_default();
        InOut {
            in_packets: counts.in_packets,
            in_bytes: counts.in_bytes,
            out_packets: counts.out_packets,
            out_bytes: counts.out_bytes,
        }
    };
    let row = |unit: &UnitConfig| UnitTotals {
        name: unit.name.clone(),
        kind: unit.kind.as_str().to_owned(),
        today: of(&today, &unit.name),
        month: of(&month, &unit.name),
        total: of(&total, &unit.name),
    };
    Ok(UnitReport {
        units: context.configured.iter().map(row).collect(),
        estimated: snapshot.counters.estimated,
        stale: snapshot.trouble,
    })
}

fn events(context: &Context, most: u32) -> Result<Vec<Event>, Error> {
    let found = reader(context)?.events(most).map_err(store)?;
    let event = |e: crate::store::EventRecord| Event {
        time_ms: e.time_ms,
        kind: e.kind,
        detail: e.detail,
        missed: e.missed,
    };
    Ok(found.into_iter().map(event).collect())
}

fn reader(context: &Context) -> Result<Reader, Error> {
    Reader::open(&context.state).map_err(store)
}

fn store(e: StoreError) -> Error {
    Error::Store(e.to_string())
}

fn unknown_unit(context: &Context, name: &str) -> Error {
    let known = context.units.names().join(", ");
    let known =
        if known.is_empty() { "none is configured".to_owned() } else { format!("configured are {known}") };
    Error::Invalid(format!("there is no unit `{name}`; {known}"))
}

/// First and last address of a prefix, v4-mapped for IPv4.
fn range(prefix: IpNet) -> AddressRange {
    let mapped = |address: std::net::IpAddr| -> Ipv6Addr {
        match address {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            std::net::IpAddr::V6(v6) => v6,
        }
    };
    match prefix {
        IpNet::V4(net) => (mapped(net.network().into()), mapped(net.broadcast().into())),
        IpNet::V6(net) => (mapped(net.network().into()), mapped(net.broadcast().into())),
    }
}
