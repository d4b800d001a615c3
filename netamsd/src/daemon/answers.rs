//! One small function a request.

use std::{path::PathBuf, sync::Arc};

use ipnet::IpNet;
use netams_proto::{
    Error, Event, Flow, FlowQuery, FlowSort, Flows, Hook, Info, Layer, Node, Request, Response, Tunnel,
};

use super::{snapshot::Snapshot, sources, units};
use crate::{
    config::{DataSource, DefaultPolicy, Mode, NfqueueConfig},
    flow::{Counters, mapped},
    policy::{Engine, UnitConfig},
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
    /// Whether verdicts are enforced.
    pub mode: Mode,
    /// How queues are set up.
    pub nfqueue: NfqueueConfig,
    /// 0 info, 1 debug, 2 trace.
    pub debug: u8,
    /// Configured units, in order.
    pub configured: Vec<UnitConfig>,
    /// The same, for lookups, and the policies.
    pub engine: Arc<Engine>,
    /// State folder.
    pub state: PathBuf,
}

/// Answers `request`. Blocks on the database for those that read it.
pub fn answer(context: &Arc<Context>, snapshot: Snapshot, request: Request) -> Response {
    let result = match request {
        Request::Node => Ok(Response::Node(node(context, snapshot))),
        Request::Info => Ok(Response::Info(info(context, &snapshot))),
        Request::Ledger => Ok(Response::Ledger(sources::ledgers(context, snapshot))),
        Request::Flows(query) => flows(context, snapshot, &query).map(Response::Flows),
        Request::Units => units::all(context, snapshot).map(Response::Units),
        // The meter has blocked it, or no longer does.
        Request::Unit(unit) | Request::SetBlocked { unit, .. } => {
            units::one(context, snapshot, &unit).map(Response::Unit)
        }
        Request::Policies => units::policies(context, snapshot).map(Response::Policies),
        Request::Quotas(unit) => units::quotas(context, snapshot, unit.as_deref()).map(Response::Quotas),
        Request::Explain(query) => Ok(Response::Explain(units::explain(context, &snapshot, &query))),
        Request::Events(most) => events(context, most).map(Response::Events),
        // The meter has done what was to be done.
        Request::Source | Request::SetSource(_) | Request::SetDefaultPolicy(_) => {
            Ok(Response::Source(sources::status(context, &snapshot)))
        }
        Request::Rules => Ok(Response::Rules(sources::rules(&snapshot))),
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
    let passed = |of: fn(&Counters) -> u64| snapshot.ledgers.iter().map(|ledger| of(&ledger.total.0)).sum();
    Info {
        id: context.id,
        packets_in: passed(|counters| counters.packets_in),
        packets_out: passed(|counters| counters.packets_out),
        mode: match (snapshot.active, context.mode) {
            (DataSource::Off, _) => 0,
            (_, Mode::Tee) => 1,
            (_, Mode::Divert) => 2,
        },
        debug: context.debug,
        active_flows: snapshot.active_flows,
        total_flows: snapshot.total_flows,
        default_policy: match snapshot.default_policy {
            DefaultPolicy::Drop => 1,
            DefaultPolicy::Pass => 2,
        },
    }
}

fn flows(context: &Context, snapshot: Snapshot, query: &FlowQuery) -> Result<Flows, Error> {
    let unit = match &query.unit {
        None => None,
        Some(name) => {
            Some(context.engine.units().ranges(name).ok_or_else(|| units::unknown(&context.engine, name))?)
        }
    };
    let selection = FlowSelection {
        unit,
        src: query.src.map(range),
        dst: query.dst.map(range),
        proto: query.proto,
        port: query.port,
        since_ms: query.since_ms,
        after: 0,
        inner: query.layer == Layer::Inner,
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
        estimated: found.estimated,
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
        tunnel: key.tunnel.map(|tunnel| Tunnel { kind: tunnel.kind.name().to_owned(), key: tunnel.key }),
        fragment: key.fragment,
        estimated: record.estimated,
        first_ms: record.first_ms,
        last_ms: record.last_ms,
        packets: record.packets,
        bytes: record.bytes,
    }
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

pub(super) fn reader(context: &Context) -> Result<Reader, Error> {
    Reader::open(&context.state).map_err(store)
}

pub(super) fn store(e: StoreError) -> Error {
    Error::Store(e.to_string())
}

/// First and last address of a prefix, v4-mapped for IPv4.
fn range(prefix: IpNet) -> AddressRange {
    match prefix {
        IpNet::V4(net) => (mapped(net.network().into()), mapped(net.broadcast().into())),
        IpNet::V6(net) => (mapped(net.network().into()), mapped(net.broadcast().into())),
    }
}
