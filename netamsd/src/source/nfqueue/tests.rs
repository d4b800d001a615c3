//! The flow cache in shared memory: nothing is counted twice or half, whoever dies when.

mod tunnels;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::{ForkResult, fork},
};

use super::{
    cache::{Partition, Segments, Way},
    shared::{self, Tables, spill_part},
};
use crate::{
    flow::{Batch, Counters, FlowKey, InOut, Layer, OverflowDelta, Prefix, Scope},
    packet::{ETHERTYPE_IPV4, Gso, Parsed, parse_ip},
    source::Judge,
    source::{Clock, Tunnels, tables::Geometry},
};

/// Added to a source, makes it one of 11.0.0.0/8, whose packets are dropped.
const DROPPED: u32 = 0x0100_0000;
const SEED: [u64; 8] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5896_89e4_9d5d_ab8b,
];

fn geometry(threads: u32, sets: u32, spill: u32) -> Geometry {
    Geometry { cpus: threads, sets, spill, classes: 4 }
}

fn prefixes() -> Vec<Prefix> {
    [([10, 0, 0, 0], 104), ([10, 1, 0, 0], 112)].map(|(net, len)| prefix(Scope::ANY, net, len)).to_vec()
}

fn prefix(scope: Scope, net: [u8; 4], len: u8) -> Prefix {
    Prefix { scope, address: mapped(net.into()), len }
}

fn mapped(address: Ipv4Addr) -> Ipv6Addr {
    address.to_ipv6_mapped()
}

/// An IPv4 packet to 192.0.2.1. `fragment` is the second half of the header's second word (RFC 791).
fn ipv4(source: u32, proto: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let len = 20 + payload.len() as u8;
    let mut bytes = vec![0x45, 0, 0, len, 0, 7, 0, 0, 64, proto, 0, 0];
    bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
    bytes.extend(source.to_be_bytes());
    bytes.extend([192, 0, 2, 1]);
    bytes.extend(payload);
    bytes
}

/// An IPv4 UDP packet of 28 bytes from `10.x.x.x`.
fn datagram(source: u32) -> Vec<u8> {
    ipv4(0x0a00_0000 + source, 17, 0, &[0; 8])
}

fn parse(bytes: &[u8]) -> Parsed {
    parse_ip(bytes, bytes.len() as u32, ETHERTYPE_IPV4, Gso::NONE)
}

fn packet(source: u32) -> Parsed {
    parse(&datagram(source))
}

fn make(dir: &Path, geometry: Geometry) -> Tables {
    shared::create(dir, geometry, 7, 9, Tunnels::Outer, &prefixes()).unwrap();
    shared::open(dir).unwrap().unwrap()
}

fn drain(tables: &mut Tables) -> Batch {
    tables.turn().unwrap();
    let batch = tables.read(&Clock::new(super::cache::stamp(), 1_000_000)).unwrap();
    tables.committed().unwrap();
    batch
}

fn sums(batches: &[Batch]) -> (Counters, HashMap<FlowKey, u64>, HashMap<Ipv6Addr, InOut>) {
    let (mut counters, mut flows, mut overflow) = (Counters::default(), HashMap::new(), HashMap::new());
    for batch in batches {
        counters.add(&batch.counters);
        batch.flows.iter().for_each(|flow| *flows.entry(flow.key).or_insert(0) += flow.packets);
        for delta in &batch.overflow {
            overflow.entry(delta.address).or_insert_with(InOut::default).add(&delta.counts);
        }
    }
    (counters, flows, overflow)
}

#[test]
fn every_packet_is_in_its_flow_or_in_overflow() {
    let dir = tempfile::tempdir().unwrap();
    let mut tables = make(dir.path(), geometry(2, 16, 64));
    let mut parts: Vec<_> = (0..2)
        .map(|thread| {
            let judge = Some(Judge::new(|key| key.src.octets()[12] != 11));
            Partition::open(dir.path(), tables.geometry(), thread, SEED, judge).unwrap()
        })
        .collect();
    let mut batches = Vec::new();
    for round in 0..3 {
        for source in 0..1000 {
            let part = &mut parts[source as usize % 2];
            part.enter();
            // Half of them in 10.0.0.0/16, the others in 10.1.0.0/16.
            let address = (source % 2) << 16 | source;
            let gap = u64::from(source == 5);
            assert!(part.count(&packet(address), None, Way::Through, Segments::Known, gap));
            assert!(!part.count(&packet(DROPPED | address), None, Way::In, Segments::Known, 0));
            part.leave();
        }
        if round != 1 {
            batches.push(drain(&mut tables));
        }
    }
    batches.push(drain(&mut tables));
    let (counters, flows, overflow) = sums(&batches);
    assert_eq!(batches.last().unwrap().counters, Counters::default());
    assert_eq!((counters.queued, counters.queue_lost, counters.dropped), (6000, 3, 3000));
    assert_eq!((counters.packets_in, counters.packets_out, counters.already_counted), (6000, 3000, 3000));
    assert_eq!((counters.lost(), counters.unexplained()), (3, 0));
    assert!(counters.spilled > 0 && counters.overflow_packets > 0, "{counters:?}");
    assert_eq!(flows.values().sum::<u64>(), counters.flow_packets);
    let by_prefix: u64 = overflow.values().map(|counts| counts.out_packets).sum();
    assert_eq!(by_prefix, counters.overflow_packets, "every source has a prefix");
    assert!(overflow.values().all(|counts| counts.in_packets == 0), "no destination has one");
    assert_eq!(overflow.len(), 2);
    assert_eq!(counters.flow_bytes + counters.overflow_bytes, 3000 * 28);
}

#[test]
fn both_sides_in_one_prefix_share_a_cell() {
    let dir = tempfile::tempdir().unwrap();
    let mut tables = make(dir.path(), geometry(1, 1, 1));
    let mut part = Partition::open(dir.path(), tables.geometry(), 0, SEED, None).unwrap();
    part.enter();
    for source in 0..100 {
        let Parsed::Ip(mut packet) = packet(source) else { panic!("not IP") };
        packet.key.dst = mapped(Ipv4Addr::new(10, 0, 9, 9)).octets();
        part.count(&Parsed::Ip(packet), None, Way::In, Segments::Known, 0);
    }
    part.leave();
    let batch = drain(&mut tables);
    let cell = batch.overflow[0].counts;
    assert_eq!(batch.overflow.len(), 1);
    assert_eq!(cell.in_packets, cell.out_packets);
    assert_eq!(cell.in_packets, batch.counters.overflow_packets);
    assert_eq!(u64::from(spill_part(tables.geometry())), batch.counters.spilled);
}

#[test]
fn overflow_is_counted_in_each_scope_that_a_packet_is_in() {
    let vlan = |vlan| Scope { vlan, ..Scope::ANY };
    let inner = Scope { vlan: 10, vlan_inner: 30, tunnel: None };
    let prefixes = [
        prefix(Scope::ANY, [0; 4], 0),
        prefix(vlan(10), [10, 0, 0, 0], 104),
        prefix(vlan(20), [10, 0, 0, 0], 104),
        prefix(inner, [192, 0, 2, 0], 120),
    ];
    let dir = tempfile::tempdir().unwrap();
    let geometry = Geometry { classes: 8, ..geometry(1, 1, 1) };
    shared::create(dir.path(), geometry, 7, 9, Tunnels::Charged, &prefixes).unwrap();
    let mut tables = shared::open(dir.path()).unwrap().unwrap();
    assert!(tables.is_for(Tunnels::Charged, &prefixes));
    assert!(!tables.is_for(Tunnels::Inner, &prefixes));
    assert!(!tables.is_for(Tunnels::Charged, &prefixes[1..]));
    let mut moved = prefixes;
    moved[1].scope.vlan = 11;
    assert!(!tables.is_for(Tunnels::Charged, &moved));

    let mut part = Partition::open(dir.path(), geometry, 0, SEED, None).unwrap();
    part.enter();
    let mut count = |source, vlan, vlan_inner| {
        let Parsed::Ip(mut packet) = packet(source) else { panic!("not IP") };
        (packet.key.vlan, packet.key.vlan_inner) = (vlan, vlan_inner);
        part.count(&Parsed::Ip(packet), None, Way::In, Segments::Known, 0);
    };
    // These fill the tables.
    (0..4 + 4).for_each(|source| count(source, 0, 0));
    for (vlan, vlan_inner, packets) in [(0, 0, 1), (10, 0, 2), (20, 0, 4), (10, 30, 8), (40, 30, 16)] {
        (0..packets).for_each(|_| count(1000, vlan, vlan_inner));
    }
    part.leave();
    let batch = drain(&mut tables);
    assert_eq!((batch.charged, batch.counters.overflow_packets), (Layer::Inner, 31));
    let cell = |prefix: &Prefix| {
        let same = |delta: &&OverflowDelta| (delta.scope, delta.address) == (prefix.scope, prefix.address);
        let found: Vec<_> = batch.overflow.iter().filter(same).map(|delta| delta.counts).collect();
        assert_eq!(found.len(), 1, "{prefix:?}");
        (found[0].in_packets, found[0].out_packets, found[0].in_bytes + found[0].out_bytes)
    };
    assert_eq!(
        prefixes.each_ref().map(cell),
        [(31, 31, 62 * 28), (0, 10, 10 * 28), (0, 4, 4 * 28), (8, 0, 8 * 28)]
    );
}

/// What tables have after a process was killed that counted one packet after another in them, at different moments.
fn after_kills(tunnels: Tunnels, count: impl Fn(&mut Partition, u32)) -> Vec<Batch> {
    let killed = |round: u64| {
        let dir = tempfile::tempdir().unwrap();
        let geometry = geometry(1, 16, 64);
        shared::create(dir.path(), geometry, 7, 9, tunnels, &prefixes()).unwrap();
        // SAFETY: the child uses memory that is mapped by itself and ends by a signal; it takes no lock of the parent's.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let mut part = Partition::open(dir.path(), geometry, 0, SEED, None).unwrap();
                for source in 0.. {
                    part.enter();
                    count(&mut part, source % 300);
                    part.leave();
                }
            }
            ForkResult::Parent { child } => {
                std::thread::sleep(Duration::from_micros(2_000 + round * 137));
                kill(child, Signal::SIGKILL).unwrap();
                waitpid(child, None).unwrap();
            }
        }
        let mut tables = shared::open(dir.path()).unwrap().unwrap();
        tables.recover(None).unwrap();
        drain(&mut tables)
    };
    let batches: Vec<_> = (0..40).map(killed).collect();
    assert!(batches.iter().any(|batch| batch.counters.queued > 0));
    batches
}

#[test]
fn a_kill_leaves_no_packet_half_counted() {
    let count = |part: &mut Partition, source| {
        part.count(&packet(source), None, Way::Out, Segments::Known, 0);
    };
    for Batch { counters, .. } in after_kills(Tunnels::Outer, count) {
        assert_eq!(counters.queued, counters.packets_out, "{counters:?}");
        assert_eq!(counters.unexplained(), 0, "{counters:?}");
        assert_eq!(counters.flow_bytes + counters.overflow_bytes, counters.queued * 28, "{counters:?}");
    }
}

#[test]
fn a_thread_that_panics_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut tables = make(dir.path(), geometry(1, 64, 64));
    let mut part = Partition::open(dir.path(), tables.geometry(), 0, SEED, None).unwrap();
    let panicked = std::thread::spawn(move || {
        part.enter();
        part.count(&packet(1), None, Way::In, Segments::Known, 0);
        panic!("as by a defect");
    });
    assert!(panicked.join().is_err());
    tables.grace_period().unwrap();
    assert_eq!(drain(&mut tables).counters.queued, 1);
}

#[test]
fn tables_that_were_never_completed_are_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(shared::open(dir.path()).unwrap().is_none());
    std::fs::write(dir.path().join("control"), [0; 8]).unwrap();
    assert!(shared::open(dir.path()).unwrap().is_none());
}

#[test]
fn a_file_that_was_cut_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(make(dir.path(), geometry(1, 16, 64)));
    let flows = std::fs::OpenOptions::new().write(true).open(dir.path().join("flows")).unwrap();
    flows.set_len(4096).unwrap();
    assert!(shared::open(dir.path()).is_err());
}
