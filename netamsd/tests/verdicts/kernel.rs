//! Asks the kernel for verdicts, by BPF_PROG_TEST_RUN.

use aya::{
    Ebpf,
    maps::{Array, LpmTrie},
    programs::{SchedClassifier, TestRun, TestRunOptions},
};
use kmod_bpf::{VERDICTS_OBJECT, key_flag, map};
use netamsd::{
    config::Config,
    daemon::kernel_policies,
    flow::FlowKey,
    policy::{Engine, Verdict},
    source::{
        Tunnels,
        kernel::{self, Constants, Limit, Switches, maps::insert_prefixes},
        tables::{Geometry, selections},
    },
};
use nix::unistd::geteuid;

/// A flow as a map's value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value(kmod_bpf::FlowKey);
// SAFETY: `FlowKey` is made of integers and arrays of them, without padding: any bytes are one.
unsafe impl aya::Pod for Value {}

/// Whether the kernel can be asked; prints why not, or panics where `NETAMS_REQUIRE_LIVE=1` forbids to skip.
pub fn can_be_asked() -> bool {
    if geteuid().is_root() {
        return true;
    }
    let required = std::env::var_os("NETAMS_REQUIRE_LIVE").is_some_and(|v| v == "1");
    assert!(!required, "the differential test cannot run: needs root for BPF");
    println!("skipped: needs root for BPF");
    false
}

/// The loaded program with the policies of a configuration.
pub struct Kernel {
    ebpf: std::cell::RefCell<Ebpf>,
    switches: Switches,
}

impl Kernel {
    /// Loads it, with room for so many flows.
    pub fn load(config: &Config, engine: &Engine, flows: usize) -> Self {
        assert_eq!(config.units.len() + 1, engine.program().units.len());
        let prefixes = engine.units().prefixes();
        let policies = kernel_policies(engine, &prefixes);
        let geometry =
            Geometry { cpus: 1, sets: 1, spill: 1, classes: (prefixes.len() as u32 + 1).next_power_of_two() };
        let constants = Constants {
            enforce: true,
            tunnels: Tunnels::Charged,
            selections: selections(&prefixes),
            quotas: policies.quota_rules.len() as u32,
            ..Constants::default()
        };
        let mut more = policies.sizes().to_vec();
        more.extend([("subjects", flows as u32), ("verdicts", flows as u32)]);
        let mut ebpf =
            kernel::load(VERDICTS_OBJECT, geometry, constants, &more, None).expect("the kernel takes it");
        let table = ebpf.map_mut(map::PREFIXES).expect("a map of prefixes");
        insert_prefixes(&mut LpmTrie::try_from(table).expect("a table"), &prefixes).expect("room");
        let switches = policies.install(&mut ebpf).expect("maps of policies");
        let room = Limit { limit: u64::MAX / 2, used: 0, start_ms: 1 };
        switches.set_quotas(&vec![room; policies.quota_rules.len()]);
        Self { ebpf: ebpf.into(), switches }
    }

    /// Its verdicts on flows, by the engine's state of now, and how often what passes is charged to each quota.
    pub fn judge(&self, engine: &Engine, flows: &[FlowKey]) -> Vec<(Verdict, Vec<u64>)> {
        let state = engine.state();
        self.switches.set(&state.flags, &state.schedules);
        let mut ebpf = self.ebpf.borrow_mut();
        let mut subjects: Array<_, Value> =
            Array::try_from(ebpf.map_mut("subjects").expect("a map")).expect("an array");
        for (index, flow) in (0..).zip(flows) {
            subjects.set(index, Value(abi_key(flow)), 0).expect("room");
        }
        let mut cursor: Array<_, u64> =
            Array::try_from(ebpf.map_mut("cursor").expect("a map")).expect("an array");
        cursor.set(0, 0, 0).expect("room");
        let program: &mut SchedClassifier =
            ebpf.program_mut("next_verdict").expect("a program").try_into().expect("a classifier");
        let frame = [0; 64];
        let options =
            TestRunOptions { data_in: Some(&frame), repeat: flows.len() as u32, ..TestRunOptions::new() };
        program.test_run(options).expect("a test run");
        let verdicts: Array<_, u64> =
            Array::try_from(ebpf.map("verdicts").expect("a map")).expect("an array");
        let verdict = |index| {
            let value = verdicts.get(&index, 0).expect("a verdict");
            let charged = (0..28).map(|quota| value >> (8 + 2 * quota) & 3).collect();
            (Verdict::ALL[(value & 0xff) as usize], charged)
        };
        (0..flows.len() as u32).map(verdict).collect()
    }
}

/// The key of a flow as the programs have it.
fn abi_key(flow: &FlowKey) -> kmod_bpf::FlowKey {
    let kind = flow.tunnel.map_or(0, |tunnel| tunnel.kind.number());
    kmod_bpf::FlowKey {
        src: flow.src.octets(),
        dst: flow.dst.octets(),
        sport: flow.sport.to_be_bytes(),
        dport: flow.dport.to_be_bytes(),
        vlan: flow.vlan,
        vlan_inner: flow.vlan_inner,
        tunnel: flow.tunnel.map_or(0, |tunnel| tunnel.key),
        proto: flow.proto,
        version: flow.version,
        flags: kind << key_flag::TUNNEL_SHIFT | if flow.fragment { key_flag::FRAGMENT } else { 0 },
        used: kmod_bpf::USED,
    }
}
