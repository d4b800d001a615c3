//! What the daemon of a small gateway would say.

use netams_proto::{
    Error, Event, ExplainQuery, Explained, ExplainedUnit, Flow, Flows, Hook, InOut, Info, Layer, Ledger,
    Ledgers, NfqueueStatus, Node, Part, Policies, PolicyUnit, Queue, QuotaUse, Quotas, Request, Response,
    Rule, Rules, SourceKind, SourceStatus, Terms, Tunnel, UnitReport, UnitTotals, Units, Verdict,
};

/// 2026-11-30 14:00:00 in Berlin.
pub const NOON: i64 = 1_796_043_600_000;
const HOUR: i64 = 3_600_000;

/// Counts by nfqueue since noon, before that by the kernel source.
pub fn gateway(request: Request) -> Response {
    match request {
        Request::Node => Response::Node(node()),
        Request::Info => Response::Info(Info {
            id: 0x3c5,
            packets_in: 85515,
            packets_out: 169_244,
            mode: 2,
            debug: 1,
            active_flows: 4,
            total_flows: 4,
            default_policy: 2,
        }),
        Request::Ledger => Response::Ledger(ledgers()),
        Request::Flows(query) if query.unit.as_deref() == Some("nobody") => {
            Response::Error(Error::Invalid("no unit `nobody`; `ngctl units` shows the names".into()))
        }
        Request::Flows(query) => {
            let mut answer = if query.layer == Layer::Inner { inner_flows() } else { flows() };
            answer.flows.truncate(query.top.unwrap_or(u32::MAX) as usize);
            Response::Flows(answer)
        }
        Request::Units => Response::Units(units()),
        Request::Events(top) => Response::Events(events().into_iter().take(top as usize).collect()),
        Request::Source => Response::Source(status(SourceKind::Nfqueue)),
        Request::SetSource(kind) => {
            Response::Source(SourceStatus { since_ms: NOON + 1000, switches: 2, ..status(kind) })
        }
        Request::SetDefaultPolicy(default_policy) => {
            Response::Source(SourceStatus { default_policy, ..status(SourceKind::Nfqueue) })
        }
        Request::Rules => Response::Rules(rules()),
        Request::Unit(name) if name != "server" => {
            Response::Error(Error::Invalid(format!("there is no unit `{name}`; configured are server")))
        }
        Request::Unit(_) => Response::Unit(unit(true)),
        Request::SetBlocked { blocked, .. } => Response::Unit(unit(blocked)),
        Request::Policies => Response::Policies(policies()),
        Request::Quotas(unit) => Response::Quotas(quotas(unit.as_deref())),
        Request::Explain(query) => Response::Explain(explained(&query)),
    }
}

/// The same gateway before anything was switched, on a machine without netfilter queues.
pub fn kernel_alone(request: Request) -> Response {
    let unswitched =
        SourceStatus { since_ms: NOON - HOUR, switches: 0, mode: "tee".into(), ..status(SourceKind::Kernel) };
    match request {
        Request::Ledger => {
            let Ledger { total, since_start, .. } = kernel_ledger();
            let kernel =
                Ledger { active: true, total, since_start, since_switch: since_start, ..kernel_ledger() };
            let nfqueue = Ledger { source: "nfqueue".into(), ..Ledger::default() };
            Response::Ledger(Ledgers { ledgers: vec![kernel, nfqueue], switched_ms: None, ..ledgers() })
        }
        Request::Source => Response::Source(unswitched),
        Request::SetSource(SourceKind::Nfqueue) => {
            Response::Error(Error::Failed("the kernel has no NFQUEUE target; load xt_NFQUEUE".into()))
        }
        Request::SetDefaultPolicy(default_policy) => {
            Response::Source(SourceStatus { default_policy, ..unswitched })
        }
        Request::Rules => Response::Rules(Rules::default()),
        other => gateway(other),
    }
}

fn node() -> Node {
    let hook = |interface: &str, ifindex, direction: &str, program: &str, position| Hook {
        interface: interface.into(),
        ifindex,
        direction: direction.into(),
        attach: "tcx".into(),
        program_id: 41 + ifindex,
        program: program.into(),
        position,
        programs: 2,
        since_ms: NOON,
    };
    Node {
        name: "netams".into(),
        kind: "netams".into(),
        id: 0x3c5,
        version: "0.1.0".into(),
        started_ms: NOON,
        hooks: vec![
            hook("eth0", 2, "egress", "netams_egress", 1),
            hook("eth0", 2, "ingress", "netams_ingress", 2),
        ],
    }
}

fn ledgers() -> Ledgers {
    Ledgers {
        ledgers: vec![kernel_ledger(), nfqueue_ledger()],
        started_ms: NOON - HOUR,
        switched_ms: Some(NOON),
        store_error: None,
    }
}

fn kernel_ledger() -> Ledger {
    let total = Terms {
        packets_in: 85515,
        packets_out: 169_244,
        already_counted: 1000,
        seen: 253_759,
        flow_packets: 253_700,
        flow_bytes: 1_258_291,
        overflow_packets: 9,
        overflow_bytes: 900,
        non_ip: 40,
        malformed: 10,
        missed: 17,
        ..Terms::default()
    };
    let since_start = Terms {
        packets_in: 500,
        packets_out: 700,
        already_counted: 100,
        seen: 1100,
        flow_packets: 1095,
        flow_bytes: 900_000,
        non_ip: 5,
        ..Terms::default()
    };
    Ledger {
        source: "kernel".into(),
        active: false,
        total,
        since_start,
        since_switch: Terms::default(),
        waiting: 0,
        commits: 12,
        last_commit_ms: NOON,
    }
}

fn nfqueue_ledger() -> Ledger {
    let total = Terms {
        packets_in: 60_000,
        packets_out: 4000,
        seen: 64_020,
        flow_packets: 63_900,
        flow_bytes: 91_000_000,
        dropped: 100,
        lost: 20,
        estimated: 120,
        reference: 30_025,
        queued: 30_000,
        queue_lost: 7,
        queue_full: 2,
        bypassed: 11,
        inner_packets: 14,
        inner_bytes: 1400,
        ..Terms::default()
    };
    Ledger {
        source: "nfqueue".into(),
        active: true,
        total,
        since_start: total,
        since_switch: total,
        waiting: 5,
        commits: 3,
        last_commit_ms: NOON + 1000,
    }
}

fn status(source: SourceKind) -> SourceStatus {
    let queue = |number, gso, waiting| Queue {
        number,
        gso,
        waiting,
        received: 15_000,
        lost: if gso { 7 } else { 0 },
        full: if gso { 0 } else { 2 },
        restarts: 0,
        since_ms: NOON,
    };
    let nfqueue = NfqueueStatus {
        backend: "iptables".into(),
        gso: "auto".into(),
        fail: "open".into(),
        offload: false,
        chains: ["forward", "input", "output"].map(str::to_owned).into(),
        waiting: 5,
        queues: vec![queue(2050, true, 5), queue(2051, false, 0)],
    };
    let idle = source == SourceKind::Off;
    SourceStatus {
        source,
        since_ms: NOON,
        switches: 1,
        mode: "divert".into(),
        default_policy: Verdict::Pass,
        packets_per_s: if idle { 0.0 } else { 1234.5 },
        bits_per_s: if idle { 0.0 } else { 12_345_678.0 },
        nfqueue: (source == SourceKind::Nfqueue).then_some(nfqueue),
    }
}

fn rules() -> Rules {
    let rule = |number, chain: &str, rule: &str, packets, queue| Rule {
        number,
        chain: chain.into(),
        rule: rule.into(),
        packets,
        bytes: packets * 1400,
        queue,
    };
    let handover = "-m mark --mark 0x800/0x800 -j MARK --set-xmark 0x0/0x800";
    let queue = |way: &str, number| format!("{way} eth0 -j NFQUEUE --queue-num {number} --queue-bypass");
    Rules {
        backend: "iptables".into(),
        rules: vec![
            rule(1, "NETAMS-FORWARD", handover, 3, false),
            rule(2, "NETAMS-FORWARD", &queue("-i", 2050), 30_025, true),
            rule(3, "NETAMS-OUTPUT", &queue("-o", 2051), 0, true),
        ],
    }
}

/// One with a key, one without.
fn inner_flows() -> Flows {
    let Flow { version, first_ms, last_ms, .. } = flows().flows[0];
    let flow = |vlan, kind: &str, key| Flow {
        version,
        src: "10.77.0.1".parse().unwrap(),
        dst: "10.77.0.2".parse().unwrap(),
        proto: 6,
        sport: 443,
        dport: 50124,
        vlan,
        vlan_inner: 0,
        tunnel: Some(Tunnel { kind: kind.into(), key }),
        fragment: false,
        estimated: false,
        first_ms,
        last_ms,
        packets: 7,
        bytes: 700,
    };
    let flows = vec![flow(0, "vxlan", 42), flow(9, "ip", 0)];
    Flows { flows, matched: 2, packets: 14, bytes: 1400, estimated: 0, stale: None }
}

fn flows() -> Flows {
    let flow = |src: &str, sport, dst: &str, dport, proto, packets, bytes| Flow {
        version: if src.contains(':') { 6 } else { 4 },
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        proto,
        sport,
        dport,
        vlan: 0,
        vlan_inner: 0,
        tunnel: None,
        fragment: false,
        estimated: false,
        first_ms: NOON - 60_000,
        last_ms: NOON,
        packets,
        bytes,
    };
    let tagged = Flow { vlan: 10, vlan_inner: 20, ..flow("10.0.0.7", 0, "10.0.0.8", 0, 47, 3, 300) };
    let estimated = Flow {
        estimated: true,
        ..flow("2001:db8:aaaa:bbbb:cccc:dddd:eeee:1", 53, "2001:db8::2", 40000, 17, 12, 1500)
    };
    let fragment = Flow { fragment: true, ..flow("10.0.0.7", 0, "10.0.0.8", 0, 17, 2, 200) };
    Flows {
        flows: vec![
            flow("192.0.2.10", 443, "198.51.100.7", 50123, 6, 169_244, 1_258_291),
            estimated,
            tagged,
            fragment,
            flow("10.0.0.1", 0, "10.0.0.2", 8 * 256, 1, 1, 84),
        ],
        matched: 5,
        packets: 169_262,
        bytes: 1_260_375,
        estimated: 1,
        stale: None,
    }
}

fn units() -> Units {
    let used = |n| InOut { in_packets: n, in_bytes: n * 1000, out_packets: 2 * n, out_bytes: 2 * n * 1000 };
    let unit = |name: &str, kind: &str, n| UnitTotals {
        name: name.into(),
        kind: kind.into(),
        today: used(n),
        month: used(10 * n),
        total: used(100 * n),
        dropped: InOut::default(),
        blocked: kind == "host",
        over_quota: false,
    };
    let units = vec![unit("server", "host", 5), unit("all, and more", "group", 7)];
    Units { units, estimated: 12, stale: None }
}

fn unit(blocked: bool) -> UnitReport {
    let used = |n| InOut { in_packets: n, in_bytes: n * 1000, out_packets: 2 * n, out_bytes: 2 * n * 1000 };
    let part = |name: &str, n| Part { name: name.into(), today: used(n), month: used(n), total: used(3 * n) };
    let mut unit = units().units.remove(0);
    unit.blocked = blocked;
    UnitReport {
        unit,
        description: Some("room 7".into()),
        email: None,
        policies: vec![part("web", 4), part("mail", 1)],
        dropped: vec![part("blocked", 2)],
        stale: None,
    }
}

fn policies() -> Policies {
    let of = |policy| PolicyUnit { unit: "server".into(), policy };
    Policies { policies: unit(true).policies.into_iter().map(of).collect(), stale: None }
}

fn quotas(unit: Option<&str>) -> Quotas {
    let quota = |unit: &str, used, hard, state: &str| QuotaUse {
        unit: unit.into(),
        quota: "month sum".into(),
        used,
        limit: 20_000_000_000,
        warn: 80,
        hard,
        state: state.into(),
        start_ms: NOON - 30 * 24 * HOUR,
        end_ms: NOON + 10 * HOUR,
    };
    let mut quotas = vec![
        quota("student", 20_000_000_001, true, "over"),
        quota("server", 16_500_000_000, false, "warned"),
    ];
    quotas.retain(|quota| unit.is_none_or(|unit| quota.unit == unit));
    Quotas { quotas, stale: None }
}

fn explained(query: &ExplainQuery) -> Explained {
    let unit =
        |unit: &str, side: &str, says: &str, policy: Option<&str>, counted_by: &[&str]| ExplainedUnit {
            unit: unit.into(),
            side: side.into(),
            says: says.into(),
            policy: policy.map(Into::into),
            counted_by: counted_by.iter().map(|name| (*name).into()).collect(),
        };
    Explained {
        at_ms: query.at_ms.unwrap_or(NOON),
        verdict: Verdict::Drop,
        reason: "blocked".into(),
        enforced: query.proto == 6,
        units: vec![
            unit("student", "source", "pass", Some("!night"), &["web"]),
            unit("all", "source", "undecided", None, &[]),
            unit("server", "destination", "blocked", None, &["web", "mail"]),
        ],
    }
}

fn events() -> Vec<Event> {
    let event = |kind: &str, detail: &str, missed| Event {
        time_ms: NOON,
        kind: kind.into(),
        detail: detail.into(),
        missed,
    };
    vec![
        event("hook_replaced", "eth0 ingress: another program took our place; attached again", 17),
        event("start", "netamsd 0.1.0 started", 0),
    ]
}
