//! TCP between client and server through the router, by iperf3, with the truth of both directions.

use std::fs;
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use crate::daemon::Process;
use crate::lab::{Lab, SERVER4, SERVER6};
use crate::ns::{Namespace, assert_success};
use crate::poll::wait_until;
use crate::truth::{self, Tcp, Traffic};

/// What to transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    /// The server's port, for the control and the data connection; unique within a lab.
    pub port: u16,
    /// Payload bytes.
    pub bytes: u64,
    /// IP version.
    pub version: u8,
    /// The server sends.
    pub reverse: bool,
}

/// Wire packets and layer-3 bytes that each end has sent, acknowledgements and the control connection included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// By the client, received by the router at `cl0`.
    pub client: Traffic,
    /// By the server, received by the router at `sv0`.
    pub server: Traffic,
}

/// Runs one transfer and returns when both ends have closed their connections. Panics when a wire dropped something
/// or when the two truths about packets differ.
pub fn transfer(lab: &Lab, transfer: Transfer) -> Sent {
    let ends = [&lab.client, &lab.server];
    let before = ends.map(|end| (truth::qdisc(end), Tcp::read(end)));
    run(lab, transfer);
    let [client, server] = [0, 1].map(|i| {
        let sent = truth::qdisc(ends[i]) - before[i].0;
        let segments = Tcp::read(ends[i]).packets_since(&before[i].1);
        assert_eq!(sent.packets, segments, "qdisc and TCP of {} differ", ends[i].name());
        sent
    });
    Sent { client, server }
}

/// Runs one transfer and returns when both ends have closed their connections. Panics when a wire dropped something.
pub fn run(lab: &Lab, transfer: Transfer) {
    run_to(lab, server(transfer.version), transfer);
}

/// [`run`] to another address of the server.
pub fn run_to(lab: &Lab, server: IpAddr, transfer: Transfer) {
    // A window that fits the receive backlog even as single packets: nothing is dropped inside the machine.
    let bytes = transfer.bytes.to_string();
    let way = if transfer.reverse { &["-R"][..] } else { &[] };
    iperf_to(lab, server, transfer.port, &[&["-n", &bytes, "-w", "256K"], way].concat());
    wait_until_closed(lab);
}

/// Returns when no end of the lab has a connection that may still send. Panics when a wire dropped something.
pub fn wait_until_closed(lab: &Lab) {
    for end in [&lab.client, &lab.server] {
        wait_until("all connections closed", Duration::from_secs(5), || {
            sockets(end, |state| !CLOSED.contains(&state)) == 0
        });
        assert_eq!(truth::device(end, "eth0").tx_dropped, 0, "{} dropped packets", end.name());
    }
}

/// Socket states (include/net/tcp_states.h) after which a connection sends no more by itself: TIME_WAIT, LISTEN.
const CLOSED: [u8; 2] = [LISTEN, 6];
const LISTEN: u8 = 10;

/// Runs an iperf3 client in the client and a server for it in the server; `more` are further arguments of the client,
/// whose report is returned.
pub fn iperf(lab: &Lab, port: u16, version: u8, more: &[&str]) -> serde_json::Value {
    iperf_to(lab, server(version), port, more)
}

fn server(version: u8) -> IpAddr {
    if version == 6 { SERVER6.into() } else { SERVER4.into() }
}

fn iperf_to(lab: &Lab, address: IpAddr, port: u16, more: &[&str]) -> serde_json::Value {
    let port = port.to_string();
    let mut server = lab.server.command("iperf3");
    server.args(["-s", "-1", "-p", &port]).stdout(Stdio::null());
    let mut server = Process(Some(server.spawn().expect("start the iperf3 server")));
    wait_until("iperf3 listens", Duration::from_secs(5), || {
        sockets(&lab.server, |state| state == LISTEN) > 0
    });
    let mut client = lab.client.command("iperf3");
    client.args(["-J", "-c", &address.to_string(), "-p", &port]).args(more);
    let output = client.output().expect("run the iperf3 client");
    assert_success(&output, "iperf3 -c");
    let ended = server.0.take().expect("the iperf3 server").wait().expect("wait for the iperf3 server");
    assert!(ended.success(), "the iperf3 server failed");
    serde_json::from_slice(&output.stdout).expect("iperf3 prints JSON")
}

/// TCP sockets of a namespace in the states that `count` picks.
fn sockets(namespace: &Namespace, count: impl Fn(u8) -> bool + Send) -> usize {
    let text = namespace.enter(|| {
        ["tcp", "tcp6"]
            .map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("socket table"))
    });
    let states = text.iter().flat_map(|table| table.lines().skip(1)).filter_map(|row| {
        let state = row.split_whitespace().nth(3)?;
        u8::from_str_radix(state, 16).ok()
    });
    states.filter(|state| count(*state)).count()
}
