//! What is sent, and what the senders' queues say of it.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, Instant};

use netams_tests::interrupt::go_on;
use netams_tests::lab::{CLIENT4, CLIENT6, Lab, SERVER4, SERVER6, SINK4, SINK6};
use netams_tests::ns::assert_success;
use netams_tests::tcp::{Transfer, transfer};
use netams_tests::truth::{Traffic, device, qdisc};
use netams_tests::udp::Datagrams;

use crate::report::grouped;

/// Traffic of one kind in one direction.
pub struct Line {
    /// Kind.
    pub what: String,
    /// Direction.
    pub way: &'static str,
    /// What was sent.
    pub sent: Traffic,
    /// Arguments of `ngctl flows` that select it and nothing else.
    pub select: Vec<String>,
}

const UP: &str = "client > server";
const DOWN: &str = "server > client";
const AWAY: &str = "client > sink";

/// Payload bytes of one TCP transfer.
const TRANSFER: u64 = 200_000_000;
/// Port of the first TCP and UDP kind; each has its own.
const PORT: u16 = 5200;

/// The kinds of traffic, each with the addresses that its IP version has.
enum Kind {
    /// `iperf3`; the server sends when `reverse`.
    Tcp { reverse: bool },
    /// Datagrams of so many bytes, in bursts of so many.
    Udp { size: usize, burst: u64 },
    /// `ping`.
    Echo,
}

/// Sends every kind, each for the time `each`, and tells of it as it goes.
pub fn send(lab: &Lab, each: Duration) -> Vec<Line> {
    let kinds = [
        ("TCP upload", Kind::Tcp { reverse: false }),
        ("TCP download", Kind::Tcp { reverse: true }),
        ("UDP 64 bytes", Kind::Udp { size: 64, burst: 20_000 }),
        ("UDP 8 KB in pieces", Kind::Udp { size: 8192, burst: 2_000 }),
        ("ICMP echo", Kind::Echo),
    ];
    let mut lines = Vec::new();
    let mut port = PORT;
    for (name, kind) in kinds {
        for version in [4, 6] {
            let what = format!("{name}, IPv{version}");
            print!("  {what:<26}");
            // Only so that the line is there while it happens.
            let _ = io::stdout().flush();
            let started = Instant::now();
            let new = match kind {
                Kind::Tcp { reverse } => tcp(lab, &what, version, reverse, port, each),
                Kind::Udp { size, burst } => udp(lab, &what, version, size, burst, port, each),
                Kind::Echo => echo(lab, &what, version, each),
            };
            let packets: u64 = new.iter().map(|line| line.sent.packets).sum();
            println!("{:>13} packets in {:.1} s", grouped(packets), started.elapsed().as_secs_f64());
            lines.extend(new);
            port += 1;
        }
    }
    lines
}

/// Transfers one after the other, until the time is over.
fn tcp(lab: &Lab, what: &str, version: u8, reverse: bool, port: u16, each: Duration) -> Vec<Line> {
    let (mut up, mut down) = (Traffic::default(), Traffic::default());
    repeat(each, || {
        let sent = transfer(lab, Transfer { port, bytes: TRANSFER, version, reverse });
        up += sent.client;
        down += sent.server;
    });
    let [client, server] = addresses(version);
    let select = |source| vec!["--port".to_owned(), port.to_string(), "--src".to_owned(), source];
    vec![
        Line { what: what.to_owned(), way: UP, sent: up, select: select(client.to_string()) },
        Line { what: what.to_owned(), way: DOWN, sent: down, select: select(server.to_string()) },
    ]
}

/// Bursts from a new socket each, until the time is over.
fn udp(lab: &Lab, what: &str, version: u8, size: usize, burst: u64, port: u16, each: Duration) -> Vec<Line> {
    let sink = sink(version, port);
    let datagrams = Datagrams { to: SocketAddr::new(sink, port), size, count: burst, segment: None };
    let before = qdisc(&lab.client);
    repeat(each, || {
        datagrams.send(&lab.client);
    });
    let sent = qdisc(&lab.client) - before;
    assert_eq!(
        device(&lab.client, "eth0").tx_dropped,
        0,
        "the wire between client and router dropped packets"
    );
    // By address: later fragments have no ports where another source than now counted the first one.
    let select = vec!["--dst".to_owned(), sink.to_string()];
    vec![Line { what: what.to_owned(), way: AWAY, sent, select }]
}

/// Pings the server, a hundred times a second.
fn echo(lab: &Lab, what: &str, version: u8, each: Duration) -> Vec<Line> {
    let [client, server] = addresses(version);
    let ends = [&lab.client, &lab.server];
    let before = ends.map(qdisc);
    let count = each.as_millis() / 10;
    let mut ping = lab.client.command("ping");
    ping.args(["-q", "-i", "0.01", "-c", &count.to_string(), &server.to_string()]).stdin(Stdio::null());
    let output = ping.output().expect("run ping");
    go_on();
    assert_success(&output, "ping");
    let [up, down] = [0, 1].map(|i| qdisc(ends[i]) - before[i]);
    let select = |source: IpAddr, destination: IpAddr| {
        vec!["--src".to_owned(), source.to_string(), "--dst".to_owned(), destination.to_string()]
            .into_iter()
            .chain(["--proto".to_owned(), if version == 6 { "icmpv6" } else { "icmp" }.to_owned()])
            .collect()
    };
    vec![
        Line { what: what.to_owned(), way: UP, sent: up, select: select(client, server) },
        Line { what: what.to_owned(), way: DOWN, sent: down, select: select(server, client) },
    ]
}

fn repeat(time: Duration, mut burst: impl FnMut()) {
    let started = Instant::now();
    while started.elapsed() < time {
        go_on();
        burst();
    }
}

/// Client and server.
fn addresses(version: u8) -> [IpAddr; 2] {
    match version {
        6 => [CLIENT6.into(), SERVER6.into()],
        _ => [CLIENT4.into(), SERVER4.into()],
    }
}

/// An address in the sink's prefix, another one for each port.
fn sink(version: u8, port: u16) -> IpAddr {
    let number = u32::from(port - PORT) + 1;
    match version {
        6 => Ipv6Addr::from_bits(SINK6.to_bits() + u128::from(number)).into(),
        _ => Ipv4Addr::from_bits(SINK4.to_bits() + number).into(),
    }
}
