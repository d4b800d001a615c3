//! Waiting with a deadline and a name, instead of sleeping and hoping.

use std::thread;
use std::time::{Duration, Instant};

/// Asks `poll` until it answers; panics with `what` when it has not within `limit`, or `NETAMS_PATIENCE` times that on a slow
/// machine.
pub fn wait_for<T>(what: &str, limit: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let limit = limit * patience();
    let started = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Like [`wait_for`], for a condition.
pub fn wait_until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    wait_for(what, limit, || holds().then_some(()));
}

fn patience() -> u32 {
    let Ok(times) = std::env::var("NETAMS_PATIENCE") else { return 1 };
    times.parse().unwrap_or_else(|_| panic!("NETAMS_PATIENCE is {times:?}, and not a number"))
}
