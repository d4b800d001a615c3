//! Verdicts: kept in the connmark, or given to every packet; what changes them, and what becomes of packets they drop.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use netams_proto::SourceKind;
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::{CLIENT4, CLIENT6, Lab, SERVER4, SERVER6};
use netams_tests::ledger::{assert_explained, assert_ledger, flow_total};
use netams_tests::load::{BYTES, Load, PORT, frames};
use netams_tests::ns::{Namespace, assert_success};
use netams_tests::poll::wait_until;
use netams_tests::require_live;
use netams_tests::stream::Stream;
use netams_tests::tcp::{Transfer, transfer};
use netams_tests::truth::{Traffic, device, qdisc};

/// Contract: a change of policy takes effect for flows that exist already within this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long it is then watched that nothing passes.
const WATCHED: Duration = Duration::from_millis(1500);
/// Bits of both marks that belong to others.
const FOREIGN: u32 = 0x25;

fn offload() -> Config {
    let nfqueue = "offload = true".into();
    Config { source: "nfqueue", nfqueue, ..Config::default() }
}

/// Packets that `ngctl rules` says were queued.
fn queued(daemon: &Daemon) -> u64 {
    daemon.rules().rules.iter().filter(|rule| rule.queue).map(|rule| rule.packets).sum()
}

/// Marks packets and connections with bits of somebody else, and counts packets that leave with other ones.
fn mark_foreign(router: &Namespace) {
    for tool in ["iptables", "ip6tables"] {
        router.run(&format!("{tool} -t mangle -A PREROUTING -j MARK --set-mark {FOREIGN}"));
        router.run(&format!("{tool} -t mangle -A PREROUTING -j CONNMARK --set-xmark {FOREIGN}/0xff"));
        router.run(&format!("{tool} -t mangle -A POSTROUTING -m mark ! --mark {FOREIGN} -j RETURN"));
    }
}

/// Packets that have left the router with other marks than they came with.
fn with_other_marks(router: &Namespace) -> u64 {
    let packets = |tool| -> u64 {
        let listing = router.run(&format!("{tool} -t mangle -vnxL POSTROUTING"));
        let rule = listing.lines().find(|line| line.contains("RETURN")).expect("the rule that counts");
        rule.split_whitespace().next().and_then(|packets| packets.parse().ok()).expect("its counter")
    };
    packets("iptables") + packets("ip6tables")
}

/// The marks of the router's connections to or from this port.
fn connmarks(router: &Namespace, port: u16) -> Vec<u32> {
    let table = router.enter(|| fs::read_to_string("/proc/thread-self/net/nf_conntrack"));
    let table = table.expect("the connections");
    let connections = table.lines().filter(|line| line.contains(&format!("dport={port} ")));
    let mark = |line: &str| line.split_once(" mark=")?.1.split(' ').next()?.parse().ok();
    connections.map(|line| mark(line).unwrap_or_else(|| panic!("no mark: {line}"))).collect()
}

#[test]
fn the_first_packet_of_a_connection_is_queued_and_no_other() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    mark_foreign(&lab.router);
    let daemon = Daemon::start(&lab.router, &offload());
    for (round, (version, reverse)) in (1..).zip([(4, true), (6, true), (4, false)]) {
        let port = 5200 + round;
        let sent = transfer(&lab, Transfer { port, bytes: 300_000_000, version, reverse });
        let what = format!("IPv{version}, reverse {reverse}");
        let sources: [IpAddr; 2] = match version {
            4 => [CLIENT4.into(), SERVER4.into()],
            _ => [CLIENT6.into(), SERVER6.into()],
        };
        for (source, sent) in sources.iter().zip([sent.client, sent.server]) {
            let length = if source.is_ipv4() { 32 } else { 128 };
            let select = ["--port", &port.to_string(), "--src", &format!("{source}/{length}")];
            assert_eq!(flow_total(&daemon, &select), sent, "from {source}, {what}");
        }
        // A control and a data connection each.
        assert_eq!(queued(&daemon), 2 * u64::from(round), "{what}: {:#?}", daemon.rules());
        let marks = connmarks(&lab.router, port);
        assert_eq!(marks.len(), 2, "{what}");
        for mark in marks {
            assert_eq!(mark & 0x00ff_ffff, FOREIGN, "the bits of others: {mark:#x}");
            assert_eq!(mark >> 24 & 3, 1, "the verdict is to pass: {mark:#x}");
        }
    }
    assert_eq!(with_other_marks(&lab.router), 0, "no bit of ours is left on a packet");
    assert_ledger(&daemon.ledger());
}

/// `ngctl msg netams: default_policy POLICY`.
fn set_policy(daemon: &Daemon, policy: &str) -> Output {
    daemon.ngctl(&["msg", "netams:", "default_policy", policy])
}

/// Sets it, and returns when that has to be so for every packet.
fn policy(daemon: &Daemon, policy: &str) -> Instant {
    let asked = Instant::now();
    assert_success(&set_policy(daemon, policy), "ngctl msg netams: default_policy");
    asked
}

/// Drops and passes what is under way; everything that was sent is in flows or in `dropped`. Says how much is in either.
fn drops_what_is_under_way(config: &Config) -> (Traffic, u64, Traffic) {
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &config.clone().divert());
    let before = [qdisc(&lab.client), qdisc(&lab.server)];
    let stream = Stream::connect(&lab, 5300);
    stream.begin();
    let load = Load::start(&lab, 2_000);
    let arrived = || device(&lab.server, "eth0").rx_packets;
    wait_until("both arrive", AT_ONCE, || stream.received() > 1 << 20 && arrived() > 1000);

    for _ in 0..2 {
        let asked = policy(&daemon, "drop");
        thread::sleep(AT_ONCE.saturating_sub(asked.elapsed()));
        let then = (stream.received(), arrived());
        thread::sleep(WATCHED);
        assert_eq!((stream.received(), arrived()), then, "nothing passes");
        let server = SocketAddr::new(SERVER4.into(), 5300);
        let refused = lab.client.enter(|| TcpStream::connect_timeout(&server, Duration::from_millis(200)));
        assert!(refused.is_err(), "nor does a new connection");

        let asked = policy(&daemon, "pass");
        wait_until("datagrams pass", AT_ONCE.saturating_sub(asked.elapsed()), || arrived() > then.1 + 100);
        // TCP tries again when its timer says so, which has doubled some times.
        wait_until("the connection goes on", Duration::from_secs(20), || {
            stream.received() > then.0 + (1 << 20)
        });
    }
    let load = load.stop();
    stream.end(&lab);
    let mut sent = qdisc(&lab.client) - before[0];
    sent += qdisc(&lab.server) - before[1];
    // Frames of the load are sent past the qdisc.
    sent += load;
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    (flow_total(&daemon, &[]), ledger.dropped, sent)
}

#[test]
fn a_verdict_in_the_connmark_changes_within_a_second() {
    if require_live() {
        let (counted, dropped, sent) = drops_what_is_under_way(&offload());
        // The programs, which count, judge as well.
        assert_eq!(counted.packets + dropped, sent.packets);
        assert!(dropped > 5_000, "{dropped}");
    }
}

#[test]
fn a_verdict_in_the_queue_changes_within_a_second() {
    if require_live() {
        for gso in ["auto", "exact"] {
            let (counted, dropped, sent) = drops_what_is_under_way(&Config::nfqueue(gso));
            assert_eq!(counted.packets + dropped, sent.packets, "{gso}");
            assert!(dropped > 5_000, "{gso}: {dropped}");
        }
    }
}

#[test]
fn dropped_packets_are_in_no_flow() {
    if !require_live() {
        return;
    }
    const PASSED: [u64; 2] = [10_000, 5_000];
    const DROPPED: u64 = 7_000;
    for gso in ["auto", "exact"] {
        let lab = Lab::new();
        let config = Config::nfqueue(gso).divert().unit("client", "host", &[&CLIENT4.to_string()]);
        let daemon = Daemon::start(&lab.router, &config);
        let before = device(&lab.server, "eth0").rx_packets;
        let send = |count| {
            let sent = Blast::new(frames(), count).rate(20_000).send(&lab.client, "eth0", &lab.router, "cl0");
            assert_eq!(sent, count);
            // What waits in the queue gets the verdict of later.
            wait_until("all have their verdict", Duration::from_secs(5), || {
                daemon.source().nfqueue.is_some_and(|queues| queues.waiting == 0)
            });
        };
        send(PASSED[0]);
        policy(&daemon, "drop");
        send(DROPPED);
        assert_eq!(daemon.info().default_policy, 1);
        policy(&daemon, "pass");
        send(PASSED[1]);

        let passed = PASSED.iter().sum::<u64>();
        let counted = Traffic { packets: passed, bytes: passed * BYTES };
        assert_eq!(flow_total(&daemon, &["--port", &PORT.to_string()]), counted, "{gso}");
        let unit = daemon.units().units.remove(0).total;
        assert_eq!(Traffic { packets: unit.out_packets, bytes: unit.out_bytes }, counted, "the unit, {gso}");
        let ledger = daemon.ledger();
        assert_ledger(&ledger);
        assert_eq!((ledger.dropped, ledger.seen), (DROPPED, passed + DROPPED), "{gso}: {ledger:#?}");
        assert_eq!((ledger.reference, ledger.queued), (ledger.seen, ledger.seen), "{gso}: {ledger:#?}");
        assert_eq!(device(&lab.server, "eth0").rx_packets - before, passed, "received by the server, {gso}");
    }
}

#[test]
fn tee_drops_nothing() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &Config::nfqueue("auto"));
    let refused = set_policy(&daemon, "drop");
    assert_eq!(refused.status.code(), Some(71));
    assert_eq!(
        String::from_utf8_lossy(&refused.stderr).trim_end(),
        "ngctl: mode is \"tee\", which drops nothing; set mode = \"divert\"; nothing has changed"
    );
    assert_success(&set_policy(&daemon, "pass"), "what is so already");
    let sent = Blast::new(frames(), 1_000).send(&lab.client, "eth0", &lab.router, "cl0");
    assert_eq!(flow_total(&daemon, &[]).packets, sent);
    assert_eq!(daemon.ledger().dropped, 0);
}

/// Rules that only ask for verdicts are in no account: what they let to the queues the programs have counted.
#[test]
fn sources_follow_each_other_over_kills() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let kernel = || Config { interval_ms: 50, ..Config::default() };
    let queues = || Config { interval_ms: 50, ..Config::nfqueue("exact") };
    let verdicts = || Config { interval_ms: 50, ..offload() };
    let mut daemon = Daemon::start(&lab.router, &verdicts());
    let load = Load::both_ways(&lab, 2_000);
    let further = [kernel(), verdicts(), queues(), verdicts(), queues(), kernel(), queues(), verdicts()];
    for config in &further {
        thread::sleep(Duration::from_millis(100));
        daemon.kill9();
        daemon.place.configure(config);
        daemon.start_again();
    }
    for kind in [SourceKind::Kernel, SourceKind::Nfqueue, SourceKind::Kernel] {
        assert_eq!(daemon.set_source(kind).source, kind);
    }
    let sent = load.end(&lab);
    let counted = flow_total(&daemon, &["--port", &PORT.to_string()]).packets;
    let ledger = daemon.ledger();
    assert_explained(&ledger);
    let lost = ledger.queue_lost + ledger.queue_full + ledger.bypassed;
    assert_eq!(counted + lost, sent.packets, "{ledger:#?}\n{:#?}", daemon.events());
    assert_eq!(ledger.missed, 0, "{:#?}", daemon.events());
    println!("{counted} of {} packets in flows, {} bypassed", sent.packets, ledger.bypassed);
}

/// Marks of a former daemon say nothing about what this one decides.
#[test]
fn a_new_start_decides_anew() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let config = offload().divert();
    let mut daemon = Daemon::start(&lab.router, &config);
    let socket = lab.client.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a socket");
    let sink = SocketAddr::new(netams_tests::lab::SINK4.into(), 9);
    let arrives = |daemon: &Daemon| {
        let arrived = device(&lab.server, "eth0").rx_packets;
        let entered = device(&lab.router, "cl0").rx_packets;
        socket.send_to(b"x", sink).expect("send");
        wait_until("it has its verdict", Duration::from_secs(5), || {
            device(&lab.router, "cl0").rx_packets > entered
                && daemon.source().nfqueue.is_some_and(|queues| queues.waiting == 0)
        });
        device(&lab.server, "eth0").rx_packets > arrived
    };
    assert!(arrives(&daemon) && arrives(&daemon));
    let dropping = Config { top: config.top.clone() + "default_policy = \"drop\"\n", ..config.clone() };
    for killed in [true, false] {
        for (config, passes) in [(&dropping, false), (&config, true)] {
            if killed {
                daemon.kill9();
            } else {
                assert_eq!(daemon.terminate(), 0);
            }
            daemon.place.configure(config);
            daemon.start_again();
            assert_eq!(arrives(&daemon), passes, "killed: {killed}");
        }
    }
}
