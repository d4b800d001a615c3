//! Policies: who is counted by which, who may pass, and what a block does to traffic that is under way; by both sources.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use netams_proto::{InOut, SourceKind, Verdict};
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, TCP, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SERVER4, SINK4};
use netams_tests::ledger::{assert_ledger, flow_total};
use netams_tests::load::{BYTES, Load, PORT, frames};
use netams_tests::poll::wait_until;
use netams_tests::require_live;
use netams_tests::stream::Stream;
use netams_tests::truth::{Traffic, device, qdisc};

/// Contract: a change of policy takes effect for flows that exist already within this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long it is then watched that nothing passes.
const WATCHED: Duration = Duration::from_millis(1500);
const STREAM: u16 = 5300;

fn sources() -> [(&'static str, Config); 3] {
    [
        ("kernel", Config::default()),
        ("nfqueue, auto", Config::nfqueue("auto")),
        ("nfqueue, exact", Config::nfqueue("exact")),
    ]
}

/// The client and what it sends: a connection, and datagrams.
fn with_client(config: Config) -> Config {
    let mut config = config
        .divert()
        .unit("client", "host", &[&CLIENT4.to_string()])
        .selector("acct_policy = [\"%datagrams\", \"connection\"]")
        .unit("everybody", "net", &["0.0.0.0/0"])
        .selector("acct_policy = [\"connection\"]");
    config.extra += &format!(
        "[[policy]]\nname = \"connection\"\nproto = [\"tcp\"]\nport = [{STREAM}]\n\
         [[policy]]\nname = \"datagrams\"\nproto = [\"udp\"]\ndst_port = [{PORT}]\n"
    );
    config
}

fn both(counts: InOut) -> [Traffic; 2] {
    let traffic = |packets, bytes| Traffic { packets, bytes };
    [traffic(counts.in_packets, counts.in_bytes), traffic(counts.out_packets, counts.out_bytes)]
}

/// What policies of a unit counted, by name: to it, and from it.
fn counted(daemon: &Daemon, unit: &str, policy: &str) -> [Traffic; 2] {
    let report = daemon.unit(unit);
    let part = report.policies.iter().find(|part| part.name == policy);
    both(part.unwrap_or_else(|| panic!("{policy} in {report:#?}")).total)
}

#[test]
fn a_block_ends_what_is_under_way_and_an_allow_lets_it_go_on() {
    if !require_live() {
        return;
    }
    for (name, config) in sources() {
        let lab = Lab::new();
        let daemon = Daemon::start(&lab.router, &with_client(config));
        let before = [qdisc(&lab.client), qdisc(&lab.server)];
        let stream = Stream::connect(&lab, STREAM);
        stream.begin();
        let load = Load::start(&lab, 2_000);
        let arrived = || device(&lab.server, "eth0").rx_packets;
        wait_until("both arrive", AT_ONCE, || stream.received() > 1 << 20 && arrived() > 1000);

        let asked = Instant::now();
        assert!(daemon.set_blocked("client", true).unit.blocked);
        thread::sleep(AT_ONCE.saturating_sub(asked.elapsed()));
        let then = (stream.received(), arrived());
        thread::sleep(WATCHED);
        assert_eq!((stream.received(), arrived()), then, "nothing passes, {name}");
        let to_server = ["--src", "192.0.2.2", "--dst", "198.51.100.2", "--dport", "5300"];
        let explained = daemon.explain(&to_server);
        assert_eq!((explained.verdict, explained.reason.as_str()), (Verdict::Drop, "blocked"), "{name}");

        let asked = Instant::now();
        assert!(!daemon.set_blocked("client", false).unit.blocked);
        let rest = AT_ONCE.saturating_sub(asked.elapsed());
        wait_until("datagrams pass", rest, || arrived() > then.1 + 100);
        wait_until("the connection goes on", Duration::from_secs(20), || {
            stream.received() > then.0 + (1 << 20)
        });
        assert_eq!(daemon.explain(&to_server).verdict, Verdict::Pass, "{name}");

        let load = load.stop();
        stream.end(&lab);
        let mut sent = qdisc(&lab.client) - before[0];
        sent += qdisc(&lab.server) - before[1];
        // Frames of the load are sent past the qdisc.
        sent += load;
        let flows = flow_total(&daemon, &[]);
        let ledger = daemon.ledger();
        assert_ledger(&ledger);
        assert_eq!(flows.packets + ledger.dropped, sent.packets, "{name}: {ledger:#?}");
        assert!(ledger.dropped > 1_000, "{name}: {ledger:#?}");

        let report = daemon.unit("client");
        let [dropped] = &report.dropped[..] else { panic!("{name}: {report:#?}") };
        assert_eq!(dropped.name, "blocked", "{name}");
        let packets = dropped.total.in_packets + dropped.total.out_packets;
        assert_eq!(packets, ledger.dropped, "all of them are the client's, {name}: {report:#?}");

        let select = |src: Option<Ipv4Addr>, port: u16| {
            let port = port.to_string();
            let src = src.map(|src| src.to_string());
            let mut select = vec!["--port", &port];
            select.extend(src.iter().flat_map(|src| ["--src", src]));
            flow_total(&daemon, &select)
        };
        let connection = [select(Some(SERVER4), STREAM), select(Some(CLIENT4), STREAM)];
        assert_eq!(counted(&daemon, "client", "connection"), connection, "{name}");
        let datagrams = [Traffic::default(), select(Some(CLIENT4), PORT)];
        assert_eq!(counted(&daemon, "client", "datagrams"), datagrams, "{name}");
        // Both sides are everybody.
        let all = select(None, STREAM);
        assert_eq!(counted(&daemon, "everybody", "connection"), [all, all], "{name}");
        assert_eq!(daemon.policies().policies.len(), 3, "{name}");
    }
}

#[test]
fn a_block_outlives_the_daemon() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut config = with_client(Config::default());
    with_quota(&mut config, u64::MAX >> 1);
    let mut daemon = Daemon::start(&lab.router, &config);
    let load = Load::start(&lab, 2_000);
    let arrived = || device(&lab.server, "eth0").rx_packets;
    wait_until("datagrams arrive", AT_ONCE, || arrived() > 100);
    daemon.set_blocked("client", true);
    let blocked = |what: &str| {
        let then = arrived();
        thread::sleep(WATCHED);
        assert_eq!(arrived(), then, "{what}");
    };
    blocked("before the daemon dies");
    daemon.kill9();
    blocked("while no daemon is there");
    daemon.start_again();
    assert!(daemon.unit("client").unit.blocked);
    blocked("after it has come back");
    assert_eq!(daemon.set_source(SourceKind::Nfqueue).source, SourceKind::Nfqueue);
    blocked("by the other source");
    assert_eq!(daemon.set_source(SourceKind::Kernel).source, SourceKind::Kernel);
    blocked("and by the first one again");
    let then = arrived();
    daemon.set_blocked("client", false);
    wait_until("datagrams pass", AT_ONCE, || arrived() > then + 100);
    let sent = load.end(&lab);
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(flow_total(&daemon, &[]).packets + ledger.dropped, sent.packets, "{ledger:#?}");
    let dropped = daemon.unit("client").dropped.iter().map(|part| part.total.out_packets).sum::<u64>();
    assert_eq!(dropped, ledger.dropped, "{ledger:#?}");
}

#[test]
fn queues_without_a_daemon_do_as_fail_says() {
    if !require_live() {
        return;
    }
    for (fail, passes) in [("open", true), ("closed", false)] {
        let lab = Lab::new();
        let mut config = with_client(Config::nfqueue("exact"));
        config.nfqueue += &format!("\nfail = {fail:?}");
        let mut daemon = Daemon::start(&lab.router, &config);
        daemon.set_blocked("client", true);
        let load = Load::start(&lab, 2_000);
        let arrived = || device(&lab.server, "eth0").rx_packets;
        thread::sleep(AT_ONCE);
        let then = arrived();
        daemon.kill9();
        thread::sleep(WATCHED);
        assert_eq!(arrived() > then + 100, passes, "fail = {fail}");
        daemon.start_again();
        thread::sleep(AT_ONCE);
        let then = arrived();
        thread::sleep(WATCHED);
        assert_eq!(arrived(), then, "blocked again, fail = {fail}");
        load.end(&lab);
    }
}

/// What is sent to the sink, which does not answer, as arguments of `explain` and as a frame.
fn kinds() -> Vec<(Vec<String>, Vec<u8>)> {
    let mut kinds = Vec::new();
    for proto in [UDP, TCP] {
        for source in [CLIENT4, Ipv4Addr::new(192, 0, 2, 77)] {
            for port in [53, 80, 443, 8080] {
                let frame = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(source, SINK4, proto, &[]);
                let frame = if proto == UDP { frame.udp(4000, port) } else { frame.tcp(4000, port) };
                let words =
                    format!("--src {source} --dst {SINK4} --proto {proto} --sport 4000 --dport {port}");
                kinds.push((words.split(' ').map(str::to_owned).collect(), frame.payload(20).build()));
            }
        }
    }
    kinds
}

#[test]
fn explain_says_what_the_sources_do() {
    if !require_live() {
        return;
    }
    const COUNT: u64 = 50;
    let lists = [
        "[[unit]]\nname = \"c\"\nkind = \"host\"\naddresses = [\"192.0.2.2\"]\nfw_policy = [\"web\", \"!tcp\"]\n",
        "[[unit]]\nname = \"s\"\nkind = \"host\"\naddresses = [\"203.0.113.0\"]\nfw_policy = [\"from-c\", \"dns\"]\n\
         [[unit]]\nname = \"c\"\nkind = \"host\"\naddresses = [\"192.0.2.2\"]\n",
        "[[unit]]\nname = \"c\"\nkind = \"host\"\naddresses = [\"192.0.2.2\"]\n\
         [[unit]]\nname = \"g\"\nkind = \"group\"\nmembers = [\"c\"]\nfw_policy = [\"both\"]\n",
    ];
    let policies = "[[policy]]\nname = \"web\"\nproto = [\"tcp\"]\ndst_port = [80, 443]\n\
        [[policy]]\nname = \"tcp\"\nproto = [6]\n\
        [[policy]]\nname = \"dns\"\nport = [53]\n\
        [[policy]]\nname = \"both\"\npolicy_or = [\"web\", \"dns\"]\naddr = [\"203.0.113.0/24\"]\n\
        [[policy]]\nname = \"from-c\"\nunits = [\"c\"]\ntime = [\"0-24\"]\n";
    for (name, config) in sources().into_iter().take(2) {
        for (number, list) in lists.iter().enumerate() {
            for default in ["pass", "drop"] {
                let lab = Lab::new();
                let mut config = config.clone().divert();
                config.top += &format!("default_policy = {default:?}\n");
                config.extra = format!("{policies}{list}");
                let daemon = Daemon::start(&lab.router, &config);
                let mut verdicts = [0; 2];
                for (words, frame) in kinds() {
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let explained = daemon.explain(&words);
                    let before = device(&lab.server, "eth0").rx_packets;
                    Blast::new(vec![frame], COUNT).rate(5_000).send(&lab.client, "eth0", &lab.router, "cl0");
                    // What waits in a queue has its verdict then.
                    daemon.ledger();
                    wait_until("all have their verdict", Duration::from_secs(5), || {
                        daemon.source().nfqueue.is_none_or(|queues| queues.waiting == 0)
                    });
                    let arrived = device(&lab.server, "eth0").rx_packets - before;
                    let passes = explained.verdict == Verdict::Pass;
                    assert_eq!(arrived, if passes { COUNT } else { 0 }, "{name}: {words:?}: {explained:#?}");
                    verdicts[usize::from(passes)] += 1;
                }
                assert!(verdicts[1] > 0 || default == "drop", "{name}, list {number}: {verdicts:?}");
                let ledger = daemon.ledger();
                assert_ledger(&ledger);
                assert_eq!(ledger.dropped, verdicts[0] * COUNT, "{name}, list {number}: {ledger:#?}");
            }
        }
    }
}

/// Datagrams of 64 bytes; a hard quota of so many.
const LIMIT: u64 = 4_000;

/// Gives the client, which is the first unit, a quota of what it sends.
fn with_quota(config: &mut Config, bytes: u64) {
    let quota =
        format!("[[unit.quota]]\nperiod = \"month\"\nlimit = {bytes}\ndirection = \"out\"\nhard = true\n");
    let next = "[[unit]]\nname = \"everybody\"";
    config.extra = config.extra.replacen(next, &(quota + next), 1);
}

#[test]
fn the_kernel_drops_the_first_packet_beyond_a_quota_whoever_dies() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut config = with_client(Config { interval_ms: 1000, ..Config::default() });
    with_quota(&mut config, LIMIT * BYTES);
    let mut daemon = Daemon::start(&lab.router, &config);
    let before = device(&lab.server, "eth0").rx_packets;
    let arrived = || device(&lab.server, "eth0").rx_packets - before;
    let load = Load::start(&lab, 1_000);
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(300));
        daemon.kill9();
        thread::sleep(Duration::from_millis(50));
        daemon.start_again();
    }
    wait_until("it is over", Duration::from_secs(60), || daemon.quota("client").1 == Some(1));
    daemon.kill9();
    thread::sleep(WATCHED);
    daemon.start_again();
    thread::sleep(WATCHED);
    let sent = load.end(&lab);
    assert_eq!(arrived(), LIMIT, "of {} sent", sent.packets);
    let (quotas, code) = daemon.quota("client");
    assert_eq!((quotas.quotas[0].used, code), (LIMIT * BYTES, Some(1)));
    let report = daemon.unit("client");
    let dropped: u64 = report.dropped.iter().map(|part| part.total.out_packets).sum();
    assert_eq!(dropped, sent.packets - LIMIT, "{report:#?}");
    assert!(report.dropped.iter().all(|part| part.name == "quota"), "{report:#?}");
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.dropped, dropped);
}

#[test]
fn a_hard_quota_blocks_its_unit_and_outlives_everything() {
    if !require_live() {
        return;
    }
    for config in [Config::default(), Config::nfqueue("exact")] {
        let lab = Lab::new();
        let mut config = with_client(config);
        let name = config.source;
        with_quota(&mut config, LIMIT * BYTES);
        let mut daemon = Daemon::start(&lab.router, &config);
        let send =
            |count| Blast::new(frames(), count).rate(20_000).send(&lab.client, "eth0", &lab.router, "cl0");
        let arrived = || device(&lab.server, "eth0").rx_packets;
        let used = |daemon: &Daemon| {
            let (quotas, code) = daemon.quota("client");
            (quotas.quotas[0].used, quotas.quotas[0].state.clone(), code)
        };
        let before = arrived();
        let mut sent = send(LIMIT * 7 / 10);
        daemon.ledger();
        assert_eq!(used(&daemon), (sent * BYTES, "under".to_owned(), Some(0)), "{name}");
        sent += send(LIMIT * 2 / 10);
        wait_until("the warning", AT_ONCE * 3, || used(&daemon).1 == "warned");
        daemon.kill9();
        daemon.start_again();
        assert_eq!(used(&daemon), (sent * BYTES, "warned".to_owned(), Some(0)), "{name}");
        // To the other source and back.
        let mut kinds = [SourceKind::Kernel, SourceKind::Nfqueue];
        kinds.sort_by_key(|kind| kind.name() == name);
        for kind in kinds {
            assert_eq!(daemon.set_source(kind).source, kind);
        }
        assert_eq!(used(&daemon).0, sent * BYTES, "{name}");
        sent += send(LIMIT * 2 / 10);
        wait_until("it is over", AT_ONCE * 3, || used(&daemon).1 == "over");
        assert_eq!(used(&daemon).2, Some(1), "{name}");
        let explained = daemon.explain(&["--src", "192.0.2.2", "--dst", "203.0.113.0", "--proto", "udp"]);
        assert_eq!(explained.reason, "quota", "{name}");
        let passed = arrived() - before;
        // By queues, what passes until the use is looked at, which is each second, is over the limit, and counted.
        let most = if name == "kernel" { LIMIT } else { sent };
        assert!((LIMIT..=most).contains(&passed), "{name}: {passed} of {sent}");
        assert_eq!(used(&daemon).0, passed * BYTES, "{name}");
        let refused = send(500);
        daemon.restart();
        let refused = refused + send(500);
        for kind in kinds {
            assert_eq!(daemon.set_source(kind).source, kind);
        }
        let refused = refused + send(500);
        daemon.ledger();
        assert_eq!(arrived() - before, passed, "{name}");
        let report = daemon.unit("client");
        let dropped = report.dropped.iter().find(|part| part.name == "quota");
        let dropped = dropped.unwrap_or_else(|| panic!("{name}: {report:#?}")).total.out_packets;
        assert_eq!(dropped, sent + refused - passed, "{name}: {report:#?}");
        let events: Vec<String> = daemon.events().into_iter().map(|event| event.kind).collect();
        for (kind, times) in [("quota_warning", 1), ("quota_over", 1), ("quota_return", 0)] {
            assert_eq!(events.iter().filter(|known| *known == kind).count(), times, "{name}: {events:?}");
        }
        assert_ledger(&daemon.ledger());
    }
}
