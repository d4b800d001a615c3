//! TCP inside tunnels through the router: outer and inner flows are those of the senders, to the packet and to the byte.

use netams_proto::Flow;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{CLIENT4, CLIENT6, Lab, Offloads};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::overlay::{DEVICE, INNER_CLIENT, INNER_SERVER, KINDS, Kind, has_device};
use netams_tests::require_live;
use netams_tests::tcp::{self, Transfer};
use netams_tests::truth::{Traffic, qdisc, qdisc_of};

const BYTES: u64 = 20_000_000;

/// Transfers through the tunnel with each version of IP that it carries, in both directions; what both ends have sent inside.
fn transfers(lab: &Lab, kind: &Kind, first_port: u16) -> [Traffic; 2] {
    let ends = [&lab.client, &lab.server];
    let inside = || ends.map(|end| qdisc_of(end, DEVICE, kind.header));
    let (before, outside) = (inside(), ends.map(qdisc));
    for (port, (version, reverse)) in (first_port..).zip([(4, false), (4, true), (6, false), (6, true)]) {
        if kind.carries.contains(&version) {
            let server = if version == 4 { INNER_SERVER.0.into() } else { INNER_SERVER.1.into() };
            tcp::run_to(lab, server, Transfer { port, bytes: BYTES, version, reverse });
        }
    }
    let after = inside();
    let sent = [after[0] - before[0], after[1] - before[1]];
    for i in [0, 1] {
        let outer = qdisc(ends[i]) - outside[i];
        assert_eq!(outer.packets, sent[i].packets, "nothing but the tunnel sends, {kind:?}");
    }
    sent
}

fn inner(daemon: &Daemon, client: bool) -> (Traffic, Vec<Flow>) {
    let (v4, v6) = if client { INNER_CLIENT } else { INNER_SERVER };
    let mut sum = Traffic::default();
    let mut found = Vec::new();
    for source in [format!("{v4}/32"), format!("{v6}/128")] {
        let flows = daemon.flows(&["--layer", "inner", "--src", &source]);
        sum += Traffic { packets: flows.packets, bytes: flows.bytes };
        found.extend(flows.flows);
    }
    (sum, found)
}

fn counts_exactly(kinds: &[&str], source: &str, offloads: Offloads) {
    for kind in KINDS.iter().filter(|kind| kinds.contains(&kind.device)) {
        if !has_device(kind.device) {
            continue;
        }
        let lab = Lab::with(offloads, 1500);
        let base = if source == "kernel" { Config::default() } else { Config::nfqueue("auto") };
        let daemon = Daemon::start(&lab.router, &Config { tunnels: "inner", ..base });
        kind.lay(&lab, offloads == Offloads::On);
        let sent = transfers(&lab, kind, 5400);
        let what = format!("{source}, offloads {offloads:?}, {kind:?}");
        let client = if kind.outer == 4 { format!("{CLIENT4}/32") } else { format!("{CLIENT6}/128") };
        let proto = kind.proto.to_string();
        let outer = Traffic { bytes: sent[0].bytes + kind.overhead * sent[0].packets, ..sent[0] };
        assert_eq!(flow_total(&daemon, &["--proto", &proto, "--src", &client]), outer, "outer, to the server, {what}");
        let outer = Traffic { bytes: sent[1].bytes + kind.overhead * sent[1].packets, ..sent[1] };
        assert_eq!(flow_total(&daemon, &["--proto", &proto, "--dst", &client]), outer, "outer, to the client, {what}");
        let mut both = Traffic::default();
        for (i, from_client) in [true, false].into_iter().enumerate() {
            let (counted, flows) = inner(&daemon, from_client);
            assert_eq!(counted, sent[i], "inner, from the client: {from_client}, {what}");
            assert!(!flows.is_empty());
            for flow in flows {
                let tunnel = flow.tunnel.as_ref().expect("the tunnel of an inner flow");
                assert_eq!((tunnel.kind.as_str(), tunnel.key), kind.shown, "{what}");
            }
            both += counted;
        }
        let ledger = daemon.ledger();
        assert_eq!((ledger.inner_packets, ledger.inner_bytes), (both.packets, both.bytes), "{what}: {ledger:#?}");
        assert_eq!(ledger.gso_headers_unknown, 0, "{what}");
        assert_ledger(&ledger);
    }
}

#[test]
fn ethernet_in_udp() {
    if require_live() {
        for offloads in [Offloads::On, Offloads::Off] {
            counts_exactly(&["vxlan", "geneve"], "kernel", offloads);
        }
    }
}

#[test]
fn gre_with_ipv4_and_ipv6_inside() {
    if require_live() {
        for offloads in [Offloads::On, Offloads::Off] {
            counts_exactly(&["gre", "gretap", "ip6gre"], "kernel", offloads);
        }
    }
}

#[test]
fn ip_in_ip() {
    if require_live() {
        for offloads in [Offloads::On, Offloads::Off] {
            counts_exactly(&["ipip", "sit", "ip6tnl"], "kernel", offloads);
        }
    }
}

#[test]
fn the_same_by_queues() {
    if require_live() {
        for offloads in [Offloads::On, Offloads::Off] {
            counts_exactly(&["vxlan", "gre", "ipip"], "nfqueue", offloads);
        }
    }
}

/// With the inner layer left alone, outer flows are as exact.
#[test]
fn the_outer_layer_alone_knows_the_headers_of_segments() {
    if !require_live() {
        return;
    }
    for kind in KINDS.iter().filter(|kind| ["vxlan", "gre"].contains(&kind.device)) {
        if !has_device(kind.device) {
            continue;
        }
        let lab = Lab::new();
        let daemon = Daemon::start(&lab.router, &Config::default());
        kind.lay(&lab, true);
        let sent = transfers(&lab, kind, 5450);
        let proto = kind.proto.to_string();
        let (packets, bytes) = (sent[0].packets + sent[1].packets, sent[0].bytes + sent[1].bytes);
        let outer = Traffic { packets, bytes: bytes + kind.overhead * packets };
        assert_eq!(flow_total(&daemon, &["--proto", &proto]), outer, "{kind:?}");
        let ledger = daemon.ledger();
        assert_eq!((ledger.inner_packets, ledger.gso_headers_unknown), (0, 0), "{kind:?}");
        assert_ledger(&ledger);
    }
}
