//! When old flow records may go, and how they go.

use std::time::Duration;

use rusqlite::{Connection, params};

/// Records that a commit deletes beyond as many as it added, so that a backlog shrinks without a pause.
const STEP: u64 = 1000;
/// So long the clock has to run evenly before it may decide that records are old.
const SETTLE: Duration = Duration::from_secs(3600);
/// A wall clock that leaves the monotonic one by more than this between two commits has jumped.
const JUMP_MS: u64 = 10_000;

/// Deletes some of the records whose last packet came before `cutoff_ms`: at most 1000 more than the `added` ones.
pub(super) fn expire(conn: &Connection, cutoff_ms: i64, added: u64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM flow WHERE id IN
        (SELECT id FROM flow INDEXED BY flow_first
         WHERE first_ms < ?1 AND last_ms < ?1 ORDER BY first_ms LIMIT ?2)";
    conn.prepare_cached(sql)?.execute(params![cutoff_ms, (added + STEP) as i64])?;
    Ok(())
}

/// Knows whether the wall clock is to be trusted with a decision that cannot be undone. A machine without a battery
/// clock may start in any year, and is corrected some minutes later.
#[derive(Debug, Default)]
pub(super) struct SteadyClock {
    last: Option<(i64, Duration)>,
    steady_since: Duration,
}

impl SteadyClock {
    /// Takes the time of both clocks, and says whether the wall clock ran evenly for the last hour. `uptime` is any
    /// monotonic time.
    pub(super) fn observe(&mut self, wall_ms: i64, uptime: Duration) -> bool {
        let even = self.last.is_some_and(|(last_wall_ms, last_uptime)| {
            let expected_ms =
                last_wall_ms.saturating_add(uptime.saturating_sub(last_uptime).as_millis() as i64);
            wall_ms.abs_diff(expected_ms) <= JUMP_MS
        });
        if !even {
            self.steady_since = uptime;
        }
        self.last = Some((wall_ms, uptime));
        uptime.saturating_sub(self.steady_since) >= SETTLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_trusted_after_an_hour_without_a_jump() {
        let mut clock = SteadyClock::default();
        let mut observe = |wall_s: i64, uptime_s| clock.observe(wall_s * 1000, Duration::from_secs(uptime_s));
        assert!(!observe(1_000_000, 50));
        assert!(!observe(1_003_599, 3649));
        assert!(observe(1_003_600, 3650));
        assert!(observe(1_010_005, 10_050), "five seconds off are no jump");
        assert!(!observe(9_000_000, 10_055), "forward");
        assert!(!observe(9_003_599, 13_654));
        assert!(observe(9_003_600, 13_655));
        assert!(!observe(9_003_500, 13_656), "back");
    }
}
