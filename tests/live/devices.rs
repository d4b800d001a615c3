//! Devices that are not a plain Ethernet port: each packet is still counted once, at its layer-3 length.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;

use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{Frame, UDP};
use netams_tests::lab::{
    CL0_MAC, CLIENT_MAC, CLIENT4, Lab, SERVER_MAC, SERVER4, SERVER6, SINK4, SINK6, SV0_MAC,
};
use netams_tests::ledger::{assert_identity, assert_ledger, flow_total};
use netams_tests::ns::Namespace;
use netams_tests::require_live;
use netams_tests::truth::Traffic;

/// Layer-3 bytes of the IPv4 packets sent here.
const BYTES: u64 = 64;

/// Makes a tun device, up, whose other end is the file.
fn tun(namespace: &Namespace, name: &'static str) -> File {
    let file = namespace.enter(move || {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").expect("open /dev/net/tun");
        // struct ifreq: name, then flags.
        let mut request = [0u8; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: a request of the size that the call reads and writes.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        file
    });
    namespace.run(&format!("ip link set {name} up"));
    file
}

#[test]
fn a_device_without_ethernet_header_is_metered_both_ways() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let mut far_end = tun(&lab.router, "tun0");
    lab.router.run("ip route add 198.18.0.0/15 dev tun0");
    let daemon = Daemon::start(&lab.router, &Config { interfaces: vec!["tun0"], ..Config::default() });
    let programs: Vec<String> = daemon.node().hooks.into_iter().map(|hook| hook.program).collect();
    assert_eq!(programs, ["netams_enter_l3", "netams_leave_l3"]);

    let peer = "198.18.0.1".parse().expect("an address");
    let v4 = Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(peer, SINK4, UDP, &[]).udp(1, 7500).payload(36).build();
    let v6 = Frame::eth(CL0_MAC, CLIENT_MAC).ipv6(SERVER6, SINK6, UDP).udp(1, 7501).payload(36).build();
    for _ in 0..200 {
        for frame in [&v4, &v6] {
            let packet = &frame[14..];
            assert_eq!(far_end.write(packet).expect("write to tun"), packet.len());
        }
    }
    let out = Frame::eth(SV0_MAC, SERVER_MAC).ipv4(SERVER4, peer, UDP, &[]).udp(1, 7502).payload(36).build();
    let sent = Blast::new(vec![out], 300).send(&lab.server, "eth0", &lab.router, "sv0");
    assert_eq!(flow_total(&daemon, &["--port", "7500"]), Traffic { packets: 200, bytes: 200 * BYTES });
    assert_eq!(flow_total(&daemon, &["--port", "7501"]), Traffic { packets: 200, bytes: 200 * (BYTES + 20) });
    assert_eq!(flow_total(&daemon, &["--port", "7502"]), Traffic { packets: sent, bytes: sent * BYTES });
    assert_ledger(&daemon.ledger());
}

#[test]
fn a_bridge_and_its_ports_count_a_packet_once() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    lab.router.run("ip link add br0 address 02:00:00:00:03:01 type bridge");
    lab.router.run("ip link set br0 up");
    for (port, peer) in [("p0", "peer0"), ("p1", "peer1")] {
        lab.add_wire(port, peer);
        lab.router.run(&format!("ip link set {port} master br0"));
    }
    let daemon =
        Daemon::start(&lab.router, &Config { interfaces: vec!["br0", "p0", "p1"], ..Config::default() });
    let frame = |destination, port| {
        Frame::eth(destination, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(1, port).payload(36).build()
    };
    // To a station that nobody knows: out of the other port. To the bridge itself: up, and routed to the server.
    let through = frame([2, 0, 0, 0, 9, 9], 7510);
    let up = frame([2, 0, 0, 0, 3, 1], 7511);
    let before = daemon.ledger();
    for (frame, port) in [(through, "7510"), (up, "7511")] {
        let sent = Blast::new(vec![frame], 500).send(&lab.client, "peer0", &lab.router, "p0");
        assert_eq!(flow_total(&daemon, &["--port", port]), Traffic { packets: sent, bytes: sent * BYTES });
    }
    let after = daemon.ledger();
    let seen_again = after.already_counted - before.already_counted;
    assert!(seen_again >= 1000, "at p1, and at br0: {after:#?}");
    assert_identity(&after);
}

#[test]
fn loopback_is_metered_when_it_is_spelled_and_counts_once() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let everything = Daemon::start(&lab.router, &Config { interfaces: vec!["*"], ..Config::default() });
    let interfaces: Vec<String> = everything.node().hooks.into_iter().map(|hook| hook.interface).collect();
    assert!(!interfaces.contains(&"lo".to_owned()), "{interfaces:?}");
    drop(everything);
    let daemon = Daemon::start(&lab.router, &Config { interfaces: vec!["lo"], ..Config::default() });
    lab.router.run("ping -q -c 50 -i 0.01 -s 56 127.0.0.1");
    let requests = daemon.flows(&["--proto", "icmp"]);
    assert_eq!((requests.packets, requests.bytes), (100, 100 * 84), "requests and replies: {requests:#?}");
    assert_ledger(&daemon.ledger());
}
