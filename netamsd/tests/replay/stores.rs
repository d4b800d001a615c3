//! What a replay leaves in a store: records, units and the ledger, all by the clock of the capture.

use std::net::Ipv4Addr;
use std::path::Path;

use netamsd::flow::{InOut, Source};
use netamsd::store::{FlowOrder, FlowRecord, FlowSelection, Reader, StoreConfig, Writer};
use serde_json::json;

use crate::made::{Order, Shot, ethernet, udp, vxlan};
use crate::{Bench, document, stdout};

/// 2026-03-01 10:00 in UTC.
const TEN_MS: i64 = 1_772_359_200_000;
const LAN: [u8; 4] = [10, 0, 0, 1];
const FAR: [u8; 4] = [192, 0, 2, 1];

fn shot(time_ms: i64, frame: Vec<u8>) -> Shot {
    Shot { time_ms, frame }
}

/// Frames of one flow at these times, of 128 layer-3 bytes.
fn one_flow(times: &[i64]) -> Vec<u8> {
    let frame = ethernet(&[], &udp(LAN, FAR, [1000, 53], 100));
    let shots: Vec<_> = times.iter().map(|time_ms| shot(*time_ms, frame.clone())).collect();
    Order::BOTH[0].pcap_of(false, 1, &shots)
}

fn records(store: &Path) -> Vec<FlowRecord> {
    let selection = FlowSelection { order: FlowOrder::First, ..FlowSelection::default() };
    let mut flows = Reader::open(store).unwrap().flows(&selection).unwrap().flows;
    flows.reverse();
    flows
}

/// First and last packet, and packets, of each record.
fn spans(store: &Path) -> Vec<(i64, i64, u64)> {
    records(store).iter().map(|r| (r.first_ms, r.last_ms, r.packets)).collect()
}

fn units(store: &Path, from_ms: i64) -> Vec<(String, InOut)> {
    Reader::open(store).unwrap().unit_totals(Some(from_ms)).unwrap()
}

const UNITS: &str = "timezone = \"Asia/Kolkata\"
kernel.interfaces = []
[accounting]
keep_flows_days = 1
[[unit]]
name = \"lan\"
kind = \"net\"
addresses = [\"10.0.0.0/8\"]
";

fn keep(bench: &Bench, config: Option<&str>, capture: &[u8]) -> std::path::PathBuf {
    let (file, store) = (bench.file("made.pcap", capture), bench.path("store"));
    let mut arguments = vec!["--store", store.to_str().unwrap()];
    let config = config.map(|text| bench.file("netams.toml", text.as_bytes()));
    if let Some(config) = &config {
        arguments.extend(["--config", config.to_str().unwrap()]);
    }
    stdout(&bench.replay(&arguments, &file));
    store
}

#[test]
fn records_begin_and_end_by_the_clock_of_the_capture() {
    let bench = Bench::new();
    // A minute of silence is the idle timeout by default; a second more, and there is another record.
    let times = [0, 1, 60_001, 120_002].map(|ms| TEN_MS + ms);
    let store = keep(&bench, None, &one_flow(&times));
    assert_eq!(spans(&store), [(times[0], times[2], 3), (times[3], times[3], 1)]);
}

#[test]
fn a_clock_that_goes_back_loses_nothing() {
    let bench = Bench::new();
    // Across the end of a batch and back; then far off both ways.
    let times = [TEN_MS + 1, TEN_MS - 1, TEN_MS + 3, 0, 4_294_967_295_999, TEN_MS + 4];
    let store = keep(&bench, None, &one_flow(&times));
    let found = spans(&store);
    assert_eq!(found[..2], [(0, 0, 1), (TEN_MS - 1, TEN_MS + 3, 3)]);
    assert_eq!(found[2..], [(TEN_MS + 4, TEN_MS + 4, 1), (4_294_967_295_999, 4_294_967_295_999, 1)]);
}

#[test]
fn units_are_charged_in_the_hour_of_each_packet() {
    let bench = Bench::new();
    // Hours of Kolkata begin at half past ten in UTC; the packets are of one flow, a millisecond apart.
    let half_ms = TEN_MS + 30 * 60_000;
    let times = [half_ms - 2, half_ms - 1, half_ms, half_ms + 3_600_000, half_ms - 3_600_001];
    let store = keep(&bench, Some(UNITS), &one_flow(&times));
    let out = |packets: u64| InOut { out_packets: packets, out_bytes: packets * 128, ..InOut::default() };
    for (from_ms, packets) in [
        (i64::MIN, 5),
        (half_ms - 2 * 3_600_000, 5),
        (half_ms - 2 * 3_600_000 + 1, 4),
        (half_ms - 3_600_000, 4),
        (half_ms, 2),
        (half_ms + 1, 1),
        (half_ms + 3_600_000, 1),
        (half_ms + 3_600_001, 0),
    ] {
        assert_eq!(units(&store, from_ms), [("lan".to_owned(), out(packets))], "from {from_ms}");
    }
}

#[test]
fn the_text_has_totals_units_and_the_largest_flows() {
    let bench = Bench::new();
    let mut shots: Vec<_> =
        (0..20).map(|n| shot(TEN_MS, ethernet(&[], &udp(LAN, FAR, [n, 53], usize::from(n))))).collect();
    shots.push(shot(TEN_MS + 1000, ethernet(&[5, 6], &udp(FAR, LAN, [53, 7], 2000))));
    shots.push(shot(TEN_MS + 2000, vec![0; 60]));
    shots.push(shot(TEN_MS + 2000, ethernet(&[], &[0x45])));
    let file = bench.file("made.pcap", &Order::BOTH[0].pcap_of(false, 1, &shots));
    let config = bench.file("netams.toml", UNITS.as_bytes());
    let text = stdout(&bench.replay(&["--top", "2", "--config", config.to_str().unwrap()], &file));
    let expected = format!(
        "{}: 23 frames from 2026-03-01 15:30:00 to 2026-03-01 15:30:02 (Asia/Kolkata)
           packets
flows           21  2778 layer-3 bytes
non_ip           1  neither IPv4 nor IPv6
malformed        1  without a valid IP header
fragments        0  of flows: later ones whose first was not there

proto  source        destination   vlan  packets    bytes  last
udp    192.0.2.1:53  10.0.0.1:7    5.6         1  2.0 KiB  2026-03-01 15:30:01
udp    10.0.0.1:19   192.0.2.1:53              1     47 B  2026-03-01 15:30:00
outer: 2 of 21 flow records shown; sums of all 21: packets 21, bytes 2.7 KiB

unit  in packets  in bytes  out packets  out bytes
lan            1      2028           20        750
in: to the unit, out: from it; all that is in the store
",
        file.display()
    );
    assert_eq!(text, expected);
}

#[test]
fn an_inner_tag_is_shown_below_one_of_priority_alone() {
    let bench = Bench::new();
    let shots = [shot(TEN_MS, ethernet(&[0, 20], &udp(LAN, FAR, [1, 2], 0)))];
    let text = stdout(&bench.pipe(&[], Order::BOTH[0].pcap_of(false, 1, &shots)));
    let table: Vec<_> = text.lines().skip(7).take(2).collect();
    assert_eq!(
        table,
        [
            "proto  source      destination  vlan  packets  bytes  last",
            "udp    10.0.0.1:1  192.0.2.1:2  0.20        1   28 B  2026-03-01 10:00:00"
        ]
    );
}

#[test]
fn inner_flows_are_charged_where_the_configuration_says_so() {
    let bench = Bench::new();
    let inner = udp(LAN, [10, 0, 0, 2], [1, 2], 72);
    let outer = vxlan([10, 9, 9, 1], FAR, 7, &ethernet(&[3], &inner));
    let capture = Order::BOTH[0].pcap_of(false, 1, &[shot(TEN_MS, ethernet(&[], &outer))]);
    let charged = |config: String| {
        let bench = Bench::new();
        let store = keep(&bench, Some(&config), &capture);
        units(&store, i64::MIN).remove(0).1
    };
    let by_outer = InOut { out_packets: 1, out_bytes: outer.len() as u64, ..InOut::default() };
    let by_inner = InOut { in_packets: 1, in_bytes: 100, out_packets: 1, out_bytes: 100 };
    assert_eq!(charged(UNITS.to_owned()), by_outer);
    let tunnels = UNITS.replace("[accounting]", "kernel.tunnels = \"inner\"\n[accounting]");
    assert_eq!(charged(tunnels.clone()), by_outer);
    let charge = tunnels.replace("[accounting]", "[accounting]\ncharge = \"inner\"");
    assert_eq!(charged(charge.clone()), by_inner);
    for (vni, counts) in [(7, by_inner), (8, InOut::default())] {
        assert_eq!(charged(format!("{charge}vni = {vni}\nvlan = 3\n")), counts, "VNI {vni}");
    }
    let file = bench.file("made.pcap", &capture);
    let config = bench.file("netams.toml", tunnels.as_bytes());
    let document = document(&bench.replay(&["--json", "--config", config.to_str().unwrap()], &file));
    assert_eq!(document["inner"][0]["bytes"], 100, "as the configuration says, without --inner");
}

#[test]
fn the_document_adds_up_vlans_and_tunnels_and_records() {
    let bench = Bench::new();
    let mut shots = Vec::new();
    for (n, tags) in [&[][..], &[1], &[2], &[1, 2]].into_iter().enumerate() {
        for hour in 0..3 {
            let packet = udp(LAN, FAR, [1, 2], 72);
            shots.push(shot(TEN_MS + hour * 3_600_000, ethernet(tags, &packet)));
            shots.push(shot(TEN_MS, ethernet(tags, &vxlan(FAR, LAN, n as u32, &ethernet(&[], &packet)))));
        }
    }
    let file = bench.file("made.pcap", &Order::BOTH[1].pcap_of(true, 1, &shots));
    let found = document(&bench.replay(&["--json", "--inner"], &file));
    let flow = |src: &str, dst: &str, ports: [u16; 2], bytes: u64| {
        json!({ "ver": 4, "src": src, "dst": dst, "proto": 17, "sport": ports[0], "dport": ports[1],
                "packets": 12, "bytes": bytes })
    };
    let inner = flow("10.0.0.1", "192.0.2.1", [1, 2], 1200);
    let tunnel = flow("192.0.2.1", "10.0.0.1", [50_000, 4789], 12 * 150);
    assert_eq!(found["outer"], json!([inner.clone(), tunnel]));
    assert_eq!(found["inner"], json!([inner]));
}

#[test]
fn a_named_store_adds_up_replays_and_each_shows_its_own() {
    let bench = Bench::new();
    let file = bench.file("made.pcap", &one_flow(&[TEN_MS, TEN_MS + 1]));
    let (store, config) = (bench.path("a/new/store"), bench.file("netams.toml", UNITS.as_bytes()));
    let (named, config) = (store.to_str().unwrap(), config.to_str().unwrap());
    for run in 1..=3_u64 {
        let document = document(&bench.replay(&["--json", "--store", named, "--config", config], &file));
        assert_eq!((&document["frames"], &document["outer"][0]["packets"]), (&json!(2), &json!(2)));
        assert_eq!(spans(&store), vec![(TEN_MS, TEN_MS + 1, 2); run as usize]);
        assert_eq!(units(&store, i64::MIN)[0].1.out_packets, 2 * run);
    }
    let config = StoreConfig {
        idle_timeout_s: 60,
        active_timeout_s: 60,
        keep_flows_days: 0,
        units: Vec::new(),
        policies: Vec::new(),
    };
    let writer = Writer::open(&store, config).unwrap();
    let counters = writer.ledger(Source::Replay).counters;
    assert_eq!((counters.packets_in, counters.flow_packets, counters.unexplained()), (6, 6, 0));
    assert_eq!(writer.ledger(Source::Kernel).counters.packets_in, 0);
}

#[test]
fn more_flows_than_the_table_has_are_all_in_the_store() {
    let bench = Bench::new();
    let (flows, twice) = (270_000_u32, 1000);
    // The first ones again at the end, so that batches have flows in common.
    let packet = |n: u32| udp((0x0a00_0000 + n).to_be_bytes(), FAR, [1, 2], 0);
    let shots: Vec<_> = (0..flows).chain(0..twice).map(|n| shot(TEN_MS, packet(n))).collect();
    let file = bench.file("made.pcap", &Order::BOTH[0].pcap_of(false, 228, &shots));
    let document = document(&bench.replay(&["--json"], &file));
    let found = document["outer"].as_array().unwrap();
    assert_eq!(found.len(), flows as usize);
    for (n, flow) in (0..flows).zip(found) {
        let src = Ipv4Addr::from(0x0a00_0000 + n).to_string();
        let packets = if n < twice { 2 } else { 1 };
        assert_eq!((flow["src"].as_str(), &flow["packets"]), (Some(&*src), &json!(packets)));
    }
}
