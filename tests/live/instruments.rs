//! The instruments agree with each other: without a daemon, each truth is measured by another one.

use std::io::ErrorKind::StorageFull;
use std::net::SocketAddr;

use netams_tests::blast::Blast;
use netams_tests::capture::Capture;
use netams_tests::disk::SmallDisk;
use netams_tests::foreign::{Foreign, Place};
use netams_tests::frame::{Frame, UDP};
use netams_tests::hooks::{self, Direction};
use netams_tests::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, Lab, Offloads, SINK4, SINK6};
use netams_tests::require_live;
use netams_tests::tcp::{Transfer, transfer};
use netams_tests::truth::{device, qdisc};
use netams_tests::udp::Datagrams;

fn small_frame() -> Vec<u8> {
    Frame::eth(CL0_MAC, CLIENT_MAC).ipv4(CLIENT4, SINK4, UDP, &[]).udp(1, 2).payload(36).build()
}

#[test]
fn frames_sent_from_two_cpus_all_arrive_and_are_forwarded() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let before = (device(&lab.router, "cl0").rx_packets, device(&lab.server, "eth0").rx_packets);
    let senders = [0, 1].map(|cpu| {
        let blast = Blast::new(vec![small_frame()], 500_000).on_cpu(cpu);
        lab.client.spawn(move || blast.transmit("eth0").expect("send frames"))
    });
    let sent: u64 = senders.into_iter().map(|sender| sender.join().expect("the sender")).sum();
    assert_eq!(sent, 1_000_000);
    assert_eq!(device(&lab.router, "cl0").rx_packets - before.0, sent, "received by the router");
    assert_eq!(device(&lab.server, "eth0").rx_packets - before.1, sent, "forwarded to the server");
}

#[test]
fn a_paced_blast_takes_its_time() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let started = std::time::Instant::now();
    let sent =
        Blast::new(vec![small_frame(); 3], 5_000).rate(20_000).send(&lab.client, "eth0", &lab.router, "cl0");
    assert_eq!(sent, 5_000);
    assert!(started.elapsed() >= std::time::Duration::from_millis(240), "5000 packets at 20000 a second");
}

#[test]
fn tcp_truth_equals_a_capture_with_offloads_off() {
    if !require_live() {
        return;
    }
    let lab = Lab::with(Offloads::Off, 1500);
    for (version, reverse) in [(4, false), (4, true), (6, false), (6, true)] {
        let port = 5200 + u16::from(version) + u16::from(reverse);
        let captures = ["cl0", "sv0"].map(|device| Capture::start(&lab.router, device, "tcp"));
        let sent = transfer(&lab, Transfer { port, bytes: 20_000_000, version, reverse });
        let [client, server] = captures;
        let captured = (client.stop(sent.client.packets), server.stop(sent.server.packets));
        assert_eq!((sent.client, sent.server), captured, "IPv{version}, reverse {reverse}");
    }
}

#[test]
fn super_packets_are_really_sent_with_offloads_on() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let before = device(&lab.router, "cl0").rx_packets;
    let sent = transfer(&lab, Transfer { port: 5210, bytes: 50_000_000, version: 4, reverse: false });
    let skbs = device(&lab.router, "cl0").rx_packets - before;
    assert!(sent.client.packets > 4 * skbs, "{} wire packets in {skbs} skbs", sent.client.packets);
    assert!(sent.client.bytes > 50_000_000, "payload and headers");
}

#[test]
fn udp_on_the_wire_is_what_was_computed() {
    if !require_live() {
        return;
    }
    let sinks = [SocketAddr::from((SINK4, 9)), SocketAddr::from((SINK6, 9))];
    for offloads in [Offloads::On, Offloads::Off] {
        let lab = Lab::with(offloads, 1500);
        for to in sinks {
            for (size, segment) in [(64, None), (8192, None), (1472, None), (40_000, Some(1200))] {
                let datagrams = Datagrams { to, size, count: 100, segment };
                let before = qdisc(&lab.client);
                datagrams.send(&lab.client);
                assert_eq!(
                    qdisc(&lab.client) - before,
                    datagrams.on_wire(1500),
                    "{offloads:?} {datagrams:?}"
                );
            }
        }
    }
}

#[test]
fn foreign_programs_count_what_passes_and_can_be_taken_off() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    let clsact = Foreign::clsact(&lab.router, "cl0", Direction::Ingress, 10);
    let last = Foreign::tcx(&lab.router, "cl0", Direction::Ingress, Place::Last);
    let first = Foreign::tcx(&lab.router, "cl0", Direction::Ingress, Place::First);
    let order = [first.program(), last.program(), clsact.program()];
    assert_eq!(hooks::programs(&lab.router, "cl0", Direction::Ingress), order);
    let send = || Blast::new(vec![small_frame()], 1_000).send(&lab.client, "eth0", &lab.router, "cl0");
    send();
    assert_eq!([&first, &last, &clsact].map(Foreign::passed), [1_000; 3]);
    hooks::detach_tcx(first.program());
    send();
    assert_eq!([&first, &last, &clsact].map(Foreign::passed), [1_000, 2_000, 2_000]);
    assert_eq!(hooks::programs(&lab.router, "cl0", Direction::Ingress), order[1..]);
}

#[test]
fn a_small_disk_is_full_until_it_is_freed() {
    if !require_live() {
        return;
    }
    let disk = SmallDisk::new(1 << 20);
    let write = || std::fs::write(disk.path().join("file"), [0; 8192]).map_err(|e| e.kind());
    assert_eq!(write(), Ok(()));
    disk.fill();
    assert_eq!(std::fs::write(disk.path().join("other"), [1; 8192]).map_err(|e| e.kind()), Err(StorageFull));
    disk.free();
    assert_eq!(write(), Ok(()));
}

#[test]
fn an_added_wire_carries_frames_and_can_be_renamed_while_up() {
    if !require_live() {
        return;
    }
    let lab = Lab::new();
    lab.add_wire("dyn0a", "peer0");
    let blast = Blast::new(vec![small_frame()], 100);
    blast.clone().send(&lab.client, "peer0", &lab.router, "dyn0a");
    lab.router.run("ip link set dyn0a name dyn0b");
    blast.send(&lab.client, "peer0", &lab.router, "dyn0b");
}
