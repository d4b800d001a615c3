//! The source that replays a capture: frames of a file, the clock of the file.
//!
//! [`Replay`] counts frames in a flow table in memory, and yields what it has counted as a [`Batch`] whenever the capture's
//! clock leaves a window of [`WINDOW_MS`] or the table is full: so its memory is bounded, however many flows there are, and all
//! of a batch is of one window, also where the clock jumps. Every frame is in exactly one flow of the outer layer, or is no
//! IP, or malformed.

mod buffer;
pub mod capture;

use std::{
    collections::{HashMap, hash_map::Entry},
    io::Read,
};

use foldhash::fast::RandomState;
use kmod_bpf::{FlowKey, key_flag};

use self::capture::{Capture, CaptureError, Stop};
use super::{Tunnels, fragments::Fragments, tables::flow_key};
use crate::{
    flow::{Batch, Counters, FlowDelta, Layer, Source},
    packet::{Gso, Packet, Parsed, inner, parse_link},
};

/// Milliseconds of the capture's clock that one batch can have, counted from 1970: as much as the daemon takes at once unless
/// told otherwise. No hour of a zone begins inside, so units are charged in the hour of each packet.
pub const WINDOW_MS: i64 = 5000;
/// Flows in the table, about 100 bytes each.
const FLOWS: usize = 1 << 18;

/// What was counted of a flow.
#[derive(Clone, Copy)]
struct Counts {
    packets: u64,
    bytes: u64,
    first_ms: i64,
    last_ms: i64,
}

/// A capture being replayed.
pub struct Replay<R> {
    capture: Capture<R>,
    tunnels: Tunnels,
    /// Identity of this replay's batches.
    table: u64,
    epoch: u64,
    counter: Counter,
    /// Times of the earliest and the latest frame so far.
    span_ms: Option<(i64, i64)>,
}

/// The flow table, and what decides where a frame goes.
struct Counter {
    // Keys are chosen by whoever sent the packets: the hash has a random seed.
    flows: HashMap<FlowKey, Counts, RandomState>,
    counters: Counters,
    outer_fragments: Fragments,
    inner_fragments: Fragments,
    with_inner: bool,
    /// Of the frames of this batch, by its number.
    window: i64,
}

impl<R: Read> Replay<R> {
    /// Begins with `input`, a capture that is not compressed.
    ///
    /// # Errors
    /// When it is none that can be replayed, or there are no random numbers.
    pub fn new(input: R, tunnels: Tunnels) -> Result<Self, CaptureError> {
        let table = super::random()?[7];
        let counter = Counter {
            flows: HashMap::default(),
            counters: Counters::default(),
            outer_fragments: Fragments::new(0),
            inner_fragments: Fragments::new(1),
            with_inner: tunnels != Tunnels::Outer,
            window: 0,
        };
        Ok(Self { capture: Capture::open(input)?, tunnels, table, epoch: 0, counter, span_ms: None })
    }

    /// What the next frames give; `None` when there are no more.
    ///
    /// # Errors
    /// When the capture cannot be read on. What was counted before is in the batches before.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, CaptureError> {
        while let Some(frame) = self.capture.next_frame()? {
            let (earliest, latest) = self.span_ms.get_or_insert((frame.time_ms, frame.time_ms));
            (*earliest, *latest) = (frame.time_ms.min(*earliest), frame.time_ms.max(*latest));
            let ended = self.counter.end_before(frame.time_ms);
            self.counter.count(frame);
            if let Some(counted) = ended {
                return Ok(Some(self.batch(counted)));
            }
        }
        Ok(self.counter.end().map(|counted| self.batch(counted)))
    }

    /// Times of the earliest and the latest frame so far, milliseconds UTC since 1970.
    pub fn span_ms(&self) -> Option<(i64, i64)> {
        self.span_ms
    }

    /// Why reading has stopped before the end of the file, if it has.
    pub fn stop(&self) -> Option<Stop> {
        self.capture.stop()
    }

    fn batch(&mut self, (flows, counters): (Vec<FlowDelta>, Counters)) -> Batch {
        self.epoch += 1;
        let charged = if self.tunnels == Tunnels::Charged { Layer::Inner } else { Layer::Outer };
        let (table, epoch) = (self.table, self.epoch);
        Batch { source: Source::Replay, table, epoch, charged, flows, counters, ..Batch::default() }
    }
}

impl Counter {
    fn count(&mut self, frame: capture::Frame) {
        self.counters.packets_in += 1;
        let packet = match parse_link(frame.link, frame.data, frame.len, Gso::NONE) {
            Parsed::Ip(packet) => packet,
            Parsed::NonIp => {
                self.counters.non_ip += 1;
                return;
            }
            Parsed::Malformed => {
                self.counters.malformed += 1;
                return;
            }
        };
        let mut key = self.outer_fragments.join(&packet);
        self.counters.fragments += u64::from(key.flags & key_flag::FRAGMENT);
        if self.with_inner
            && let Some(inner) = inner(frame.data, frame.len, Gso::NONE, &packet)
        {
            key.flags |= key_flag::CARRIER;
            let key = self.inner_fragments.join(&inner);
            self.add(key, &inner, frame.time_ms);
        }
        self.add(key, &packet, frame.time_ms);
    }

    fn add(&mut self, key: FlowKey, packet: &Packet, time_ms: i64) {
        match self.flows.entry(key) {
            Entry::Occupied(mut known) => {
                let counts = known.get_mut();
                counts.packets += u64::from(packet.packets);
                counts.bytes += packet.bytes;
                counts.first_ms = counts.first_ms.min(time_ms);
                counts.last_ms = counts.last_ms.max(time_ms);
            }
            Entry::Vacant(free) => {
                let packets = packet.packets.into();
                free.insert(Counts { packets, bytes: packet.bytes, first_ms: time_ms, last_ms: time_ms });
            }
        }
    }

    /// What was counted, if a frame of this time is not to be counted along.
    fn end_before(&mut self, time_ms: i64) -> Option<(Vec<FlowDelta>, Counters)> {
        let window = time_ms.div_euclid(WINDOW_MS);
        if window == self.window && self.flows.len() < FLOWS {
            return None;
        }
        self.window = window;
        self.end()
    }

    /// What was counted, if anything was.
    fn end(&mut self) -> Option<(Vec<FlowDelta>, Counters)> {
        if self.counters.packets_in == 0 {
            return None;
        }
        let mut counters = std::mem::take(&mut self.counters);
        let flows: Vec<FlowDelta> = self.flows.drain().map(delta).collect();
        flows.iter().for_each(|flow| counters.add_flow(flow));
        Some((flows, counters))
    }
}

fn delta((key, counts): (FlowKey, Counts)) -> FlowDelta {
    let Counts { packets, bytes, first_ms, last_ms } = counts;
    let carrier = key.flags & key_flag::CARRIER != 0;
    FlowDelta { key: flow_key(&key), estimated: false, carrier, packets, bytes, first_ms, last_ms }
}
