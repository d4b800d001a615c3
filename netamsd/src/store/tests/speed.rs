//! How long commits and queries take. `cargo test --release -p netamsd speed -- --ignored --nocapture`

use std::time::{Duration, Instant};

use super::*;

const FLOWS: u32 = 100_000;

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    println!("{what}: {:.0} ms", took.as_secs_f64() * 1e3);
    (result, took)
}

/// Each key once, in no order, over five seconds.
fn shuffled(epoch: u64, base: u32) -> Batch {
    let start_ms = T0 + epoch as i64 * 5000;
    let deltas = (0..FLOWS).map(|n| {
        let n = n.wrapping_mul(7919) % FLOWS;
        let first_ms = start_ms + i64::from(n.wrapping_mul(31) % 4000);
        delta(key(base + n), 3, 900, first_ms, first_ms + 500)
    });
    batch(epoch, deltas.collect())
}

#[test]
#[ignore = "a measurement, meant for a release build"]
fn a_hundred_thousand_flows_in_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut commit = |what: &str, batch: Batch| {
        let now_ms = T0 + batch.epoch as i64 * 5000 + 5000;
        let charges = charges(&batch);
        let (_, took) = timed(what, || writer.commit(&batch, &charges, now_ms).unwrap());
        took
    };
    commit("empty", batch(1, Vec::new()));
    let mut took = vec![commit("100,000 new flows", shuffled(2, 0))];
    took.push(commit("100,000 flows continued", shuffled(3, 0)));
    for n in 1..=9 {
        took.push(commit("100,000 more new flows", shuffled(3 + u64::from(n), n * FLOWS)));
    }
    took.push(commit("100,000 flows continued, a million in the table", shuffled(13, 4 * FLOWS)));
    let reader = Reader::open(dir.path()).unwrap();
    let top = FlowSelection { top: Some(20), ..FlowSelection::default() };
    let (all, _) = timed("top 20 of a million", || reader.flows(&top).unwrap());
    assert_eq!(all.matched, 10 * u64::from(FLOWS));
    let selections = [
        ("of one port", FlowSelection { port: Some(7), ..top.clone() }),
        ("of the last ten seconds", FlowSelection { since_ms: Some(T0 + 60_000), ..top }),
    ];
    for (what, selection) in selections {
        let (found, _) = timed(what, || reader.flows(&selection).unwrap());
        assert!(found.matched < all.matched);
    }
    let (alive, _) = timed("counting active flows", || writer.active_flows(T0 + 70_000));
    assert!(alive > 0);
    drop(writer);
    let (writer, _) = timed("opening", || open(dir.path()));
    assert_eq!(writer.total_flows(), 10 * u64::from(FLOWS));
    took.sort_unstable();
    let median = took[took.len() / 2];
    assert!(median < Duration::from_secs(1), "half of the commits took {median:?} or longer");
}
