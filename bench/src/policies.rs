//! What policies cost: to load them, to judge a flow that is new, in the kernel and in user space, and what packets of known
//! flows notice of them.

use std::{fmt::Write as _, io::Write, time::Instant};

use anyhow::Context;
use aya::{
    Ebpf,
    maps::{Array, LpmTrie},
    programs::{SchedClassifier, TestRun, TestRunOptions},
};
use kmod_bpf::{USED, VARIANTS_OBJECT, VERDICTS_OBJECT, map};
use netamsd::{
    config::Config,
    daemon,
    flow::Source,
    policy::Engine,
    source::{
        kernel::{self, Constants, maps::insert_prefixes},
        tables::{Geometry, flow_key, selections},
    },
};
use prettytable::{Table, row};

use crate::{
    frame,
    report::{Spread, machine},
};

/// Options of `netams-bench policies`.
#[derive(clap::Args)]
pub struct Options {
    /// Hosts with a list of policies each
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1000, 10_000])]
    units: Vec<u32>,
    /// Policies; each list has ten of them, and all but one of these do not hold
    #[arg(long, default_value_t = 1000)]
    policies: u32,
    /// Prefixes in the file of a policy that is the first of each list
    #[arg(long, default_value_t = 100_000)]
    prefixes: u32,
    /// Interleaved rounds
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Flows that are judged, one after the other.
const FLOWS: u32 = 4096;
/// Packets of known flows in a round.
const PACKETS: u32 = 400_000;

#[derive(serde::Serialize)]
struct Line {
    units: u32,
    load_s: f64,
    /// ns for each flow.
    kernel_verdict: Spread,
    user_verdict: Spread,
    /// ns for each packet of known flows, without policies and with them.
    without: Spread,
    with: Spread,
}

/// A verdict is 8 bytes and a flow 48; any bytes are one.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value(kmod_bpf::FlowKey);
// SAFETY: `FlowKey` is made of integers and arrays of them, without padding.
unsafe impl aya::Pod for Value {}

/// Runs the benchmark and prints its table.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for units in &options.units {
        lines.push(line(options, *units)?);
        eprint!("\r{} of {} measured", lines.len(), options.units.len());
        std::io::stderr().flush()?;
    }
    eprintln!();
    if options.json {
        let result = serde_json::json!({ "machine": machine(), "unit": "ns", "lines": lines });
        println!("{result:#}");
        return Ok(());
    }
    println!(
        "{}\n{} rounds; {} policies, {} prefixes in a file; ns, median (quartiles)",
        machine(),
        options.rounds,
        options.policies,
        options.prefixes
    );
    let mut table = Table::new();
    table.set_format(*prettytable::format::consts::FORMAT_CLEAN);
    table.set_titles(row![
        r->"units", r->"load, s", r->"verdict, kernel", r->"verdict, user space", r->"known flow, tee", r->"known flow, divert"
    ]);
    for l in &lines {
        table.add_row(row![
            r->l.units,
            r->format!("{:.2}", l.load_s),
            r->l.kernel_verdict.text(),
            r->l.user_verdict.text(),
            r->l.without.text(),
            r->l.with.text()
        ]);
    }
    table.printstd();
    Ok(())
}

/// Units are hosts of 10.0.0.0/8 from its beginning, in one group.
fn config(options: &Options, units: u32) -> anyhow::Result<Config> {
    let mut text = String::from("mode = \"divert\"\n[kernel]\ninterfaces = []\n");
    writeln!(text, "[[policy]]\nname = \"listed\"\nfile = \"prefixes\"")?;
    for policy in 0..options.policies {
        let port = if policy % 10 == 9 { "\"0-65535\"".to_owned() } else { (policy + 1).to_string() };
        writeln!(text, "[[policy]]\nname = \"p{policy}\"\nproto = [\"tcp\", \"udp\"]\ndst_port = [{port}]")?;
    }
    let mut names = Vec::new();
    for unit in 0..units {
        let [_, a, b, c] = unit.to_be_bytes();
        let first = unit * 10 % options.policies.max(10);
        let list: Vec<String> = (first..first + 10).map(|policy| format!("\"p{policy}\"")).collect();
        writeln!(
            text,
            "[[unit]]\nname = \"u{unit}\"\nkind = \"host\"\naddresses = [\"10.{a}.{b}.{c}\"]\nfw_policy = [\"listed\", {}]",
            list.join(", ")
        )?;
        names.push(format!("\"u{unit}\""));
    }
    writeln!(text, "[[unit]]\nname = \"all\"\nkind = \"group\"\nmembers = [{}]", names.join(", "))?;
    let mut config = Config::parse(&text)?;
    let prefix = |n: u32| format!("172.{}.{}.{}/32", 16 + (n >> 16 & 15), n >> 8 & 255, n & 255).parse();
    let prefixes = (0..options.prefixes).map(prefix).collect::<Result<_, _>>()?;
    config.files.prefixes.insert("listed".to_owned(), prefixes);
    Ok(config)
}

fn load(engine: &Engine, object: &[u8], enforce: bool) -> anyhow::Result<Ebpf> {
    let prefixes = engine.units().prefixes();
    let policies = daemon::kernel_policies(engine, &prefixes);
    let geometry = Geometry {
        cpus: kernel::possible_cpus()?,
        sets: 16_384,
        spill: 16_384,
        classes: (prefixes.len() as u32 + 1).next_power_of_two(),
    };
    let constants = Constants { enforce, selections: selections(&prefixes), ..Constants::default() };
    let mut more = policies.sizes().to_vec();
    more.extend([("subjects", FLOWS), ("verdicts", FLOWS), ("plain", 1)]);
    let mut ebpf = kernel::load(object, geometry, constants, &more, None)?;
    let table = ebpf.map_mut(map::PREFIXES).context("no map of prefixes")?;
    insert_prefixes(&mut LpmTrie::try_from(table)?, &prefixes)?;
    let switches = policies.install(&mut ebpf)?;
    let state = engine.state();
    switches.set(&state.flags, &state.schedules);
    Ok(ebpf)
}

fn line(options: &Options, units: u32) -> anyhow::Result<Line> {
    let config = config(options, units)?;
    let started = Instant::now();
    let engine = daemon::engine(&config)?;
    let mut judging = load(&engine, VERDICTS_OBJECT, true)?;
    let load_s = started.elapsed().as_secs_f64();
    let mut metering = [load(&engine, VARIANTS_OBJECT, false)?, load(&engine, VARIANTS_OBJECT, true)?];
    // From hosts of the units, far from each other, to one that is in no list.
    let flows: Vec<kmod_bpf::FlowKey> = (0..FLOWS).map(|n| flow(n * 7919 % units)).collect();
    let mut subjects: Array<_, Value> = Array::try_from(judging.map_mut("subjects").context("no map")?)?;
    for (index, flow) in (0..).zip(&flows) {
        subjects.set(index, Value(*flow), 0)?;
    }
    let keys: Vec<_> = flows.iter().map(flow_key).collect();
    let frame = frame::ipv4("IPv4", &[]);
    let mut samples = [const { Vec::new() }; 4];
    for _ in 0..options.rounds {
        let mut cursor: Array<_, u64> = Array::try_from(judging.map_mut("cursor").context("no map")?)?;
        cursor.set(0, 0, 0)?;
        samples[0].push(test_run(&mut judging, "next_verdict", &frame.bytes, None, FLOWS)?);
        let started = Instant::now();
        for key in &keys {
            std::hint::black_box(engine.verdict(key, Source::Kernel));
        }
        samples[1].push(started.elapsed().as_nanos() as f64 / keys.len() as f64);
        for (ebpf, into) in metering.iter_mut().zip([2, 3]) {
            let context = frame.context(1000.min(units));
            // Fills tables and caches.
            test_run(ebpf, "flow_cache", &frame.bytes, Some(&context), PACKETS)?;
            samples[into].push(test_run(ebpf, "flow_cache", &frame.bytes, Some(&context), PACKETS)?);
        }
    }
    let [kernel_verdict, user_verdict, without, with] = samples.map(Spread::of);
    Ok(Line { units, load_s, kernel_verdict, user_verdict, without, with })
}

/// TCP from a unit to port 22 of a host that is none.
fn flow(unit: u32) -> kmod_bpf::FlowKey {
    let mut key = kmod_bpf::FlowKey {
        sport: [156, 64],
        dport: [0, 22],
        proto: 6,
        version: 4,
        used: USED,
        ..Default::default()
    };
    let [_, a, b, c] = unit.to_be_bytes();
    key.src[10..].copy_from_slice(&[0xff, 0xff, 10, a, b, c]);
    key.dst[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
    key
}

/// Nanoseconds a run.
fn test_run(
    ebpf: &mut Ebpf,
    program: &str,
    frame: &[u8],
    context: Option<&[u8]>,
    repeat: u32,
) -> anyhow::Result<f64> {
    let program: &mut SchedClassifier = ebpf.program_mut(program).context("no such program")?.try_into()?;
    let started = Instant::now();
    program.test_run(TestRunOptions {
        data_in: Some(frame),
        ctx_in: context,
        repeat,
        ..TestRunOptions::new()
    })?;
    Ok(started.elapsed().as_nanos() as f64 / f64::from(repeat))
}
