//! TCP inside tunnels through the router: outer and inner flows are those of the senders, to the packet and to the byte.

use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{Lab, Offloads};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::overlay::{DEVICE, KINDS, Kind, SERVER, has_device};
use netams_tests::tcp::{self, Transfer};
use netams_tests::truth::{Traffic, qdisc_of};
use netams_tests::{amount, require_live};

const BYTES: u64 = 20_000_000;

/// What both ends have sent through the tunnel since it was laid, after transfers with each version of IP that it carries, in
/// both directions.
fn transfers(lab: &Lab, kind: &Kind, offloads: Offloads) -> [Traffic; 2] {
    kind.lay(lab, offloads == Offloads::On);
    for (port, (version, reverse)) in (5400..).zip([(4, false), (4, true), (6, false), (6, true)]) {
        if kind.carries.contains(&version) {
            let server = if version == 4 { SERVER.0.into() } else { SERVER.1.into() };
            tcp::run_to(lab, server, Transfer { port, bytes: amount(BYTES), version, reverse });
        }
    }
    [&lab.client, &lab.server].map(|end| qdisc_of(end, DEVICE, kind.header))
}

/// What these packets are outside of the tunnel.
fn outside(kind: &Kind, inside: Traffic) -> Traffic {
    Traffic { bytes: inside.bytes + kind.overhead * inside.packets, ..inside }
}

fn counts_exactly(kind: &Kind, config: Config, offloads: Offloads) {
    if !has_device(kind.device) {
        return;
    }
    let lab = Lab::with(offloads, 1500);
    let what = format!("{}, offloads {offloads:?}, {kind:?}", config.source);
    let inner = config.tunnels == "inner";
    let daemon = Daemon::start(&lab.router, &config);
    let sent = transfers(&lab, kind, offloads);
    let (client, proto) = (kind.client(), kind.proto.to_string());
    for (way, sent) in ["--src", "--dst"].into_iter().zip(sent) {
        let counted = flow_total(&daemon, &["--proto", &proto, way, &client]);
        assert_eq!(counted, outside(kind, sent), "outer, {way} the client, {what}");
    }
    let mut inside = Traffic::default();
    if inner {
        sent.into_iter().for_each(|sent| inside += sent);
    }
    let flows = daemon.flows(&["--layer", "inner"]);
    assert_eq!(Traffic { packets: flows.packets, bytes: flows.bytes }, inside, "inner, {what}");
    assert_eq!(flows.flows.is_empty(), !inner, "{what}");
    for flow in &flows.flows {
        let tunnel = flow.tunnel.as_ref().expect("the tunnel of an inner flow");
        assert_eq!((tunnel.kind.as_str(), tunnel.key), kind.shown, "{what}");
    }
    let ledger = daemon.ledger();
    assert_eq!(
        (ledger.inner_packets, ledger.inner_bytes),
        (inside.packets, inside.bytes),
        "{what}: {ledger:#?}"
    );
    assert_eq!(ledger.gso_headers_unknown, 0, "{what}");
    assert_ledger(&ledger);
}

fn count_exactly(devices: &[&str], config: &Config) {
    for kind in KINDS.iter().filter(|kind| devices.contains(&kind.device)) {
        for offloads in [Offloads::On, Offloads::Off] {
            counts_exactly(kind, config.clone(), offloads);
        }
    }
}

fn inner(config: Config) -> Config {
    Config { tunnels: "inner", ..config }
}

#[test]
fn vxlan() {
    if require_live() {
        count_exactly(&["vxlan"], &inner(Config::default()));
    }
}

#[test]
fn geneve() {
    if require_live() {
        count_exactly(&["geneve"], &inner(Config::default()));
    }
}

#[test]
fn gre() {
    if require_live() {
        count_exactly(&["gre"], &inner(Config::default()));
    }
}

#[test]
fn ethernet_in_gre() {
    if require_live() {
        count_exactly(&["gretap"], &inner(Config::default()));
    }
}

#[test]
fn gre_over_ipv6() {
    if require_live() {
        count_exactly(&["ip6gre"], &inner(Config::default()));
    }
}

#[test]
fn ip_in_ipv4() {
    if require_live() {
        count_exactly(&["ipip", "sit"], &inner(Config::default()));
    }
}

#[test]
fn ip_in_ipv6() {
    if require_live() {
        count_exactly(&["ip6tnl"], &inner(Config::default()));
    }
}

#[test]
fn the_same_by_queues() {
    if require_live() {
        count_exactly(&["vxlan", "gre", "ipip"], &inner(Config::nfqueue("auto")));
        count_exactly(&["vxlan"], &inner(Config::nfqueue("estimate")));
    }
}

/// With the inner layer left alone, outer flows are as exact: the headers in each segment of a super-packet are known.
#[test]
fn the_outer_layer_alone() {
    if require_live() {
        count_exactly(&["vxlan", "gre", "ip6tnl"], &Config::default());
    }
}
