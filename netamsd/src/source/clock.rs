//! From the stamps of flows to UTC.

use nix::time::{ClockId, clock_getres, clock_gettime};

/// One reading of the stamp clock and the wall clock; taken anew for each batch, so that an adjusted wall clock is followed.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    stamp: u32,
    tick_ns: u64,
    unix_ms: i64,
}

impl Clock {
    /// Reads the wall clock; `stamp` is the stamp clock, just read, of which one tick is `tick_ns` nanoseconds.
    pub fn new(stamp: u32, tick_ns: u64) -> Self {
        Self { stamp, tick_ns, unix_ms: unix_ms() }
    }

    /// [`Self::new`] for stamps in jiffies, which is what the clock program says.
    pub fn of_jiffies(stamp: u32) -> Self {
        // The resolution of the coarse clocks is the kernel's tick, which counts jiffies (kernel/time/posix-timers.c).
        let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE);
        Self::new(stamp, tick.map_or(4_000_000, |t| t.tv_nsec() as u64))
    }

    /// A stamp (ticks modulo 2^32) as milliseconds UTC since 1970.
    ///
    /// Right for stamps of the last 49 days with 1000 ticks a second, longer with fewer; one that lies a little ahead of the
    /// reading is the reading.
    pub fn stamp_to_unix_ms(&self, stamp: u32) -> i64 {
        let age = self.stamp.wrapping_sub(stamp);
        if age > u32::MAX - 4096 {
            return self.unix_ms;
        }
        self.unix_ms - (u64::from(age) * self.tick_ns / 1_000_000) as i64
    }
}

/// The wall clock, milliseconds UTC since 1970.
pub fn unix_ms() -> i64 {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |t| t.tv_sec() * 1000 + t.tv_nsec() / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_ages_and_survive_the_wrap() {
        let clock = Clock { stamp: 5, tick_ns: 4_000_000, unix_ms: 1_000_000 };
        assert_eq!(clock.stamp_to_unix_ms(5), 1_000_000);
        assert_eq!(clock.stamp_to_unix_ms(6), 1_000_000, "a stamp ahead of the clock");
        assert_eq!(clock.stamp_to_unix_ms(u32::MAX), 1_000_000 - 24, "six ticks ago, before the wrap");
        assert_eq!(clock.stamp_to_unix_ms(5u32.wrapping_sub(1000)), 1_000_000 - 4000);
    }
}
