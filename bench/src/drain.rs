//! Time from turning the flow tables over to an empty half: waiting for running programs, reading, charging to units,
//! committing to a database on disk, emptying. First with flows that are new to the store, then with the same flows again.

use std::{fs, path::Path, time::Instant};

use anyhow::Context;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use netamsd::{
    policy::{UnitConfig, UnitKind, Units, Zone},
    source::{
        Clock, Tunnels,
        kernel::{self, Constants, maps},
        tables::Geometry,
        unix_ms,
    },
    store::{StoreConfig, StoreUnit, Writer},
};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use prettytable::{Table, row};

use crate::{
    frame,
    report::{Spread, machine},
};

/// Options of `netams-bench drain`.
#[derive(clap::Args)]
pub struct Options {
    /// Flows in the tables
    #[arg(long, default_value_t = 100_000)]
    flows: u32,
    /// Flow slots a CPU and a half
    #[arg(long, default_value_t = 262_144)]
    table: u32,
    /// Rounds of each kind
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Folder for the database; it should be on the disk that the daemon would use
    #[arg(long, default_value = ".")]
    folder: std::path::PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Steps of a drain, in order.
const STEPS: [&str; 5] = ["grace period", "read", "charge", "commit", "empty"];

/// Runs the benchmark and prints its table.
pub fn run(options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(options.table.is_power_of_two(), "--table must be a power of two");
    // A mount namespace of its own: the BPF filesystem below vanishes with the process.
    unshare(CloneFlags::CLONE_NEWNS).context("this benchmark needs root")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let folder = tempfile::tempdir_in(&options.folder)?;
    let pins = folder.path().join("bpf");
    fs::create_dir(&pins)?;
    mount(Some("bpf"), &pins, Some("bpf"), MsFlags::empty(), none)?;

    let mut samples: [[Vec<f64>; STEPS.len()]; 2] = Default::default();
    for round in 0..options.rounds {
        let state = folder.path().join(format!("state{round}"));
        fs::create_dir(&state)?;
        let tables = pins.join("tables");
        fs::create_dir(&tables)?;
        measure(options, &tables, &state, &mut samples)?;
        eprint!("\r{} of {} rounds", round + 1, options.rounds);
    }
    eprintln!();
    print(options, samples);
    Ok(())
}

/// One new store: a drain of new flows, then two of continued ones.
fn measure(
    options: &Options,
    pins: &Path,
    state: &Path,
    samples: &mut [[Vec<f64>; STEPS.len()]; 2],
) -> anyhow::Result<()> {
    let geometry = Geometry {
        cpus: kernel::possible_cpus()?,
        sets: options.table / kmod_bpf::WAYS as u32,
        spill: options.table,
        classes: 256,
    };
    let mut ebpf = kernel::load(kmod_bpf::VARIANTS_OBJECT, geometry, Constants::default(), &[], Some(pins))?;
    maps::initialize(pins, geometry, 1, 1, Tunnels::Outer, &[])?;
    let mut tables = maps::open(pins)?.context("the tables are not complete")?;
    let unit = UnitConfig {
        name: "all".into(),
        kind: UnitKind::Net,
        addresses: vec!["0.0.0.0/8".parse()?],
        members: Vec::new(),
        vlan: None,
        vlan_inner: None,
        gre_key: None,
        vni: None,
        acct_policy: Vec::new(),
        fw_policy: None,
        quotas: Vec::new(),
        deny: false,
        description: None,
        email: None,
        no_local_pass: false,
    };
    let units = Units::new(std::slice::from_ref(&unit));
    let zone = Zone::parse("UTC").context("no zone UTC")?;
    let store = StoreConfig {
        idle_timeout_s: 600,
        active_timeout_s: 3600,
        keep_flows_days: 30,
        units: vec![StoreUnit { name: unit.name, kind: "net".into() }],
        policies: Vec::new(),
    };
    let mut writer = Writer::open(state, store)?;
    for drain in 0..3 {
        let program: &mut SchedClassifier =
            ebpf.program_mut("flow_cache").context("no program")?.try_into()?;
        let frame = frame::ipv4("IPv4", &[]);
        // Ten packets a flow, at random: nearly every flow occurs.
        let context = frame.context(options.flows);
        program.test_run(TestRunOptions {
            data_in: Some(&frame.bytes),
            ctx_in: Some(&context),
            repeat: options.flows * 10,
            ..TestRunOptions::new()
        })?;
        let mut at = vec![Instant::now()];
        tables.turn()?;
        at.push(Instant::now());
        let batch = tables.read(&Clock::of_jiffies(0))?;
        at.push(Instant::now());
        let now = unix_ms();
        let charges = units.charge(&batch, &zone, now);
        at.push(Instant::now());
        writer.commit(&batch, &charges, now)?;
        at.push(Instant::now());
        tables.committed()?;
        at.push(Instant::now());
        anyhow::ensure!(batch.counters.flow_packets == u64::from(options.flows) * 10, "packets were lost");
        let kind = usize::from(drain > 0);
        for (into, step) in samples[kind].iter_mut().zip(at.windows(2)) {
            into.push((step[1] - step[0]).as_secs_f64() * 1e3);
        }
    }
    Ok(maps::remove(tables.dir())?)
}

fn print(options: &Options, samples: [[Vec<f64>; STEPS.len()]; 2]) {
    let [new, continued] = samples.map(|kind| kind.map(Spread::of));
    if options.json {
        let steps: Vec<_> = STEPS
            .iter()
            .zip(new.iter().zip(&continued))
            .map(|(step, (new, continued))| serde_json::json!({"step": step, "new": new, "continued": continued}))
            .collect();
        let result =
            serde_json::json!({"machine": machine(), "unit": "ms", "flows": options.flows, "steps": steps});
        println!("{result:#}");
        return;
    }
    println!("{}\n{} flows, {} slots; ms, median (quartiles)", machine(), options.flows, options.table);
    let mut table = Table::new();
    table.set_format(*prettytable::format::consts::FORMAT_CLEAN);
    table.set_titles(row!["step", r->"new flows", r->"continued flows"]);
    for (step, (new, continued)) in STEPS.iter().zip(new.iter().zip(&continued)) {
        table.add_row(row![step, r->new.text(), r->continued.text()]);
    }
    table.printstd();
}
