//! What each gate does to packets, watched further on by rules of the test's own.

use std::{io::ErrorKind, net::UdpSocket};

use super::{
    CLOSED, Gate,
    bed::{BEYOND, run, send, set_mark, socket},
    install, plan, queued, read_until, with_each_tool,
};

/// Counts packets of the router behind all rules of ours, by mark.
const WITNESS: &str = "
table inet witness {
    counter bit { }
    counter rest { }
    counter saved { }
    counter every { }
    chain before {
        type filter hook output priority -160;
        ct state new ct mark 0 ct mark set 0x7
    }
    chain after {
        type filter hook postrouting priority 0;
        udp dport 9 counter name every
        meta mark & 0x00000800 == 0x00000800 counter name bit
        meta mark 0x00000005 counter name rest
        ct mark 0x01000007 counter name saved
    }
}
";

/// Packets that a counter of the witness has seen.
fn witnessed(counter: &str) -> u64 {
    let text = run(&format!("nft list counter inet witness {counter}"), "");
    let packets = text.split_once("packets ").and_then(|(_, rest)| rest.split(' ').next());
    packets.and_then(|packets| packets.parse().ok()).unwrap_or_else(|| panic!("no counter: {text}"))
}

#[test]
fn a_packet_that_was_counted_elsewhere_is_not_queued() {
    with_each_tool(|bed, opener| {
        run("nft -f -", WITNESS);
        let mut rules = opener.rules();
        install(&mut rules, &plan(), &Gate::Handover { bit: 0x800 });
        for to in BEYOND {
            send(&socket(to, 0x805), to, 3);
        }
        assert_eq!(witnessed("bit"), 0, "the bit is cleared");
        assert_eq!(witnessed("rest"), 6, "the other bits are not");
        bed.output([1, 1]);
        read_until(&rules, |reading| queued(reading) == [0, 0, 2]);
        assert_eq!(witnessed("every"), 8);
        assert_eq!(witnessed("bit"), 2, "what is queued gets the bit");

        rules.set_gate(&CLOSED).unwrap();
        for to in BEYOND {
            send(&socket(to, 0x805), to, 1);
        }
        assert_eq!((witnessed("bit"), witnessed("rest")), (2, 8), "a closed gate clears it");

        rules.set_gate(&Gate::Open).unwrap();
        for to in BEYOND {
            send(&socket(to, 0x805), to, 1);
        }
        read_until(&rules, |reading| queued(reading) == [0, 0, 4]);
        assert_eq!(witnessed("bit"), 4, "an open gate leaves marks alone");
    });
}

/// A packet with a verdict in its mark is what `NF_REPEAT` sends through the chain again.
#[test]
fn a_verdict_is_saved_with_its_connection() {
    with_each_tool(|_, opener| {
        run("nft -f -", WITNESS);
        let mut rules = opener.rules();
        install(
            &mut rules,
            &plan(),
            &Gate::Offload { mask: 0xff00_0000, accept: 0x0100_0000, drop: 0x0200_0000 },
        );
        for to in BEYOND {
            let accepted = socket(to, 0x0100_0005);
            send(&accepted, to, 1);
            set_mark(&accepted, 0);
            send(&accepted, to, 2);
        }
        assert_eq!(witnessed("every"), 6);
        assert_eq!(witnessed("saved"), 6, "the other bits of the connection's mark are kept");
        assert_eq!(witnessed("rest"), 2, "the verdict's bits are cleared in the packet's mark");

        for to in BEYOND {
            let dropped = socket(to, 0x0200_0000);
            assert!(is_dropped(&dropped, to), "by its own mark");
            set_mark(&dropped, 0);
            send(&dropped, to, 1);
            set_mark(&dropped, 0x0200_0000);
            assert!(is_dropped(&dropped, to), "by its own mark");
            set_mark(&dropped, 0);
            assert!(is_dropped(&dropped, to), "by its connection's mark");
        }
        read_until(&rules, |reading| queued(reading) == [0, 0, 2]);
        assert_eq!(
            witnessed("every"),
            8,
            "a connection is not remembered before its first packet has passed"
        );

        for to in BEYOND {
            send(&socket(to, 0), to, 1);
            send(&socket(to, 0x0300_0000), to, 1);
        }
        read_until(&rules, |reading| queued(reading) == [0, 0, 6]);
        assert_eq!(witnessed("saved"), 6, "a verdict of another generation is none");
    });
}

/// The kernel tells a sender when a rule drops its packet.
fn is_dropped(socket: &UdpSocket, to: &str) -> bool {
    let to: std::net::IpAddr = to.parse().unwrap();
    socket.send_to(b"x", (to, 9)).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
}
