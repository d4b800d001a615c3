//! The two evaluators of policies, that of the kernel programs and that of user space, give equal verdicts.
//!
//! Random configurations, written as TOML and parsed, and random flows around what they mention. The kernel judges by
//! BPF_PROG_TEST_RUN with the very functions of the meter (`kmod-bpf/src/bpf/verdict.h`). Configurations that once gave
//! different verdicts are kept in `kept.rs`.

mod decisions;
mod kept;
mod kernel;
mod random;

use std::collections::BTreeMap;

use netamsd::{
    config::Config,
    daemon,
    flow::{FlowKey, Source},
    policy::{Direction, Engine, Side, UnitId, Verdict},
};

use kernel::Kernel;
use random::Random;

/// Random configurations, and flows judged by each.
const CONFIGURATIONS: usize = 250;
const FLOWS: usize = 4096;
/// Sets another number of configurations.
const VARIABLE: &str = "NETAMS_CONFIGURATIONS";
const SEED: u64 = 0x7665_7264_6963_7473;

/// Noon of a Wednesday, UTC.
const NOW_MS: i64 = 1_700_049_600_000;

fn engine(config: &Config) -> Engine {
    let engine = daemon::engine(config).expect("a checked configuration");
    engine.tick(NOW_MS);
    engine
}

/// How often each verdict was given, and packets were charged to hard quotas.
#[derive(Debug, Default)]
struct Given {
    verdicts: BTreeMap<Verdict, usize>,
    charges: u64,
}

/// The hard quotas, numbered among themselves, that a packet is charged to if it passes; twice if both of its sides are the
/// unit's and both directions count.
fn charged_quotas(engine: &Engine, flow: &FlowKey) -> Vec<usize> {
    let mut charged = Vec::new();
    for unit in engine.explain(flow, Source::Kernel, NOW_MS).units {
        let way = if unit.side == Side::Source { Direction::Out } else { Direction::In };
        let hard = engine.quotas().iter().filter(|quota| quota.config.hard).enumerate();
        for (number, quota) in hard.filter(|(_, quota)| quota.unit == unit.unit) {
            let counts = quota.config.policy.as_ref().is_none_or(|policy| unit.counted_by.contains(policy));
            if counts && [way, Direction::Sum].contains(&quota.config.direction) {
                charged.push(number);
            }
        }
    }
    charged
}

/// Judges flows by both.
fn compare(config: &Config, engine: &Engine, flows: &[FlowKey], text: &str) -> Given {
    let kernel = Kernel::load(config, engine, flows.len());
    let mut given = Given::default();
    for (flow, (said, kernel)) in flows.iter().zip(kernel.judge(engine, flows)) {
        let verdict = engine.verdict(flow, Source::Kernel);
        assert_eq!(verdict, said, "user space, kernel: {flow:?}, by\n{text}");
        let mut charged = vec![0; kernel.len()];
        if verdict == Verdict::Pass {
            charged_quotas(engine, flow).iter().for_each(|quota| charged[*quota] += 1);
        }
        assert_eq!(charged, kernel, "charged, user space, kernel: {flow:?}, by\n{text}");
        given.charges += charged.iter().sum::<u64>();
        *given.verdicts.entry(verdict).or_default() += 1;
    }
    given
}

#[test]
fn random_policies_judge_random_flows_alike() {
    if !kernel::can_be_asked() {
        return;
    }
    let asked = std::env::var(VARIABLE).ok();
    let count =
        asked.map_or(CONFIGURATIONS, |n| n.parse().unwrap_or_else(|_| panic!("{VARIABLE} is a number")));
    let mut random = Random(SEED);
    let mut given = Given::default();
    for _ in 0..count {
        let (text, config) = random.config();
        let engine = engine(&config);
        let units = config.units.len() as u32;
        for unit in (0..units).map(UnitId) {
            engine.set_blocked(unit, random.one_in(20));
        }
        engine.set_over_quota(&(0..units).map(|_| random.one_in(20)).collect::<Vec<_>>());
        let flows: Vec<FlowKey> = (0..FLOWS).map(|_| random.flow()).collect();
        let now = compare(&config, &engine, &flows, &text);
        given.charges += now.charges;
        for (verdict, count) in now.verdicts {
            *given.verdicts.entry(verdict).or_default() += count;
        }
    }
    println!("{given:?}");
    let least = count * FLOWS / 200;
    let often = |verdict| given.verdicts.get(verdict).is_some_and(|n| *n > least);
    assert!(Verdict::ALL.iter().all(often) && given.charges > least as u64, "{given:?}");
}

#[test]
fn what_was_once_judged_differently_is_judged_alike() {
    if !kernel::can_be_asked() {
        return;
    }
    for text in kept::CONFIGURATIONS {
        let config = Config::parse(text).expect("a configuration");
        let engine = engine(&config);
        let mut random = Random(SEED);
        let flows: Vec<FlowKey> = (0..FLOWS).map(|_| random.flow()).collect();
        compare(&config, &engine, &flows, text);
    }
}
