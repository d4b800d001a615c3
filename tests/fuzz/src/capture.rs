//! [`netamsd::source::replay`]: capture files, whoever made them.

use std::io::{self, Read};

use netamsd::flow::Counters;
use netamsd::source::Tunnels;
use netamsd::source::replay::Replay;

use crate::capture_file;

/// Bytes of a capture that is a seed.
const SEED: u64 = 2048;
/// Of the years 0 to 9999, milliseconds since 1970.
const TIMES_MS: std::ops::RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

/// Small captures of `tests/traces`.
pub fn seeds() -> Vec<Vec<u8>> {
    capture_file::files(SEED)
}

/// Any bytes are frames up to an end or an error, and each frame is in exactly one place. It does not matter in which pieces
/// they come.
pub fn check(data: &[u8]) {
    let outer = replay(data, Tunnels::Outer);
    assert_eq!((outer.counters.inner_packets, outer.counters.inner_bytes), (0, 0));
    let inner = replay(data, Tunnels::Inner);
    assert!(inner.counters.inner_packets <= inner.counters.flow_packets);
    let Counters { inner_packets, inner_bytes, .. } = outer.counters;
    let alone = Counters { inner_packets, inner_bytes, ..inner.counters };
    assert_eq!((alone, inner.error), (outer.counters, outer.error.clone()), "the outer layer is the same");
    assert_eq!(replay(Pieces(data), Tunnels::Outer), outer, "in pieces");
}

/// What came of a replay.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    counters: Counters,
    error: Option<String>,
}

fn replay(input: impl Read, tunnels: Tunnels) -> Outcome {
    let mut counters = Counters::default();
    let mut replay = match Replay::new(input, tunnels) {
        Ok(replay) => replay,
        Err(e) => return Outcome { counters, error: Some(e.to_string()) },
    };
    let error = loop {
        match replay.next_batch() {
            Ok(Some(batch)) => {
                let c = &batch.counters;
                assert!(c.packets_in > 0, "a batch of nothing");
                assert_eq!(c.packets_in, c.flow_packets + c.non_ip + c.malformed);
                assert!(c.fragments <= c.flow_packets);
                let (earliest, latest) = replay.span_ms().expect("there were frames");
                assert!(TIMES_MS.contains(&earliest) && TIMES_MS.contains(&latest));
                for flow in &batch.flows {
                    assert!(flow.packets > 0 && flow.bytes > 0 && flow.first_ms <= flow.last_ms);
                    assert!(earliest <= flow.first_ms && flow.last_ms <= latest);
                }
                counters.add(c);
            }
            Ok(None) => break None,
            Err(e) => break Some(e.to_string()),
        }
    };
    Outcome { counters, error }
}

/// A byte at a time.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(1);
        self.0.read(&mut into[..len])
    }
}
