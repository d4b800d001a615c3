//! A router and a host, network namespaces of a test's own, and packets between them.
//!
//! ```text
//! host h0 --- in0 router out0 --- drain
//! ```
//!
//! What leaves through out0 is for nobody's address: the drain, in the router too, drops it before netfilter.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::socket::{setsockopt, sockopt::Mark},
    unistd::gettid,
};

/// Sent in every datagram; with the headers 128 bytes by IPv4, 148 by IPv6.
const PAYLOAD: [u8; 100] = [0x5a; 100];

/// Address of in0.
const ROUTER: &str = "02:00:00:00:00:01";
/// Where packets are sent to: beyond out0.
pub const BEYOND: [&str; 2] = ["10.9.2.9", "fd09:2::9"];

/// Whether live tests can run here. When not, prints why, or panics where `NETAMS_REQUIRE_LIVE=1` forbids to skip.
#[must_use]
pub fn require_live() -> bool {
    let tools = ["ip", "nft", "iptables-save"];
    let missing = tools.iter().find(|tool| super::super::tool::find(tool, "").is_err());
    let reason = match missing {
        _ if !nix::unistd::geteuid().is_root() => "needs root for namespaces and netfilter".to_owned(),
        Some(tool) => format!("needs {tool}"),
        None => return true,
    };
    assert!(
        std::env::var_os("NETAMS_REQUIRE_LIVE").is_none_or(|v| v != "1"),
        "live tests cannot run: {reason}"
    );
    println!("skipped: {reason}");
    false
}

/// Runs a program in this thread's namespace with `input`; yields its standard output, panics when it fails.
pub fn run(line: &str, input: &str) -> String {
    let mut words = line.split_whitespace();
    let program = super::super::tool::find(words.next().expect("a program to run"), "").expect("a program");
    let words: Vec<_> = words.collect();
    super::super::tool::run(&program, &words, input).unwrap_or_else(|e| panic!("`{line}`: {e}"))
}

/// Whether a program succeeds in this thread's namespace.
pub fn succeeds(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program to run"));
    command.args(words).output().is_ok_and(|output| output.status.success())
}

/// In a namespace of this thread alone, which ends with it and its sockets.
fn own_namespace() {
    unshare(CloneFlags::CLONE_NEWNET).expect("make a network namespace");
    // Nothing is to be sent but what a test sends.
    for (knob, value) in [
        ("ipv6/conf/default/addr_gen_mode", "1"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
        ("ipv6/conf/default/mldv2_unsolicited_report_interval", "100000000"),
    ] {
        set(knob, value);
    }
    run("ip link set lo up", "");
}

/// Sets a knob below /proc/sys/net.
fn set(knob: &str, value: &str) {
    let path = Path::new("/proc/sys/net").join(knob);
    fs::write(&path, value).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Runs `test` in the router, on a thread of its own.
pub fn in_router(test: impl FnOnce(&Bed) + Send) {
    thread::scope(|scope| {
        let router = scope.spawn(|| {
            own_namespace();
            let host = thread::scope(host);
            test(&Bed { host });
        });
        router.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Joins the router with a new namespace, whose sockets are all that is kept of it.
fn host<'scope>(scope: &'scope thread::Scope<'scope, '_>) -> [UdpSocket; 2] {
    let (tell, told) = mpsc::channel();
    let (link, linked) = mpsc::channel();
    let host = scope.spawn(move || {
        own_namespace();
        tell.send(gettid()).expect("tell the thread's id");
        linked.recv().expect("be linked");
        for line in [
            "link set h0 arp off multicast off up",
            "addr add 10.9.1.2/24 dev h0",
            "addr add fd09:1::2/64 dev h0 nodad",
        ] {
            run(&format!("ip {line}"), "");
        }
        for router in ["10.9.1.1", "fd09:1::1"] {
            run(&format!("ip neigh add {router} dev h0 lladdr {ROUTER} nud permanent"), "");
            run(&format!("ip route add default via {router}"), "");
        }
        ["10.9.1.2:0", "[fd09:1::2]:0"].map(|address| UdpSocket::bind(address).expect("bind in the host"))
    });
    let host_thread = told.recv().expect("the host's thread");
    for line in [
        format!("link add in0 address {ROUTER} type veth peer name h0 netns {host_thread}"),
        "link add out0 type veth peer name drain".to_owned(),
        // Or the kernel would send multicast reports, even those of a router's groups if it was one already.
        "link set in0 arp off multicast off up".to_owned(),
        "link set out0 arp off multicast off up".to_owned(),
        "link set drain arp off multicast off up".to_owned(),
        "addr add 10.9.1.1/24 dev in0".to_owned(),
        "addr add fd09:1::1/64 dev in0 nodad".to_owned(),
        "addr add 10.9.2.1/24 dev out0".to_owned(),
        "addr add fd09:2::1/64 dev out0 nodad".to_owned(),
    ] {
        run(&format!("ip {line}"), "");
    }
    set("ipv4/ip_forward", "1");
    set("ipv6/conf/all/forwarding", "1");
    link.send(()).expect("tell the host");
    host.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What a test has besides the router it runs in.
pub struct Bed {
    host: [UdpSocket; 2],
}

impl Bed {
    /// Forwards so many packets of IPv4 and of IPv6 from in0 to out0.
    pub fn forward(&self, packets: [u64; 2]) {
        for ((socket, packets), to) in self.host.iter().zip(packets).zip(BEYOND) {
            send(socket, to, packets);
        }
    }

    /// Sends so many packets of IPv4 and of IPv6 from the router through out0.
    pub fn output(&self, packets: [u64; 2]) {
        for (packets, to) in packets.into_iter().zip(BEYOND) {
            send(&socket(to, 0), to, packets);
        }
    }

    /// Sends so many packets of IPv4 and of IPv6 from the router to itself.
    pub fn loopback(&self, packets: [u64; 2]) {
        for (packets, address) in packets.into_iter().zip(["127.0.0.1", "::1"]) {
            let socket = socket(address, 0);
            let to = socket.local_addr().expect("the socket's address");
            for _ in 0..packets {
                socket.send_to(&PAYLOAD, to).expect("send to itself");
            }
        }
    }
}

/// A socket of this thread's namespace whose packets to `to` have `mark`.
pub fn socket(to: &str, mark: u32) -> UdpSocket {
    let to: IpAddr = to.parse().expect("an address");
    let any = if to.is_loopback() {
        to
    } else if to.is_ipv4() {
        [0; 4].into()
    } else {
        [0_u16; 8].into()
    };
    let socket = UdpSocket::bind((any, 0)).expect("bind");
    set_mark(&socket, mark);
    socket
}

/// Sets the mark of a socket's further packets.
pub fn set_mark(socket: &UdpSocket, mark: u32) {
    setsockopt(socket, Mark, &mark).expect("set a mark");
}

/// Sends so many packets to port 9 of `to`.
pub fn send(socket: &UdpSocket, to: &str, packets: u64) {
    let to: IpAddr = to.parse().expect("an address");
    for _ in 0..packets {
        socket.send_to(&PAYLOAD, (to, 9)).unwrap_or_else(|e| panic!("send to {to}: {e}"));
    }
}
