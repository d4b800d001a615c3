//! From the configuration to what each part is set up with, and back to nothing by `--cleanup`.

use std::{hash::BuildHasher, sync::Arc};

use rustc_hash::FxBuildHasher;
use tracing::warn;

use super::DaemonError;
use crate::{
    config::{
        self, Attach, Config, ConfigError, DataSource, DefaultPolicy, Fail, Mode, PolicyProblem, Problem,
        interface_matches,
    },
    control,
    flow::{FlowKey, Prefix, Scope, Source},
    policy::{Engine, EngineSetup, PrefixList, Undecided, Verdict, Zone},
    source::{
        Judge, Tunnels,
        kernel::{self, Duty, KernelError, Marks, Style, flag},
        nfqueue::{self, GsoMode, rules},
    },
    store::{StoreConfig, StoreUnit},
    sys,
};

/// The policy engine as configured; nobody is blocked yet.
///
/// # Errors
/// When a policy is too long, which the configuration's check refuses.
pub fn engine(config: &Config) -> Result<Engine, ConfigError> {
    let setup = EngineSetup {
        units: &config.units,
        policies: &config.policies,
        files: &config.files,
        zone: config.timezone,
        undecided: undecided(config.default_policy, config.local_policy),
    };
    Engine::new(setup).map_err(|e| {
        let name = config.policies[e.policy].name.clone();
        Problem::Policy { name, problem: PolicyProblem::Long(e.rules) }.into()
    })
}

/// What becomes of packets that no list decides, by `default_policy` and `local_policy`.
pub(super) fn undecided(all: DefaultPolicy, local: Option<DefaultPolicy>) -> Undecided {
    let drops = |policy| policy == DefaultPolicy::Drop;
    Undecided { drop_all: drops(all), drop_local: drops(local.unwrap_or(all)) }
}

/// What the programs judge packets by; `prefixes` are those of their classes.
pub fn kernel_policies(engine: &Engine, prefixes: &[Prefix]) -> kernel::Policies {
    let (class_units, words) = engine.class_words(prefixes);
    let program = engine.program();
    let list = |list: &PrefixList| {
        let prefix = |(address, len, value)| (Prefix { scope: Scope::ANY, address, len }, value);
        list.prefixes().map(prefix).collect()
    };
    kernel::Policies {
        class_units: class_units.into_iter().map(u64::from).collect(),
        words: words.into_iter().map(u64::from).collect(),
        units: program.units.clone(),
        rules: program.rules.clone(),
        lists: program.lists.iter().map(list).collect(),
        schedules: engine.state().schedules.len(),
        quota_rules: program.quota_rules.clone(),
        quotas: fingerprint(engine),
    }
}

/// Says whether the hard quotas are the same: a hash of what they are, never 0; 0 where there are none.
fn fingerprint(engine: &Engine) -> u64 {
    let hard = engine.quotas().iter().filter(|quota| quota.config.hard);
    let texts: Vec<String> = hard
        .map(|quota| {
            let unit = &engine.units().names()[quota.unit.0 as usize];
            format!("{unit} {} {}", quota.config, quota.config.limit.0)
        })
        .collect();
    if texts.is_empty() { 0 } else { FxBuildHasher.hash_one(texts) | 1 }
}

/// Options of the kernel source as configured.
pub fn source_options(config: &Config, engine: &Engine, store: u64) -> kernel::Options {
    let prefixes = engine.units().prefixes();
    let enforce = config.mode == Mode::Divert;
    let state = engine.state();
    let patterns = config.kernel.interfaces.clone();
    kernel::Options {
        wanted: Box::new(move |name| interface_matches(&patterns, name)),
        style: match config.kernel.attach {
            Attach::Auto => None,
            Attach::Tcx => Some(Style::Tcx),
            Attach::Clsact => Some(Style::Clsact),
        },
        duty: if config.source == DataSource::Off { Duty::None } else { Duty::Meter },
        // Nothing is counted before it is clear what a former daemon left.
        flags: flag::PAUSED,
        flows: config.kernel.flows,
        spill: config.kernel.spill,
        bpffs: config.kernel.bpffs.clone(),
        store,
        marks: Marks { handover: config.nfqueue.handover_mark, stamp: config.nfqueue.stamp_mask },
        tunnels: tunnels(config),
        policies: enforce.then(|| kernel_policies(engine, &prefixes)),
        state: (state.flags.clone(), state.schedules.clone()),
        limits: Vec::new(),
        prefixes,
    }
}

/// Options of the source in user space as configured.
pub fn nfqueue_options(config: &Config, engine: &Arc<Engine>, store: u64) -> nfqueue::Options {
    let c = &config.nfqueue;
    let judging = Arc::clone(engine);
    let passes = move |key: &FlowKey| judging.verdict(key, Source::Nfqueue) == Verdict::Pass;
    nfqueue::Options {
        chains: c
            .chains
            .iter()
            .map(|chain| match chain {
                config::Chain::Forward => rules::Chain::Forward,
                config::Chain::Input => rules::Chain::Input,
                config::Chain::Output => rules::Chain::Output,
            })
            .collect(),
        interfaces: config.kernel.interfaces.clone(),
        // Checked with the configuration: these fit.
        first_queue: c.first_queue as u16,
        queues: c.queues as u16,
        gso: match c.gso {
            config::Gso::Auto => GsoMode::Auto,
            config::Gso::Exact => GsoMode::Exact,
            config::Gso::Estimate => GsoMode::Estimate,
        },
        fail_open: c.fail == Fail::Open,
        offload: c.offload.then_some(c.connmark_mask),
        backend: match c.backend {
            config::Backend::Auto => None,
            config::Backend::Nft => Some(nfqueue::Backend::Nft),
            config::Backend::Iptables => Some(nfqueue::Backend::Iptables),
        },
        pin: c.pin,
        copy_bytes: c.copy_bytes,
        max_packets: c.max_packets,
        stamp: c.stamp_mask,
        handover: c.handover_mark,
        folder: c.tables.clone(),
        flows: config.kernel.flows,
        spill: config.kernel.spill,
        store,
        tunnels: tunnels(config),
        prefixes: engine.units().prefixes(),
        judge: (config.mode == Mode::Divert).then(|| Judge::new(passes)),
    }
}

fn tunnels(config: &Config) -> Tunnels {
    match (config.kernel.tunnels, config.accounting.charge) {
        (config::Tunnels::Outer, _) => Tunnels::Outer,
        (config::Tunnels::Inner, config::Charge::Outer) => Tunnels::Inner,
        (config::Tunnels::Inner, config::Charge::Inner) => Tunnels::Charged,
    }
}

/// What the store has to know of the configuration.
pub fn store_config(config: &Config) -> StoreConfig {
    let unit =
        |u: &crate::policy::UnitConfig| StoreUnit { name: u.name.clone(), kind: u.kind.as_str().to_owned() };
    StoreConfig {
        idle_timeout_s: config.accounting.idle_timeout_s,
        active_timeout_s: config.accounting.active_timeout_s,
        keep_flows_days: config.accounting.keep_flows_days,
        units: config.units.iter().map(unit).collect(),
        policies: config.policies.iter().map(|policy| policy.name.clone()).collect(),
    }
}

pub(super) fn control_config(config: &Config, zone: &Zone) -> control::ControlConfig {
    let control = &config.control;
    control::ControlConfig {
        socket: control.socket.clone(),
        group: control.group.clone(),
        others_may_read: control.others_may_read,
        max_connections: control.max_connections,
        timezone: zone.name().to_owned(),
    }
}

pub(super) fn warn_of_absent_interfaces(config: &Config) -> Result<(), DaemonError> {
    for name in absent_interfaces(config)? {
        warn!("there is no interface {name} now; it is metered from the moment it appears");
    }
    Ok(())
}

/// Configured interfaces, spelled without a wildcard, that do not exist.
///
/// # Errors
/// When interfaces cannot be listed.
pub fn absent_interfaces(config: &Config) -> Result<Vec<String>, KernelError> {
    let present = kernel::interface_names()?;
    let literal = |name: &&String| !name.contains(['*', '?']);
    let absent = |name: &&String| !present.contains(*name);
    Ok(config.kernel.interfaces.iter().filter(literal).filter(absent).cloned().collect())
}

/// Removes all programs, rules and tables of this network namespace; says how many packets they held.
///
/// # Errors
/// When a daemon is running here, or something cannot be removed.
pub fn cleanup(config: &Config) -> Result<u64, DaemonError> {
    // Where they cannot run there are none, and nothing is needed to remove them.
    let programs = kernel::can_run().is_ok();
    sys::require_capabilities(programs)?;
    let _locks = sys::lock(&config.state)?;
    rules::remove().map_err(nfqueue::NfqueueError::from)?;
    let queued = nfqueue::cleanup(&config.nfqueue.tables)?;
    let held = if programs { kernel::cleanup(&config.kernel.bpffs)? } else { 0 };
    Ok(held + queued)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_and_the_rules_take_the_same_patterns() {
        let names =
            ["", "a", "lo", "eth0", "br-0123456789a", "br-0123456789ab", "br-0123456789abc", "\u{e9}", "!"];
        let around = (0..128u8).map(|byte| format!("a{}b", char::from(byte)));
        for name in names.into_iter().map(str::to_owned).chain(around) {
            for pattern in [name.clone(), format!("{name}*"), format!("{name}+"), format!("*{name}")] {
                let plan = rules::Plan {
                    chains: vec![rules::Chain::Forward],
                    interfaces: vec![pattern.clone()],
                    queues: rules::Queues { first: 0, count: 1 },
                    output_queue: None,
                    bypass: true,
                };
                assert_eq!(config::netfilter_pattern(&pattern), plan.check().is_ok(), "{pattern:?}");
            }
        }
    }
}
