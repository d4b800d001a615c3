//! From the kernel's stamps to UTC.

use nix::time::{ClockId, clock_gettime};

/// One reading of both clocks; taken anew for each batch, so that an adjusted wall clock is followed.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    mono_ns: u64,
    unix_ms: i64,
}

impl Clock {
    /// Reads the monotonic and the wall clock.
    pub fn now() -> Self {
        let read = |id| clock_gettime(id).map_or((0, 0), |t| (t.tv_sec(), t.tv_nsec()));
        let (mono, real) = (read(ClockId::CLOCK_MONOTONIC), read(ClockId::CLOCK_REALTIME));
        Self {
            mono_ns: mono.0 as u64 * 1_000_000_000 + mono.1 as u64,
            unix_ms: real.0 * 1000 + real.1 / 1_000_000,
        }
    }

    /// Milliseconds UTC since 1970.
    pub fn unix_ms(&self) -> i64 {
        self.unix_ms
    }

    /// A stamp (monotonic ns >> `STAMP_SHIFT`, modulo 2^32) as milliseconds UTC since 1970.
    ///
    /// Right for stamps of the last 52 days; one that lies a little ahead of the reading is the reading.
    pub fn stamp_to_unix_ms(&self, stamp: u32) -> i64 {
        let age = ((self.mono_ns >> kmod_bpf::STAMP_SHIFT) as u32).wrapping_sub(stamp);
        if age > u32::MAX - 4096 {
            return self.unix_ms;
        }
        self.unix_ms - ((u64::from(age) << kmod_bpf::STAMP_SHIFT) / 1_000_000) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_ages_and_survive_the_wrap() {
        let clock = Clock { mono_ns: (1 << 52) + (5 << 20), unix_ms: 1_000_000 };
        assert_eq!(clock.stamp_to_unix_ms(5), 1_000_000);
        assert_eq!(clock.stamp_to_unix_ms(6), 1_000_000, "a stamp ahead of the clock");
        assert_eq!(clock.stamp_to_unix_ms(u32::MAX), 1_000_000 - 6, "six ticks ago, before the wrap");
        assert_eq!(clock.stamp_to_unix_ms(5u32.wrapping_sub(1000)), 1_000_000 - 1048);
    }
}
