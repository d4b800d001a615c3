//! Packets that carry another one are counted in a flow of each layer, or in none.

use std::{collections::BTreeMap, fs};

use super::*;
use crate::{flow::FlowDelta, packet::inner};

/// A packet of 48 bytes from `172.16.x.x` with one of 28 bytes from `10.x.x.x` in it.
fn carrier(outer: u32, inner: u32) -> Vec<u8> {
    ipv4(0xac10_0000 + outer, 4, 0, &datagram(inner))
}

fn count(part: &mut Partition, bytes: &[u8], segments: Segments) {
    let parsed = parse(bytes);
    let Parsed::Ip(outer) = &parsed else { panic!("not IP") };
    let inner = inner(bytes, bytes.len() as u32, Gso::NONE, outer);
    part.count(&parsed, inner.as_ref(), Way::In, segments, 0);
}

/// Tables for `10.0.0.0/8` and `172.16.0.0/12`, and their only part.
fn open(dir: &Path, geometry: Geometry, tunnels: Tunnels) -> (Tables, Partition) {
    let prefixes = [prefix(Scope::ANY, [10, 0, 0, 0], 104), prefix(Scope::ANY, [172, 16, 0, 0], 108)];
    shared::create(dir, geometry, 7, 9, tunnels, &prefixes).unwrap();
    let tables = shared::open(dir).unwrap().unwrap();
    let part =
        Partition::open(dir, geometry, 0, SEED, Some(Judge::new(|key| key.src.octets()[15] != 255))).unwrap();
    (tables, part)
}

/// What of a flow is looked at here: its layer, last byte of the source, carrier, estimated, fragment, packets, bytes.
fn seen(flow: &FlowDelta) -> (Layer, u8, bool, bool, bool, u64, u64) {
    let layer = if flow.key.tunnel.is_some() { Layer::Inner } else { Layer::Outer };
    let [.., source] = flow.key.src.octets();
    (layer, source, flow.carrier, flow.estimated, flow.key.fragment, flow.packets, flow.bytes)
}

fn flows(batch: &Batch) -> Vec<(Layer, u8, bool, bool, bool, u64, u64)> {
    let mut flows: Vec<_> = batch.flows.iter().map(seen).collect();
    flows.sort_by_key(|flow| (flow.0 == Layer::Inner, flow.1, flow.2, flow.3, flow.4));
    flows
}

#[test]
fn a_carrier_is_in_a_flow_of_each_layer_where_inner_flows_are_accounted() {
    for tunnels in [Tunnels::Outer, Tunnels::Inner, Tunnels::Charged] {
        let with_inner = tunnels != Tunnels::Outer;
        let dir = tempfile::tempdir().unwrap();
        let (mut tables, mut part) = open(dir.path(), geometry(1, 16, 64), tunnels);
        part.enter();
        for (segments, packets) in [(Segments::Known, 2), (Segments::Estimated, 3)] {
            (0..packets).for_each(|_| count(&mut part, &carrier(1, 2), segments));
        }
        // Judged by the layer that units are charged by.
        let refused = if tunnels == Tunnels::Charged { carrier(1, 255) } else { carrier(255, 2) };
        (0..4).for_each(|_| count(&mut part, &refused, Segments::Known));
        count(&mut part, &datagram(3), Segments::Known);
        part.leave();
        let batch = drain(&mut tables);
        let mut expected = vec![
            (Layer::Outer, 1, with_inner, false, false, 2, 2 * 48),
            (Layer::Outer, 1, with_inner, true, false, 3, 3 * 48),
            (Layer::Outer, 3, false, false, false, 1, 28),
        ];
        if with_inner {
            expected.push((Layer::Inner, 2, false, false, false, 2, 2 * 28));
            expected.push((Layer::Inner, 2, false, true, false, 3, 3 * 28));
        }
        assert_eq!(flows(&batch), expected, "{tunnels:?}");
        let dropped: Vec<_> = batch.dropped.iter().map(seen).collect();
        let source = if tunnels == Tunnels::Charged { 1 } else { 255 };
        assert_eq!(dropped, [(Layer::Outer, source, with_inner, false, false, 4, 4 * 48)]);
        let counters = batch.counters;
        assert_eq!((counters.estimated, counters.dropped, counters.unexplained()), (3, 4, 0));
    }
}

#[test]
fn two_flows_of_a_packet_never_get_the_same_place() {
    let dir = tempfile::tempdir().unwrap();
    let (mut tables, mut part) = open(dir.path(), geometry(1, 1, 1), Tunnels::Inner);
    for round in 0..50 {
        // One set and as many entries of the second level: full to the last one.
        let sources: Vec<u32> = (0..4).map(|i| round * 4 + i).collect();
        for _ in 0..2 {
            part.enter();
            sources.iter().for_each(|source| count(&mut part, &carrier(*source, *source), Segments::Known));
            part.leave();
        }
        let batch = drain(&mut tables);
        let outer = sources.iter().map(|i| (Layer::Outer, *i as u8, true, false, false, 2, 2 * 48));
        let inner = sources.iter().map(|i| (Layer::Inner, *i as u8, false, false, false, 2, 2 * 28));
        assert_eq!(flows(&batch), outer.chain(inner).collect::<Vec<_>>(), "round {round}");
        assert_eq!((batch.counters.spilled, batch.counters.overflow_packets), (8, 0));
    }
}

#[test]
fn units_are_charged_for_overflow_by_one_layer() {
    for tunnels in [Tunnels::Inner, Tunnels::Charged] {
        let dir = tempfile::tempdir().unwrap();
        let (mut tables, mut part) = open(dir.path(), geometry(1, 1, 1), tunnels);
        part.enter();
        // These fill the tables.
        count(&mut part, &carrier(0, 0), Segments::Known);
        (1..=6).for_each(|source| count(&mut part, &datagram(source), Segments::Known));
        let mut more =
            |packets: u32, bytes: &[u8]| (0..packets).for_each(|_| count(&mut part, bytes, Segments::Known));
        more(1, &carrier(0, 100));
        more(2, &carrier(100, 0));
        more(4, &carrier(100, 100));
        more(8, &datagram(100));
        part.leave();
        let batch = drain(&mut tables);
        let c = &batch.counters;
        assert_eq!((c.overflow_packets, c.overflow_bytes), (2 + 4 + 8, (2 + 4) * 48 + 8 * 28));
        assert_eq!((c.inner_overflow_packets, c.inner_overflow_bytes), (1 + 4, (1 + 4) * 28));
        assert_eq!((c.flow_packets, c.inner_packets, c.unexplained()), (7 + 1, 1 + 2, 0));
        let cells: BTreeMap<_, _> = batch
            .overflow
            .iter()
            .map(|cell| (cell.address.octets()[12], (cell.counts.out_packets, cell.counts.out_bytes)))
            .collect();
        let expected: &[_] = if tunnels == Tunnels::Charged {
            &[(10, (1 + 4 + 8, (1 + 4 + 8) * 28))]
        } else {
            &[(10, (8, 8 * 28)), (172, (2 + 4, (2 + 4) * 48))]
        };
        assert_eq!(cells, expected.iter().copied().collect(), "{tunnels:?}");
    }
}

#[test]
fn each_layer_joins_its_own_fragments() {
    const FIRST: u16 = 0x2000;
    const LATER: u16 = 1;
    const PORTS: [u8; 8] = [0, 1, 0, 2, 0, 8, 0, 0];
    let dir = tempfile::tempdir().unwrap();
    let (mut tables, mut part) = open(dir.path(), geometry(1, 16, 64), Tunnels::Inner);
    let (outer, inner) = (0xac10_0000, 0x0a00_0000);
    part.enter();
    // The outer packet is in fragments: what is inside shows in the first one alone.
    count(&mut part, &ipv4(outer + 1, 4, FIRST, &datagram(1)), Segments::Known);
    count(&mut part, &ipv4(outer + 1, 4, LATER, &[0; 8]), Segments::Known);
    // The inner one is.
    for fragment in [FIRST, LATER] {
        let packet = ipv4(inner + 2, 17, fragment, &PORTS);
        count(&mut part, &ipv4(outer + 2, 4, 0, &packet), Segments::Known);
    }
    // A first fragment of the same packet, seen in the outer layer, does not count.
    count(&mut part, &ipv4(inner + 3, 17, FIRST, &PORTS), Segments::Known);
    count(&mut part, &ipv4(outer + 3, 4, 0, &ipv4(inner + 3, 17, LATER, &PORTS)), Segments::Known);
    part.leave();
    let batch = drain(&mut tables);
    assert_eq!(
        flows(&batch),
        [
            (Layer::Outer, 1, false, false, false, 1, 28),
            (Layer::Outer, 1, true, false, false, 1, 48),
            (Layer::Outer, 2, true, false, false, 2, 2 * 48),
            (Layer::Outer, 3, false, false, false, 1, 28),
            (Layer::Outer, 3, true, false, false, 1, 48),
            (Layer::Inner, 1, false, false, false, 1, 28),
            (Layer::Inner, 2, false, false, false, 2, 2 * 28),
            (Layer::Inner, 3, false, false, true, 1, 28),
        ]
    );
    assert_eq!(batch.counters.fragments, 0, "those of the outer layer alone");
}

#[test]
fn a_kill_leaves_a_carrier_in_both_layers_or_in_none() {
    let carry = |part: &mut Partition, source| count(part, &carrier(source % 7, source), Segments::Known);
    for Batch { counters: c, .. } in after_kills(Tunnels::Charged, carry) {
        assert_eq!((c.queued, c.unexplained()), (c.packets_in, 0), "{c:?}");
        assert_eq!(c.flow_bytes + c.overflow_bytes, c.queued * 48, "{c:?}");
        assert_eq!(c.inner_packets + c.inner_overflow_packets, c.queued, "{c:?}");
        assert_eq!(c.inner_bytes + c.inner_overflow_bytes, c.queued * 28, "{c:?}");
    }
}

/// Whichever of the tables a change had come to when it was cut short, the next daemon finishes it everywhere.
#[test]
fn a_change_of_both_layers_that_was_cut_short_is_finished() {
    const TABLES: [&str; 4] = ["counters", "flows", "spill", "overflow"];
    /// Second word of a journal.
    const OPEN: usize = 8;
    let read = |dir: &Path| TABLES.map(|name| fs::read(dir.join(name)).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (_tables, mut part) = open(dir.path(), geometry(1, 1, 1), Tunnels::Charged);
    // First in slots, then in the second level, then in cells; the last one has a flow for its outer packet alone.
    for (outer, inner) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (0, 5)] {
        let before = read(dir.path());
        part.enter();
        count(&mut part, &carrier(outer, inner), Segments::Known);
        part.leave();
        let after = read(dir.path());
        assert_ne!(before, after);
        let mut journal = fs::read(dir.path().join("journals")).unwrap();
        journal[OPEN] = 1;
        for done in 0..1 << TABLES.len() {
            let cut = tempfile::tempdir().unwrap();
            for name in ["control", "prefixes"] {
                fs::copy(dir.path().join(name), cut.path().join(name)).unwrap();
            }
            fs::write(cut.path().join("journals"), &journal).unwrap();
            for (i, name) in TABLES.iter().enumerate() {
                let table = if done & 1 << i == 0 { &before[i] } else { &after[i] };
                fs::write(cut.path().join(name), table).unwrap();
            }
            drop(shared::open(cut.path()).unwrap().unwrap());
            assert!(read(cut.path()) == after, "inner {inner}, tables {done:#b}");
        }
    }
}
