//! UDP that goes on at a known rate until it is stopped, while something else is done to the daemon.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::amount;
use crate::blast::Blast;
use crate::frame::{Frame, UDP};
use crate::lab::{CL0_MAC, CLIENT_MAC, CLIENT4, CLIENT6, Lab, SERVER_MAC, SERVER6, SINK4, SV0_MAC};
use crate::ns::Namespace;
use crate::truth::{Traffic, device};

/// Destination port of the load.
pub const PORT: u16 = 7100;
/// Source ports, a flow each.
const FLOWS: u16 = 100;
const PAYLOAD: usize = 36;
/// Layer-3 bytes of each packet that the client sends: IPv4, UDP, 36 bytes of payload.
pub const BYTES: u64 = 20 + 8 + PAYLOAD as u64;
const BYTES6: u64 = 40 + 8 + PAYLOAD as u64;
/// A prefix that is routed to the client, which discards it since it does not forward.
const BACK: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xfe, 0, 0, 0, 0, 0);

/// The packets that the client sends, one a flow.
pub fn frames() -> Vec<Vec<u8>> {
    let frame = |port| {
        Frame::eth(CL0_MAC, CLIENT_MAC)
            .ipv4(CLIENT4, SINK4, UDP, &[])
            .udp(port, PORT)
            .payload(PAYLOAD)
            .build()
    };
    (1..=FLOWS).map(frame).collect()
}

fn back() -> Vec<Vec<u8>> {
    let frame = |port| {
        Frame::eth(SV0_MAC, SERVER_MAC).ipv6(SERVER6, BACK, UDP).udp(port, PORT).payload(PAYLOAD).build()
    };
    (1..=FLOWS).map(frame).collect()
}

/// Traffic to sinks.
pub struct Load {
    stop: Arc<AtomicBool>,
    streams: Vec<Stream>,
}

struct Stream {
    sender: JoinHandle<u64>,
    /// Interface of the router that receives it, and what that had received before.
    device: &'static str,
    before: u64,
    bytes: u64,
}

impl Load {
    /// Begins to send so many packets a second, an [`amount`], from the client: IPv4.
    pub fn start(lab: &Lab, rate: u64) -> Self {
        let mut load = Self { stop: Arc::default(), streams: Vec::new() };
        load.add(lab, &lab.client, "cl0", frames(), rate, BYTES);
        load
    }

    /// That, and as many from the server: IPv6.
    pub fn both_ways(lab: &Lab, rate: u64) -> Self {
        let mut load = Self::start(lab, rate);
        lab.router.run(&format!("ip route replace {BACK}/48 via {CLIENT6}"));
        load.add(lab, &lab.server, "sv0", back(), rate, BYTES6);
        load
    }

    fn add(
        &mut self,
        lab: &Lab,
        from: &Namespace,
        device_name: &'static str,
        frames: Vec<Vec<u8>>,
        rate: u64,
        bytes: u64,
    ) {
        let blast = Blast::new(frames, u64::MAX).rate(amount(rate)).until(&self.stop);
        let before = device(&lab.router, device_name).rx_packets;
        let sender = from.spawn(move || blast.transmit("eth0").expect("send frames"));
        self.streams.push(Stream { sender, device: device_name, before, bytes });
    }

    /// Ends it; what was sent, and received by the router. Panics when less was received. An IPv6 control packet of an end's
    /// kernel may have come along.
    pub fn end(self, lab: &Lab) -> Traffic {
        let received = |device_name: &str, before: u64| device(&lab.router, device_name).rx_packets - before;
        self.stop_and(|name, before, sent| {
            let received = received(name, before);
            assert!(received >= sent, "{received} of {sent} packets received by the router at {name}");
        })
    }

    /// Ends it; what was sent.
    pub fn stop(self) -> Traffic {
        self.stop_and(|_, _, _| ())
    }

    fn stop_and(self, check: impl Fn(&str, u64, u64)) -> Traffic {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Traffic::default();
        for Stream { sender, device, before, bytes } in self.streams {
            let sent = sender.join().expect("the sender");
            check(device, before, sent);
            sum += Traffic { packets: sent, bytes: sent * bytes };
        }
        sum
    }
}
