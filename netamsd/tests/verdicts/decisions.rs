//! Decisions and accounts by configurations as users write them.

use std::net::{IpAddr, Ipv6Addr};

use netamsd::{
    config::Config,
    daemon,
    flow::{Account, Batch, FlowDelta, FlowKey, InOut, Source, UnitCharge},
    policy::{Engine, Side, UnitId, UnitSays, Verdict},
};

const HOUR_MS: i64 = 3_600_000;
/// 2023-11-15, a Wednesday, 12:00 UTC.
const NOON_MS: i64 = 1_700_049_600_000;

fn engine(text: &str) -> Engine {
    let text = format!("timezone = \"UTC\"\n{text}\n[kernel]\ninterfaces = []\n");
    let config = Config::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let engine = daemon::engine(&config).expect("a checked configuration");
    engine.tick(NOON_MS);
    engine
}

fn mapped(text: &str) -> Ipv6Addr {
    match text.parse().expect("an address") {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn flow(src: &str, dst: &str, proto: u8, dport: u16) -> FlowKey {
    FlowKey {
        src: mapped(src),
        dst: mapped(dst),
        sport: 40_000,
        dport,
        vlan: 0,
        vlan_inner: 0,
        tunnel: None,
        proto,
        version: 4,
        fragment: false,
    }
}

const UNITS: &str = "
    [[policy]]
    name = \"web\"
    proto = [\"tcp\"]
    port = [80, 443]
    [[policy]]
    name = \"by-day\"
    time = [\"8-20\"]
    [[unit]]
    name = \"listed\"
    kind = \"host\"
    addresses = [\"10.0.0.1\"]
    fw_policy = [\"web\"]
    [[unit]]
    name = \"open\"
    kind = \"host\"
    addresses = [\"10.0.0.2\"]
    [[unit]]
    name = \"strict\"
    kind = \"host\"
    addresses = [\"10.0.0.3\"]
    no_local_pass = true
    [[unit]]
    name = \"member\"
    kind = \"host\"
    addresses = [\"10.0.0.4\"]
    [[unit]]
    name = \"group\"
    kind = \"group\"
    members = [\"member\"]
    fw_policy = [\"!by-day\"]
";

#[test]
fn both_sides_must_pass_and_the_rest_is_by_default() {
    use Verdict::{ByDefault, ByPolicy, Pass};
    let others = "192.0.2.1";
    for (all, local, source, destination, port, verdict) in [
        // Neither is a unit.
        ("pass", "pass", others, others, 80, Pass),
        ("drop", "pass", others, others, 80, ByDefault),
        // One that has a list, either way.
        ("drop", "drop", "10.0.0.1", others, 443, Pass),
        ("pass", "pass", "10.0.0.1", others, 22, ByPolicy),
        ("pass", "pass", others, "10.0.0.1", 22, ByPolicy),
        // One without.
        ("drop", "pass", "10.0.0.2", others, 22, Pass),
        ("pass", "drop", "10.0.0.2", others, 22, ByDefault),
        ("pass", "drop", "10.0.0.3", others, 22, Pass),
        ("drop", "pass", "10.0.0.3", others, 22, ByDefault),
        // A list on one side says nothing for the other.
        ("pass", "drop", "10.0.0.1", "10.0.0.2", 80, ByDefault),
        ("drop", "pass", "10.0.0.1", "10.0.0.2", 80, Pass),
        ("drop", "pass", "10.0.0.1", "10.0.0.2", 81, ByPolicy),
        // The group's list is its member's as well; it is noon.
        ("pass", "pass", "10.0.0.4", others, 80, ByPolicy),
    ] {
        let engine = engine(&format!("default_policy = {all:?}\nlocal_policy = {local:?}\n{UNITS}"));
        let key = flow(source, destination, 6, port);
        let what = format!("{all}, {local}: {source} to {destination}:{port}");
        assert_eq!(engine.verdict(&key, Source::Kernel), verdict, "{what}");
        assert_eq!(engine.explain(&key, Source::Kernel, NOON_MS).verdict, verdict, "{what}");
    }
}

#[test]
fn the_strongest_reason_is_told() {
    let engine = engine(UNITS);
    let key = flow("10.0.0.1", "10.0.0.4", 6, 80);
    assert_eq!(engine.verdict(&key, Source::Kernel), Verdict::ByPolicy);
    assert!(engine.set_over_quota(&[true]) && !engine.set_over_quota(&[true]));
    assert_eq!(engine.verdict(&key, Source::Kernel), Verdict::ByQuota);
    assert!(engine.set_blocked(UnitId(3), true) && !engine.set_blocked(UnitId(3), true));
    assert_eq!(engine.verdict(&key, Source::Kernel), Verdict::Blocked);
    assert_eq!(engine.blocked(), [false, false, false, true, false]);
    engine.set_blocked(UnitId(3), false);
    engine.set_over_quota(&[false]);
    assert_eq!(engine.verdict(&key, Source::Kernel), Verdict::ByPolicy);
    engine.tick(NOON_MS + 9 * HOUR_MS);
    assert_eq!(engine.verdict(&key, Source::Kernel), Verdict::Pass, "at nine in the evening");
    assert_eq!(engine.next_change(NOON_MS), Some(NOON_MS + 8 * HOUR_MS));
    let explained = engine.explain(&key, Source::Kernel, NOON_MS);
    assert_eq!(explained.verdict, Verdict::ByPolicy, "asked about noon");
    let says: Vec<_> = explained.units.iter().map(|unit| (unit.unit.0, unit.side, unit.says)).collect();
    assert_eq!(
        says,
        [
            (0, Side::Source, UnitSays::Pass(0)),
            (3, Side::Destination, UnitSays::Undecided { local: true }),
            (4, Side::Destination, UnitSays::Drop(Verdict::ByPolicy)),
        ]
    );
    assert_eq!(explained.units[0].policy.as_deref(), Some("web"));
}

fn delta(key: FlowKey, packets: u64, last_ms: i64) -> FlowDelta {
    let bytes = packets * 100;
    FlowDelta { key, estimated: false, carrier: false, packets, bytes, first_ms: last_ms - 1, last_ms }
}

#[test]
fn each_policy_of_a_list_counts_up_to_one_that_ends_it() {
    let engine = engine(
        "
        [[policy]]
        name = \"web\"
        port = [80]
        [[policy]]
        name = \"morning\"
        time = [\"6-12\"]
        [[policy]]
        name = \"local\"
        units = [\"b\"]
        [[unit]]
        name = \"a\"
        kind = \"host\"
        addresses = [\"10.0.0.1\"]
        acct_policy = [\"morning\", \"%local\", \"web\"]
        [[unit]]
        name = \"b\"
        kind = \"host\"
        addresses = [\"10.0.0.2\"]
        ",
    );
    let out = "192.0.2.1";
    let batch = Batch {
        flows: vec![
            delta(flow("10.0.0.1", out, 6, 80), 1, NOON_MS - 1),
            delta(flow("10.0.0.1", out, 6, 80), 2, NOON_MS),
            delta(flow(out, "10.0.0.1", 6, 22), 4, NOON_MS),
            delta(flow("10.0.0.1", "10.0.0.2", 6, 80), 8, NOON_MS),
        ],
        ..Batch::default()
    };
    let by_policy = |policy| {
        let its = |charge: &&UnitCharge| charge.account == Account::Policy(policy);
        let charges = engine.charge(&batch, NOON_MS);
        let its: Vec<_> =
            charges.iter().filter(its).map(|c| (c.unit, c.hour_ms - NOON_MS, c.counts)).collect();
        its
    };
    let from = |n| InOut { out_packets: n, out_bytes: n * 100, ..InOut::default() };
    assert_eq!(by_policy(1), [(0, -HOUR_MS, from(1))], "a flow is counted by when its last packet came");
    assert_eq!(by_policy(2), [(0, 0, from(8))]);
    assert_eq!(by_policy(0), [(0, -HOUR_MS, from(1)), (0, 0, from(2))]);
    let traffic: Vec<_> = engine
        .charge(&batch, NOON_MS)
        .into_iter()
        .filter(|charge| charge.account == Account::Traffic)
        .map(|charge| (charge.unit, charge.counts.in_packets, charge.counts.out_packets))
        .collect();
    assert_eq!(traffic, [(0, 0, 1), (0, 4, 10), (1, 8, 0)]);
}

#[test]
fn what_is_dropped_has_its_reason_also_after_a_change() {
    let engine = engine(UNITS);
    let key = flow("10.0.0.1", "192.0.2.1", 17, 53);
    let batch = Batch { dropped: vec![delta(key, 3, NOON_MS)], ..Batch::default() };
    let reason = || {
        let charges = engine.charge(&batch, NOON_MS);
        assert_eq!((charges.len(), charges[0].unit, charges[0].counts.out_packets), (1, 0, 3));
        charges[0].account
    };
    assert_eq!(reason(), Account::Dropped("policy"));
    engine.set_blocked(UnitId(0), true);
    assert_eq!(reason(), Account::Dropped("blocked"));
    engine.set_blocked(UnitId(0), false);
    // Of packets that no state of late has dropped it is not known any more.
    let passes =
        Batch { dropped: vec![delta(flow("10.0.0.2", "192.0.2.1", 17, 53), 1, NOON_MS)], ..Batch::default() };
    assert_eq!(engine.charge(&passes, NOON_MS)[0].account, Account::Dropped("changed"));
}
