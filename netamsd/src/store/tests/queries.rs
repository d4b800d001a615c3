//! What readers are answered.

use super::*;
use crate::flow::Scope;
use crate::store::{EventRecord, FlowOrder, FlowRecord, StoreError};

/// A store with five flows, and the flows in order of their first packet.
fn sample(dir: &Path) -> Vec<FlowRecord> {
    let v6 = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let tcp6 = FlowKey {
        src: v6("2001:db8::1"),
        dst: v6("2001:db8::ffff"),
        sport: 40_000,
        dport: 443,
        vlan: 7,
        vlan_inner: 4094,
        tunnel: None,
        proto: 6,
        version: 6,
        fragment: false,
    };
    let fragment = FlowKey { sport: 0, dport: 0, fragment: true, ..key(3) };
    let deltas = [
        FlowDelta { estimated: true, ..delta(key(1), 1, 5000, T0, T0) },
        delta(key(2), 5, 400, T0 + 1, T0 + 900_000),
        delta(fragment, 4, 3000, T0 + 2, T0 + 2),
        delta(tcp6, 3, 200, T0 + 3, T0 + 3),
        delta(FlowKey { src: tcp6.dst, dst: tcp6.src, ..tcp6 }, 2, 1000, T0 + 4, T0 + 4),
    ];
    open(dir).commit(&batch(1, deltas.to_vec()), &[], T0).unwrap();
    deltas
        .map(|d| FlowRecord {
            key: d.key,
            first_ms: d.first_ms,
            last_ms: d.last_ms,
            packets: d.packets,
            bytes: d.bytes,
            estimated: d.estimated,
        })
        .to_vec()
}

#[test]
fn flows_come_back_as_they_were_selected_and_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let sample = sample(dir.path());
    let reader = Reader::open(dir.path()).unwrap();
    let any = FlowSelection::default();
    let (a, b) = (sample[0].key.src, sample[1].key.src);
    let tcp6 = sample[3].key;
    let all = (Ipv6Addr::UNSPECIFIED, Ipv6Addr::from_bits(u128::MAX));
    let [tagged, other] = [7, 8].map(|vlan| Scope { vlan, ..Scope::ANY });
    let last = FlowSelection { order: FlowOrder::Last, ..any.clone() };
    let cases = [
        ("bytes", any.clone(), vec![0, 2, 4, 1, 3]),
        ("packets", FlowSelection { order: FlowOrder::Packets, ..any.clone() }, vec![1, 2, 3, 4, 0]),
        ("first", FlowSelection { order: FlowOrder::First, ..any.clone() }, vec![4, 3, 2, 1, 0]),
        ("last", last.clone(), vec![1, 4, 3, 2, 0]),
        ("proto", FlowSelection { proto: Some(6), ..any.clone() }, vec![4, 3]),
        ("source port", FlowSelection { port: Some(40_000), ..any.clone() }, vec![4, 3]),
        ("destination port", FlowSelection { port: Some(53), ..any.clone() }, vec![0, 1]),
        ("src", FlowSelection { src: Some((a, b)), ..any.clone() }, vec![0, 1]),
        ("dst", FlowSelection { dst: Some((tcp6.dst, tcp6.dst)), ..any.clone() }, vec![3]),
        ("no unit", FlowSelection { unit: Some(vec![]), ..any.clone() }, vec![]),
        (
            "unit on either side",
            FlowSelection {
                unit: Some(vec![(Scope::ANY, vec![(tcp6.src, tcp6.src), (b, b)])]),
                ..any.clone()
            },
            vec![4, 1, 3],
        ),
        (
            "unit of a VLAN",
            FlowSelection { unit: Some(vec![(tagged, vec![all]), (other, vec![all])]), ..any.clone() },
            vec![4, 3],
        ),
        (
            "unit of another VLAN",
            FlowSelection { unit: Some(vec![(other, vec![all])]), ..any.clone() },
            vec![],
        ),
        ("since", FlowSelection { since_ms: Some(T0 + 4), ..last.clone() }, vec![1, 4]),
        ("since a time in a long flow", FlowSelection { since_ms: Some(T0 + 900_000), ..last }, vec![1]),
        ("since the future", FlowSelection { since_ms: Some(T0 + 900_001), ..any }, vec![]),
    ];
    for (name, selection, expected) in cases {
        let expected: Vec<_> = expected.into_iter().map(|n: usize| sample[n]).collect();
        let found = reader.flows(&selection).unwrap();
        assert_eq!(found.flows, expected, "{name}");
        assert_eq!(found.matched, expected.len() as u64, "{name}");
        let top = reader.flows(&FlowSelection { top: Some(1), ..selection }).unwrap();
        assert_eq!(top.flows, expected[..expected.len().min(1)], "{name}");
        assert_eq!(top.matched, found.matched, "{name}");
        assert_eq!(top.packets, expected.iter().map(|f| f.packets).sum::<u64>(), "{name}");
        assert_eq!(top.bytes, expected.iter().map(|f| f.bytes).sum::<u64>(), "{name}");
        assert_eq!(top.estimated, expected.iter().filter(|f| f.estimated).count() as u64, "{name}");
    }
}

#[test]
fn since_finds_a_record_that_is_longer_than_the_active_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let held_back = delta(key(1), 9, 900, T0, T0 + 40 * HOUR_MS);
    open(dir.path()).commit(&batch(1, vec![held_back]), &[], held_back.last_ms).unwrap();
    let selection = FlowSelection { since_ms: Some(held_back.last_ms), ..FlowSelection::default() };
    assert_eq!(Reader::open(dir.path()).unwrap().flows(&selection).unwrap().matched, 1);
}

#[test]
fn a_unit_is_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let count = |n| InOut { in_packets: n, in_bytes: n * 10, out_packets: n * 100, out_bytes: n * 1000 };
    let charge = |unit, hour_ms, n| UnitCharge { unit, account: Account::Traffic, hour_ms, counts: count(n) };
    let mut writer = Writer::open(dir.path(), config(&["a", "b"])).unwrap();
    let charges = [charge(0, T0, 1), charge(1, T0, 2), charge(0, T0, 4), charge(0, T0 + HOUR_MS, 8)];
    writer.commit(&batch(1, vec![]), &charges, T0).unwrap();
    drop(writer);

    let mut writer = Writer::open(dir.path(), config(&["c", "a"])).unwrap();
    writer.commit(&batch(2, vec![]), &[charge(1, T0 + HOUR_MS, 16)], T0).unwrap();
    let unknown = writer.commit(&batch(3, vec![]), &[charge(0, T0, 1), charge(2, T0, 1)], T0).unwrap_err();
    assert_eq!(unknown, StoreError::UnknownUnit { index: 2, known: 2 });
    assert!(!unknown.is_temporary());

    let reader = Reader::open(dir.path()).unwrap();
    let totals = |from_ms| -> Vec<_> {
        let totals = reader.unit_totals(from_ms).unwrap();
        totals.into_iter().map(|(name, counts)| format!("{name} {}", counts.in_packets)).collect()
    };
    assert_eq!(totals(None), ["a 29", "b 2", "c 0"]);
    assert_eq!(totals(Some(T0 + 1)), ["a 24", "b 0", "c 0"]);
    assert_eq!(reader.unit_totals(None).unwrap()[0], ("a".to_owned(), count(29)));
}

#[test]
fn events_come_newest_first_and_the_oldest_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    for n in 1..=3 {
        writer.record(Source::Kernel, "gap", &format!("event {n}"), n, T0 - n as i64).unwrap();
    }
    let reader = Reader::open(dir.path()).unwrap();
    let details = |n| reader.events(n).unwrap().into_iter().map(|e| e.detail).collect::<Vec<_>>();
    let expected = EventRecord { time_ms: T0 - 3, kind: "gap".into(), detail: "event 3".into(), missed: 3 };
    assert_eq!(reader.events(1).unwrap(), [expected]);
    assert_eq!(details(9), ["event 3", "event 2", "event 1"]);
    writer.connection().execute("UPDATE event SET id = 10001 WHERE id = 3", []).unwrap();
    writer.record(Source::Kernel, "gap", "event 4", 0, T0).unwrap();
    assert_eq!(details(9), ["event 4", "event 3"]);
    assert_eq!(writer.ledger(Source::Kernel).missed, 6);
}

#[test]
fn a_reader_sees_new_commits_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let reader = Reader::open(dir.path()).unwrap();
    for epoch in 1..=3 {
        writer.commit(&batch(epoch, vec![delta(key(1), 1, 1, T0, T0)]), &[], T0).unwrap();
        assert_eq!(reader.flows(&FlowSelection::default()).unwrap().packets, epoch);
    }
}

#[test]
fn layers_are_never_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let tunnel = |kind, key| Some(Tunnel { kind, key });
    let keys = [None, tunnel(Encapsulation::Gre, 0), tunnel(Encapsulation::Vxlan, u32::MAX)]
        .map(|tunnel| FlowKey { tunnel, ..key(1) });
    let flows: Vec<_> = (1..).zip(keys).map(|(n, key)| delta(key, n, 100 * n, T0, T0)).collect();
    open(dir.path()).commit(&batch(1, flows.clone()), &[], T0).unwrap();
    // A new start knows each of them again.
    open(dir.path()).commit(&batch(2, flows), &[], T0).unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    for (inner, expected, packets, bytes) in [(false, &keys[..1], 2, 200), (true, &keys[1..], 10, 1000)] {
        let order = FlowOrder::Bytes;
        let found = reader.flows(&FlowSelection { inner, order, ..FlowSelection::default() }).unwrap();
        let mut of: Vec<FlowKey> = found.flows.iter().map(|flow| flow.key).collect();
        of.reverse();
        assert_eq!(of, expected);
        assert_eq!((found.packets, found.bytes), (packets, bytes));
    }
}
