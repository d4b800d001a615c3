//! Super-packets by queues: exact where their segment size is told or the kernel cuts them; where it is inferred, as wrong
//! as the README says, and flagged.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{CLIENT4, CLIENT6, Lab, Offloads, SERVER4, SERVER6, SINK4};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::poll::wait_until;
use netams_tests::require_live;
use netams_tests::stream::Stream;
use netams_tests::tcp::{Transfer, transfer};
use netams_tests::truth::{ETHERNET, Traffic, device, qdisc, qdisc_of};
use netams_tests::udp::Datagrams;

/// What the README says of `gso = "estimate"`: how much is too few at most, percent of packets and of bytes.
struct Said {
    traffic: &'static str,
    packets: f64,
    bytes: f64,
}

const SEEN: Said =
    Said { traffic: "TCP seen from its SYN, no smaller MTU behind the router", packets: 0.0, bytes: 0.0 };
const ROUTE: Said =
    Said { traffic: "TCP seen from its SYN, over a route with an MTU of 1200", packets: 20.0, bytes: 0.9 };
const JOINED: Said = Said {
    traffic: "TCP whose SYN was not seen, to a receiver that had announced an MSS of 900",
    packets: 38.5,
    bytes: 2.2,
};
const SEGMENTS: Said =
    Said { traffic: "UDP_SEGMENT, datagrams of 1200 bytes as of QUIC", packets: 18.0, bytes: 0.5 };
const SMALL: Said = Said { traffic: "UDP_SEGMENT, datagrams of 512 bytes", packets: 65.0, bytes: 3.4 };

/// Payload bytes of a TCP transfer.
const BYTES: u64 = 50_000_000;

/// What came to an interface of the router as super-packets, and what it stands for.
struct Merged<'lab> {
    lab: &'lab Lab,
    device: &'static str,
    before: u64,
}

impl<'lab> Merged<'lab> {
    fn begin(lab: &'lab Lab, device_name: &'static str) -> Self {
        Self { lab, device: device_name, before: device(&lab.router, device_name).rx_packets }
    }

    /// Panics when `sent` did not come in super-packets.
    fn check(self, sent: Traffic) {
        let frames = device(&self.lab.router, self.device).rx_packets - self.before;
        assert!(frames * 5 < sent.packets, "{} packets came in {frames} frames", sent.packets);
    }
}

/// Holds what was counted against what was sent.
fn compare(daemon: &Daemon, config: &Config, said: &Said, port: u16, source: IpAddr, sent: Traffic) {
    let length = if source.is_ipv4() { 32 } else { 128 };
    let select = ["--port", &port.to_string(), "--src", &format!("{source}/{length}")];
    let counted = flow_total(daemon, &select);
    let too_few = |counted: u64, sent: u64| 100.0 * (sent as f64 - counted as f64) / sent as f64;
    let (packets, bytes) = (too_few(counted.packets, sent.packets), too_few(counted.bytes, sent.bytes));
    println!("{}, {}: {packets:.2} % and {bytes:.2} % too few", config.nfqueue, said.traffic);
    let flows = daemon.flows(&select).flows;
    assert!(!flows.is_empty());
    if is_estimate(config) {
        assert!((0.0..=said.packets).contains(&packets), "{}: {packets} % of packets", said.traffic);
        assert!((0.0..=said.bytes).contains(&bytes), "{}: {bytes} % of bytes", said.traffic);
        assert!(flows.iter().any(|flow| flow.estimated), "{}: {flows:#?}", said.traffic);
        assert!(daemon.units().estimated > 0, "{}", said.traffic);
        assert!(daemon.ledger().estimated > 0, "{}", said.traffic);
    } else {
        assert_eq!(counted, sent, "{}, {}", config.nfqueue, said.traffic);
        assert!(flows.iter().all(|flow| !flow.estimated), "{}: {flows:#?}", said.traffic);
        assert_eq!((daemon.units().estimated, daemon.ledger().estimated), (0, 0), "{}", said.traffic);
    }
    assert_ledger(&daemon.ledger());
}

fn is_estimate(config: &Config) -> bool {
    config.nfqueue.contains("estimate")
}

/// Runs `scenario` with each way to count.
fn each_way(scenario: impl Fn(&Config)) {
    if require_live() {
        ["auto", "exact", "estimate"].map(Config::nfqueue).iter().for_each(scenario);
    }
}

#[test]
fn tcp_from_its_syn() {
    each_way(|config| {
        let lab = Lab::new();
        let daemon = Daemon::start(&lab.router, config);
        for (port, version, reverse) in [(5401, 4, true), (5402, 6, true), (5403, 4, false)] {
            let (from, merged): ([IpAddr; 2], _) = match version {
                4 => ([CLIENT4.into(), SERVER4.into()], Merged::begin(&lab, "cl0")),
                _ => ([CLIENT6.into(), SERVER6.into()], Merged::begin(&lab, "sv0")),
            };
            let sent = transfer(&lab, Transfer { port, bytes: BYTES, version, reverse });
            if !reverse {
                merged.check(sent.client);
            }
            let data = if reverse { 1 } else { 0 };
            compare(&daemon, config, &SEEN, port, from[data], [sent.client, sent.server][data]);
        }
    });
}

#[test]
fn tcp_over_a_route_with_a_smaller_mtu() {
    each_way(|config| {
        let lab = Lab::new();
        lab.client.run("ip route replace default via 192.0.2.1 mtu 1200");
        let daemon = Daemon::start(&lab.router, config);
        let merged = Merged::begin(&lab, "cl0");
        let sent = transfer(&lab, Transfer { port: 5404, bytes: BYTES, version: 4, reverse: false });
        merged.check(sent.client);
        compare(&daemon, config, &ROUTE, 5404, CLIENT4.into(), sent.client);
    });
}

/// The router refuses what is too long before netfilter sees it, until the sender has learned the MTU: the truth is what
/// leaves the router.
#[test]
fn tcp_over_a_route_of_the_router_with_a_smaller_mtu() {
    each_way(|config| {
        let lab = Lab::new();
        lab.router.run("ip route replace 198.51.100.0/24 dev sv0 mtu 1200");
        lab.router.run("tc qdisc add dev sv0 root pfifo limit 100000");
        let daemon = Daemon::start(&lab.router, config);
        let merged = Merged::begin(&lab, "cl0");
        transfer(&lab, Transfer { port: 5405, bytes: BYTES, version: 4, reverse: false });
        let left = qdisc_of(&lab.router, "sv0", ETHERNET);
        merged.check(left);
        compare(&daemon, config, &ROUTE, 5405, CLIENT4.into(), left);
    });
}

#[test]
fn tcp_joined_in_the_middle() {
    each_way(|config| {
        let lab = Lab::new();
        lab.client.run("ip route replace default via 192.0.2.1 advmss 900");
        let stream = Stream::connect(&lab, 5406);
        let daemon = Daemon::start(&lab.router, config);
        let merged = Merged::begin(&lab, "sv0");
        let before = qdisc(&lab.server);
        stream.begin();
        wait_until("enough is sent", Duration::from_secs(30), || stream.received() > BYTES);
        stream.end(&lab);
        let sent = qdisc(&lab.server) - before;
        merged.check(sent);
        compare(&daemon, config, &JOINED, 5406, SERVER4.into(), sent);
    });
}

#[test]
fn udp_senders_that_choose_their_own_size() {
    each_way(|config| {
        let lab = Lab::new();
        let daemon = Daemon::start(&lab.router, config);
        for (port, said, size, segment) in [(5407, SEGMENTS, 60_000, 1200), (5408, SMALL, 51_200, 512)] {
            let to = SocketAddr::new(SINK4.into(), port);
            // Cut, they fit the buffer of a queue's socket at once.
            let datagrams = Datagrams { to, size, count: 300, segment: Some(segment) };
            let merged = Merged::begin(&lab, "cl0");
            let before = qdisc(&lab.client);
            datagrams.send(&lab.client);
            let sent = qdisc(&lab.client) - before;
            assert_eq!(sent, datagrams.on_wire(1500), "two truths");
            merged.check(sent);
            compare(&daemon, config, &said, port, CLIENT4.into(), sent);
        }
    });
}

#[test]
fn nothing_is_estimated_without_super_packets() {
    if !require_live() {
        return;
    }
    let lab = Lab::with(Offloads::Off, 1500);
    let daemon = Daemon::start(&lab.router, &Config::nfqueue("estimate"));
    let sent = transfer(&lab, Transfer { port: 5409, bytes: 10_000_000, version: 4, reverse: false });
    let mut both = sent.client;
    both += sent.server;
    assert_eq!(flow_total(&daemon, &["--port", "5409"]), both);
    assert!(daemon.flows(&[]).flows.iter().all(|flow| !flow.estimated));
    assert_eq!((daemon.units().estimated, daemon.ledger().estimated), (0, 0));
    assert_ledger(&daemon.ledger());
}

#[test]
fn the_readme_says_how_wrong_it_is() {
    const README: &str = include_str!("../../README.md");
    for Said { traffic, packets, bytes } in [SEEN, ROUTE, JOINED, SEGMENTS, SMALL] {
        let row = format!("| {traffic} | {packets} % | {bytes} % |");
        assert!(README.contains(&row), "{row}");
    }
}
