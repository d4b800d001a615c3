//! Tests of the store as a whole, and what they share.

mod crash;
mod failures;
mod queries;
mod speed;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::{FlowSelection, Flows, Ledger, Reader, RuleCounter, StoreConfig, StoreUnit, Writer};
use crate::flow::{
    Account, Batch, Counters, Encapsulation, FlowDelta, FlowKey, InOut, Source, Tunnel, UnitCharge,
};

const HOUR_MS: i64 = 3_600_000;
/// Some time in 2026, at a full hour.
const T0: i64 = 1_780_000_000_000 / HOUR_MS * HOUR_MS;
/// The identity of the tables in all batches here: a number that does not fit into a signed one.
const TABLE: u64 = 0xfedc_ba98_7654_3210;

/// A UDP flow from 10.0.0.0 + `n`.
pub(super) fn key(n: u32) -> FlowKey {
    FlowKey {
        src: Ipv4Addr::from(0x0a00_0000 + n).to_ipv6_mapped(),
        dst: Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped(),
        sport: (n % 65_536) as u16,
        dport: 53,
        vlan: 0,
        vlan_inner: 0,
        tunnel: None,
        proto: 17,
        version: 4,
        fragment: false,
    }
}

pub(super) fn delta(key: FlowKey, packets: u64, bytes: u64, first_ms: i64, last_ms: i64) -> FlowDelta {
    FlowDelta { key, estimated: false, carrier: false, packets, bytes, first_ms, last_ms }
}

/// A batch whose counters agree with its flows.
fn batch(epoch: u64, flows: Vec<FlowDelta>) -> Batch {
    let flow_packets = flows.iter().map(|f| f.packets).sum();
    let flow_bytes = flows.iter().map(|f| f.bytes).sum();
    let counters = Counters { packets_in: flow_packets, flow_packets, flow_bytes, ..Counters::default() };
    Batch { source: Source::Kernel, table: TABLE, epoch, flows, counters, ..Batch::default() }
}

/// What a unit that receives everything is charged for `batch`.
fn charges(batch: &Batch) -> Vec<UnitCharge> {
    let counts = InOut {
        in_packets: batch.counters.flow_packets,
        in_bytes: batch.counters.flow_bytes,
        ..InOut::default()
    };
    vec![UnitCharge { unit: 0, account: Account::Traffic, hour_ms: T0, counts }]
}

fn config(units: &[&str]) -> StoreConfig {
    StoreConfig {
        idle_timeout_s: 60,
        active_timeout_s: 1800,
        keep_flows_days: 30,
        units: units.iter().map(|&name| StoreUnit { name: name.into(), kind: "host".into() }).collect(),
        policies: vec!["web".into(), "mail".into()],
    }
}

fn open(dir: &Path) -> Writer {
    Writer::open(dir, config(&["all"])).unwrap()
}

fn all_flows(dir: &Path) -> Flows {
    Reader::open(dir).unwrap().flows(&FlowSelection::default()).unwrap()
}

/// Asserts that flow records, units and ledger agree with each other and with what was committed.
fn assert_totals(dir: &Path, writer: &Writer, packets: u64, bytes: u64) {
    let flows = all_flows(dir);
    assert_eq!((flows.packets, flows.bytes), (packets, bytes), "flow records");
    assert_eq!(flows.matched, writer.total_flows());
    let units = Reader::open(dir).unwrap().unit_totals(None).unwrap();
    assert_eq!((units[0].1.in_packets, units[0].1.in_bytes), (packets, bytes), "unit");
    let counters = &writer.ledger(Source::Kernel).counters;
    assert_eq!((counters.flow_packets, counters.flow_bytes), (packets, bytes), "ledger");
    assert_eq!(counters.lost(), 0);
}

#[test]
fn a_new_store_is_empty_and_has_an_identity_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let writer = open(dir.path());
    let id = writer.node_id();
    assert_ne!(id, 0);
    assert_eq!(writer.committed_epoch(TABLE), None);
    assert_eq!(writer.ledger(Source::Kernel).commits, 0);
    assert_totals(dir.path(), &writer, 0, 0);
    drop(writer);
    assert_eq!(open(dir.path()).node_id(), id);
}

#[test]
fn the_database_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    writer.commit(&batch(1, vec![delta(key(1), 1, 100, T0, T0)]), &[], T0).unwrap();
    let modes: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().permissions().mode() & 0o777)
        .collect();
    assert_eq!(modes, [0o600; 3], "database, WAL and index");
}

#[test]
fn an_epoch_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let first = batch(7, vec![delta(key(1), 2, 200, T0, T0)]);
    for _ in 0..3 {
        writer.commit(&first, &charges(&first), T0).unwrap();
    }
    assert_eq!(writer.committed_epoch(TABLE), Some(7));
    assert_eq!(writer.ledger(Source::Kernel).commits, 1);
    assert_totals(dir.path(), &writer, 2, 200);
    drop(writer);

    let mut writer = open(dir.path());
    let older = Batch { epoch: 6, ..first.clone() };
    writer.commit(&first, &charges(&first), T0).unwrap();
    writer.commit(&older, &charges(&older), T0).unwrap();
    assert_totals(dir.path(), &writer, 2, 200);
    let other_tables = Batch { table: 1, epoch: 1, ..first };
    writer.commit(&other_tables, &charges(&other_tables), T0).unwrap();
    assert_totals(dir.path(), &writer, 4, 400);
}

#[test]
fn a_flow_continues_its_record_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut epoch = 0;
    let mut commit = |writer: &mut Writer, first_ms, last_ms| {
        epoch += 1;
        writer.commit(&batch(epoch, vec![delta(key(1), 1, 100, first_ms, last_ms)]), &[], last_ms).unwrap();
    };
    commit(&mut writer, T0, T0 + 1000);
    commit(&mut writer, T0 + 2000, T0 + 5000);
    drop(writer);
    let mut writer = open(dir.path());
    assert_eq!(writer.active_flows(T0 + 5000), 1);
    commit(&mut writer, T0 + 50_000, T0 + 60_000);
    let flows = all_flows(dir.path());
    assert_eq!(flows.matched, 1);
    let flow = flows.flows[0];
    assert_eq!((flow.first_ms, flow.last_ms, flow.packets, flow.bytes), (T0, T0 + 60_000, 3, 300));

    commit(&mut writer, T0 + 120_001, T0 + 120_001);
    assert_eq!(writer.total_flows(), 2, "it was idle for longer than a minute");
    assert_eq!(writer.active_flows(T0 + 120_001), 1);
    assert_eq!(writer.active_flows(T0 + 180_002), 0);
}

#[test]
fn old_records_go_in_steps_and_hours_stay() {
    use std::time::Duration;
    let (day_ms, hour) = (24 * HOUR_MS, Duration::from_secs(3600));
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let old = batch(1, (0..2500).map(|n| delta(key(n), 1, 100, T0, T0)).collect());
    writer.commit_at(&old, &charges(&old), T0, Duration::ZERO).unwrap();

    let now_ms = T0 + 30 * day_ms;
    let uptime = Duration::from_secs(30 * 86_400);
    let mut left = |epoch, now_ms, uptime| {
        writer.commit_at(&batch(epoch, Vec::new()), &[], now_ms, uptime).unwrap();
        all_flows(dir.path()).matched
    };
    assert_eq!(left(2, now_ms, uptime), 2500, "thirty days are not over");
    assert_eq!(left(3, now_ms + 1, uptime), 1500);
    assert_eq!(left(4, now_ms + 300 * day_ms, uptime), 1500, "the clock jumped and decides nothing");
    assert_eq!(left(5, now_ms + 2, uptime), 1500, "nor when it has jumped back");
    assert_eq!(left(6, now_ms + 2 + HOUR_MS, uptime + hour), 500);
    assert_eq!(left(7, now_ms + 3 + HOUR_MS, uptime + hour), 0);
    assert_eq!(writer.total_flows(), 2500);
    assert_eq!(Reader::open(dir.path()).unwrap().unit_totals(None).unwrap()[0].1.in_packets, 2500);
}

#[test]
fn a_deleted_record_of_a_living_flow_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    writer.commit(&batch(1, vec![delta(key(1), 1, 100, T0, T0)]), &[], T0).unwrap();
    writer.connection().execute("DELETE FROM flow", []).unwrap();
    writer.commit(&batch(2, vec![delta(key(1), 2, 200, T0 + 5, T0 + 9)]), &[], T0).unwrap();
    writer.commit(&batch(3, vec![delta(key(1), 4, 400, T0 + 10, T0 + 11)]), &[], T0).unwrap();
    let flows = all_flows(dir.path());
    assert_eq!((flows.matched, flows.packets), (1, 6));
    assert_eq!(flows.flows[0].first_ms, T0 + 5);
}

/// A source's ledger is its own, and a new start does not take up flows of long ago.
#[test]
fn the_ledger_keeps_every_term_by_source() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let counters = Counters {
        packets_in: 1,
        packets_out: 2,
        already_counted: 3,
        flow_packets: 4,
        flow_bytes: 5,
        overflow_packets: 6,
        overflow_bytes: 7,
        non_ip: 8,
        malformed: 9,
        fragments: 10,
        spilled: 11,
        gso_headers_unknown: 12,
        estimated: 14,
        dropped: 15,
        reference: 16,
        queued: 17,
        queue_lost: 18,
        queue_full: 19,
        bypassed: 20,
        inner_packets: 21,
        inner_bytes: 22,
        inner_overflow_packets: 23,
        inner_overflow_bytes: 24,
    };
    let flows = vec![delta(key(1), 4, 5, T0 - 2 * HOUR_MS, T0 - 2 * HOUR_MS), delta(key(2), 0, 0, T0, T0)];
    for (n, source) in (1..).zip(Source::ALL) {
        let empty = Ledger { source, ..Ledger::default() };
        assert_eq!(writer.ledger(source), &empty, "before it has counted");
        let batch = Batch { source, table: n, counters, ..batch(1, flows.clone()) };
        writer.commit(&batch, &[], T0 + n as i64).unwrap();
        for _ in 0..n {
            writer.record(source, "hook_replaced", "eth0 lost its hook", 13, T0).unwrap();
        }
        let ledger = Ledger { counters, missed: n * 13, commits: 1, last_commit_ms: T0 + n as i64, ..empty };
        assert_eq!(writer.ledger(source), &ledger);
    }
    let ledgers = Source::ALL.map(|source| writer.ledger(source).clone());
    drop(writer);
    let writer = open(dir.path());
    assert_eq!(Source::ALL.map(|source| writer.ledger(source).clone()), ledgers);
    assert_eq!(writer.active_flows(T0), 1, "only the flow that is alive");
}

#[test]
fn a_flow_goes_on_in_its_record_when_another_source_counts_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let first = batch(1, vec![delta(key(1), 2, 200, T0, T0)]);
    writer.commit(&first, &charges(&first), T0).unwrap();
    let second = batch(1, vec![delta(key(1), 3, 300, T0 + 1000, T0 + 2000)]);
    let second = Batch { source: Source::Nfqueue, table: 1, ..second };
    writer.commit(&second, &charges(&second), T0 + 2000).unwrap();
    let flows = all_flows(dir.path());
    assert_eq!((flows.matched, flows.packets, flows.bytes), (1, 5, 500));
    let packets = Source::ALL.map(|source| writer.ledger(source).counters.flow_packets);
    assert_eq!(packets, [2, 3, 0]);
}

#[test]
fn a_batch_may_have_counters_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let counters = Counters { reference: 7, bypassed: 7, ..Counters::default() };
    for epoch in 1..=2 {
        let batch = Batch { source: Source::Nfqueue, counters, ..batch(epoch, Vec::new()) };
        for _ in 0..2 {
            writer.commit(&batch, &[], T0).unwrap();
        }
    }
    let found = writer.ledger(Source::Nfqueue);
    assert_eq!(found.counters, Counters { reference: 14, bypassed: 14, ..Counters::default() });
    assert_eq!((found.commits, found.counters.lost(), found.counters.unexplained()), (2, 14, 0));
    assert_eq!(writer.total_flows(), 0);
}

#[test]
fn a_record_is_estimated_from_its_first_estimated_delta_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut commit = |epoch, estimated: [bool; 2], at_ms| {
        let deltas = [1, 2].map(key).into_iter().zip(estimated);
        let deltas =
            deltas.map(|(key, estimated)| FlowDelta { estimated, ..delta(key, 1, 100, at_ms, at_ms) });
        writer.commit(&batch(epoch, deltas.collect()), &[], at_ms).unwrap();
        let flows = all_flows(dir.path());
        let records: Vec<_> = flows.flows.iter().rev().map(|flow| flow.estimated).collect();
        assert_eq!(flows.estimated, records.iter().filter(|&&estimated| estimated).count() as u64);
        records
    };
    assert_eq!(commit(1, [true, false], T0), [true, false], "of one batch");
    assert_eq!(commit(2, [false, false], T0 + 1), [true, false], "it stays so");
    assert_eq!(commit(3, [false, true], T0 + 2), [true, true]);
    assert_eq!(commit(4, [false, false], T0 + 100_000), [false, false, true, true], "new records");
}

fn rules(packets: u64) -> Vec<RuleCounter> {
    ["forward", "output"]
        .map(|name| RuleCounter { name: name.into(), packets, bytes: packets.wrapping_mul(100) })
        .into()
}

#[test]
fn counters_of_rules_are_written_with_what_they_count() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    assert_eq!(writer.last_rule_counters().unwrap(), []);
    writer.set_rule_counters(rules(1));
    assert_eq!(writer.last_rule_counters().unwrap(), [], "not yet");
    writer.record(Source::Nfqueue, "started", "queues are set up", 0, T0).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), rules(1), "by an event");
    writer.set_rule_counters(rules(u64::MAX));
    writer.commit(&batch(1, Vec::new()), &[], T0).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), rules(u64::MAX), "by a commit");
    drop(writer);

    let mut writer = open(dir.path());
    writer.commit(&batch(2, Vec::new()), &[], T0).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), rules(u64::MAX), "they stay until others are set");
    writer.set_rule_counters(Vec::new());
    writer.commit(&batch(3, Vec::new()), &[], T0).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), []);
    writer.keep_rule_counters(rules(2)).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), rules(2), "at once");
}
