//! How much passes at the moment: means over the last seconds.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::flow::Counters;

/// The time that a mean is taken over, at least.
const SPAN: Duration = Duration::from_secs(5);

/// The time between two samples, at least.
const STEP: Duration = Duration::from_millis(100);

/// Samples of cumulative counts.
#[derive(Default)]
pub struct Rates {
    samples: VecDeque<(Instant, u64, u64)>,
}

impl Rates {
    /// Notes how much was counted up to now.
    pub fn sample(&mut self, total: &Counters) {
        let now = Instant::now();
        // However often somebody asks, the samples stay few.
        if self.samples.len() > 1 && self.samples.back().is_some_and(|(time, ..)| now - *time < STEP) {
            return;
        }
        self.samples.push_back((now, total.seen(), total.flow_bytes + total.overflow_bytes));
        // One older than the span stays, to begin it.
        while self.samples.get(1).is_some_and(|(time, ..)| now - *time >= SPAN) {
            self.samples.pop_front();
        }
    }

    /// Packets and bits a second.
    pub fn per_second(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return (0.0, 0.0);
        };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        (rate(first.1, last.1), rate(first.2, last.2) * 8.0)
    }
}
