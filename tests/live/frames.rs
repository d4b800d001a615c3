//! Hand-made frames end up in the flow, or in the term of the ledger, where they belong.

use netams_proto::Flow;
use netams_tests::blast::Blast;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::frame::{ETH_IPV4, ETH_IPV6, ETH_QINQ, ETH_VLAN, Frame, TCP, UDP};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, CLIENT6, Lab, SINK4, SINK6};
use netams_tests::ledger::assert_ledger;
use netams_tests::require_live;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const GRE: u8 = 47;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// What identifies and weighs a flow: version, protocol, ports, VLANs, fragment, packets, bytes.
type Row = (u8, u8, (u16, u16), (u16, u16), bool, u64, u64);

fn row(flow: &Flow) -> Row {
    let (ports, vlans) = ((flow.sport, flow.dport), (flow.vlan, flow.vlan_inner));
    (flow.version, flow.proto, ports, vlans, flow.fragment, flow.packets, flow.bytes)
}

fn eth() -> Frame {
    Frame::eth(CL0_MAC, CLIENT_MAC)
}

#[test]
fn each_kind_of_header_gives_its_flow() {
    if !require_live() {
        return;
    }
    let v4 = |frame: Frame, protocol| frame.ipv4(CLIENT4, SINK4, protocol, &[]);
    let v6 = |frame: Frame, next| frame.ipv6(CLIENT6, SINK6, next);
    let many = |count| {
        (0..count).fold(v6(eth(), DESTINATION_OPTIONS), |frame, i| {
            frame.extension(if i + 1 == count { UDP } else { DESTINATION_OPTIONS })
        })
    };
    // Each frame is sent ten times; so packets are 10 and bytes ten times those of the packet.
    let table = [
        (v4(eth(), UDP).udp(1, 2).payload(100), (4, UDP, (1, 2), (0, 0), false, 10, 1280)),
        (v4(eth(), TCP).tcp(3, 4), (4, TCP, (3, 4), (0, 0), false, 10, 400)),
        (eth().ipv4(CLIENT4, SINK4, UDP, &[1; 40]).udp(5, 6), (4, UDP, (5, 6), (0, 0), false, 10, 680)),
        (v4(eth(), GRE).payload(30), (4, GRE, (0, 0), (0, 0), false, 10, 500)),
        (v4(eth().vlan(ETH_VLAN, 7), UDP).udp(7, 8), (4, UDP, (7, 8), (7, 0), false, 10, 280)),
        (
            v4(eth().vlan(ETH_QINQ, 20).vlan(ETH_VLAN, 21), UDP).udp(9, 10),
            (4, UDP, (9, 10), (20, 21), false, 10, 280),
        ),
        (v6(eth(), UDP).udp(11, 12).payload(52), (6, UDP, (11, 12), (0, 0), false, 10, 1000)),
        (
            v6(eth(), HOP_BY_HOP)
                .extension(ROUTING)
                .extension(DESTINATION_OPTIONS)
                .extension(TCP)
                .tcp(13, 14),
            (6, TCP, (13, 14), (0, 0), false, 10, 840),
        ),
        (v6(eth().vlan(ETH_VLAN, 9), UDP).udp(15, 16), (6, UDP, (15, 16), (9, 0), false, 10, 480)),
        (many(8).udp(17, 18), (6, UDP, (17, 18), (0, 0), false, 10, 1120)),
        // The ninth extension header is not walked: its number is the protocol.
        (many(9).udp(19, 20), (6, DESTINATION_OPTIONS, (0, 0), (0, 0), false, 10, 1200)),
    ];
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &Config::default());
    let mut expected: Vec<Row> = table.iter().map(|(_, row)| *row).collect();
    let frames: Vec<_> = table.into_iter().map(|(frame, _)| frame.build()).collect();
    let count = 10 * frames.len() as u64;
    Blast::new(frames, count).send(&lab.client, "eth0", &lab.router, "cl0");
    let mut counted = Vec::new();
    for client in [format!("{CLIENT4}/32"), format!("{CLIENT6}/128")] {
        counted.extend(daemon.flows(&["--src", &client]).flows.iter().map(row));
    }
    expected.sort_unstable();
    counted.sort_unstable();
    assert_eq!(counted, expected);
    assert_ledger(&daemon.ledger());
}

#[test]
fn later_fragments_join_the_first_one_or_are_flagged() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &Config::default());
    let v4 = |id, offset, more| eth().ipv4(CLIENT4, SINK4, UDP, &[]).fragment4(id, offset, more);
    let v6 = |id, offset, more| eth().ipv6(CLIENT6, SINK6, FRAGMENT).fragment6(UDP, id, offset, more);
    let frames = vec![
        v4(1, 0, true).udp(1, 2).payload(72).build(),
        v4(1, 10, true).payload(80).build(),
        v4(1, 20, false).payload(8).build(),
        v4(2, 10, false).payload(80).build(),
        v6(1, 0, true).udp(3, 4).payload(72).build(),
        v6(1, 10, false).payload(16).build(),
        v6(2, 10, false).payload(80).build(),
    ];
    let sent = Blast::new(frames, 7).send(&lab.client, "eth0", &lab.router, "cl0");
    assert_eq!(sent, 7);
    let rows = |client: String| {
        let mut rows: Vec<Row> = daemon.flows(&["--src", &client]).flows.iter().map(row).collect();
        rows.sort_unstable();
        rows
    };
    let orphan = |version, bytes| (version, UDP, (0, 0), (0, 0), true, 1, bytes);
    assert_eq!(
        rows(format!("{CLIENT4}/32")),
        [orphan(4, 100), (4, UDP, (1, 2), (0, 0), false, 3, 100 + 100 + 28)]
    );
    assert_eq!(
        rows(format!("{CLIENT6}/128")),
        [orphan(6, 128), (6, UDP, (3, 4), (0, 0), false, 2, 128 + 64)]
    );
    let ledger = daemon.ledger();
    assert_ledger(&ledger);
    assert_eq!(ledger.fragments, 2);
}

#[test]
fn garbage_is_in_the_ledger_and_nowhere_else() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let daemon = Daemon::start(&lab.router, &Config::default());
    let before = daemon.ledger();
    let (arp, experimental) = (0x0806, 0x88b5);
    let non_ip = [eth().ether_type(arp).payload(28), eth().ether_type(experimental).payload(46)];
    let malformed = [
        eth().ether_type(ETH_IPV4).payload(3),
        // Version 6 where Ethernet says IPv4, and the other way round.
        eth().ether_type(ETH_IPV4).raw(&[0x65]).payload(40),
        eth().ether_type(ETH_IPV6).raw(&[0x45]).payload(60),
        // A header length of 16 bytes; a header longer than the frame.
        eth().ether_type(ETH_IPV4).raw(&[0x44]).payload(40),
        eth().ether_type(ETH_IPV4).raw(&[0x4f]).payload(30),
        eth().ether_type(ETH_IPV6).raw(&[0x60]).payload(20),
    ];
    let frames: Vec<_> = non_ip.into_iter().chain(malformed).map(Frame::build).collect();
    Blast::new(frames, 8_000).send(&lab.client, "eth0", &lab.router, "cl0");
    let ledger = daemon.ledger();
    assert_eq!(ledger.non_ip - before.non_ip, 2_000, "{ledger:#?}");
    assert_eq!(ledger.malformed - before.malformed, 6_000, "{ledger:#?}");
    assert_eq!(ledger.flow_packets, before.flow_packets, "{ledger:#?}");
    assert_ledger(&ledger);
}
