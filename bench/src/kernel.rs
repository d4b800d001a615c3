//! Nanoseconds per packet of the kernel program beside an empty one, beside the parser and the clock alone, and beside a
//! hash table with atomic additions.
//!
//! BPF_PROG_TEST_RUN runs a program many times over one packet; each program first gives the packet the source address of
//! a random flow (see `variants.bpf.c`). Rounds interleave all programs, and from each round's figure that of the empty
//! program, which chooses flows too, is subtracted: what remains is the program alone.

use std::{io::Write, time::Instant};

use anyhow::{Context, ensure};
use aya::{
    Ebpf,
    programs::{SchedClassifier, TestRun, TestRunOptions},
};
use netamsd::source::{
    Tunnels,
    kernel::{self, Constants},
    tables::Geometry,
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use prettytable::{Table, row};

use crate::{
    frame::{self, Frame},
    report::{Spread, machine},
};

/// Options of `netams-bench kernel`.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved rounds
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Packets of each program in each round
    #[arg(long, default_value_t = 400_000)]
    packets: u32,
    /// Flow slots a CPU and a half, for both kinds of table
    #[arg(long, default_value_t = 262_144)]
    table: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Programs in the order of the columns, and what they account of tunnels; the first is subtracted.
const PROGRAMS: [(&str, Tunnels); 5] = [
    ("empty", Tunnels::Outer),
    ("parse_clock", Tunnels::Outer),
    ("hash_atomics", Tunnels::Outer),
    ("flow_cache", Tunnels::Outer),
    ("flow_cache", Tunnels::Inner),
];
/// `skb->mark` that makes each packet another flow.
const NEW_FLOWS: u32 = u32::MAX;
const FLOWS: [(&str, u32); 5] =
    [("1", 1), ("1 k", 1000), ("10 k", 10_000), ("100 k", 100_000), ("all new", NEW_FLOWS)];

#[derive(serde::Serialize)]
struct Line {
    frame: &'static str,
    flows: &'static str,
    /// The empty program with its loop and choice of flow, ns; already subtracted from the others.
    empty: Spread,
    parse_clock: Spread,
    hash_atomics: Spread,
    flow_cache: Spread,
    /// With inner flows of tunnels.
    inner: Spread,
    /// Medians of ratios within a round.
    to_hash: f64,
    to_parse: f64,
}

/// Runs the benchmark and prints its table.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.table.is_power_of_two(), "--table must be a power of two");
    let mut cpus = CpuSet::new();
    cpus.set(0)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("cannot stay on one CPU")?;
    let frames = [
        frame::ipv4("IPv4", &[]),
        frame::ipv4("IPv4, VLAN", &[7]),
        frame::ipv6("IPv6"),
        frame::vxlan("VXLAN"),
    ];
    let mut lines = Vec::new();
    for frame in &frames {
        for (name, flows) in FLOWS {
            lines.push(line(options, frame, name, flows)?);
            if !options.json {
                eprint!("\r{} of {} measured", lines.len(), frames.len() * FLOWS.len());
                std::io::stderr().flush()?;
            }
        }
    }
    if options.json {
        let result = serde_json::json!({ "machine": machine(), "unit": "ns/packet", "lines": lines });
        println!("{result:#}");
        return Ok(());
    }
    eprint!("\r");
    print(options, &lines);
    Ok(())
}

fn line(options: &Options, frame: &Frame, name: &'static str, flows: u32) -> anyhow::Result<Line> {
    let geometry = Geometry {
        cpus: kernel::possible_cpus()?,
        sets: options.table / kmod_bpf::WAYS as u32,
        spill: options.table,
        classes: 256,
    };
    let mut samples = PROGRAMS.map(|_| Vec::new());
    for _ in 0..options.rounds {
        // Loaded anew each round: where code and tables happen to lie in memory is part of the spread.
        let mut loaded = [load(geometry, Tunnels::Outer)?, load(geometry, Tunnels::Inner)?];
        let packets =
            if flows == NEW_FLOWS { options.packets.min(options.table / 2) } else { options.packets };
        for ((program, tunnels), into) in PROGRAMS.iter().zip(&mut samples) {
            let mut ebpf = &mut loaded[usize::from(*tunnels == Tunnels::Inner)];
            let mut fresh;
            if flows == NEW_FLOWS {
                // Every packet must find room.
                fresh = load(geometry, *tunnels)?;
                ebpf = &mut fresh;
            } else {
                // Fills tables and caches.
                run_once(ebpf, program, frame, flows, packets)?;
            }
            into.push(run_once(ebpf, program, frame, flows, packets)?);
        }
    }
    let empty = samples[0].clone();
    let net = |i: usize| samples[i].iter().zip(&empty).map(|(ns, base)| ns - base).collect::<Vec<_>>();
    let ratio = |of: usize| {
        let ratios = net(3).iter().zip(net(of)).map(|(a, b)| a / b.max(0.1)).collect();
        Spread::of(ratios).median
    };
    Ok(Line {
        frame: frame.name,
        flows: name,
        to_hash: ratio(2),
        to_parse: ratio(1),
        parse_clock: Spread::of(net(1)),
        hash_atomics: Spread::of(net(2)),
        flow_cache: Spread::of(net(3)),
        inner: Spread::of(net(4)),
        empty: Spread::of(empty),
    })
}

fn load(geometry: Geometry, tunnels: Tunnels) -> anyhow::Result<Ebpf> {
    Ok(kernel::load(
        kmod_bpf::VARIANTS_OBJECT,
        geometry,
        Constants { tunnels, ..Constants::default() },
        &[("plain", geometry.spill)],
        None,
    )?)
}

fn run_once(ebpf: &mut Ebpf, program: &str, frame: &Frame, flows: u32, packets: u32) -> anyhow::Result<f64> {
    let program: &mut SchedClassifier = ebpf.program_mut(program).context("no such program")?.try_into()?;
    let context = frame.context(flows);
    let started = Instant::now();
    program.test_run(TestRunOptions {
        data_in: Some(&frame.bytes),
        ctx_in: Some(&context),
        repeat: packets,
        ..TestRunOptions::new()
    })?;
    // The kernel's own answer is in whole nanoseconds; what the call costs beside the packets is far below one of them.
    Ok(started.elapsed().as_nanos() as f64 / f64::from(packets))
}

fn print(options: &Options, lines: &[Line]) {
    println!(
        "{}\n{} rounds of {} packets, {} flow slots; ns per packet, median (quartiles), empty program subtracted; \
         inner: netams with tunnels = \"inner\"",
        machine(),
        options.rounds,
        options.packets,
        options.table
    );
    let mut table = Table::new();
    table.set_format(*prettytable::format::consts::FORMAT_CLEAN);
    table.set_titles(row!["frame", "flows", r->"empty", r->"parse+clock", r->"hash+atomics", r->"netams", r->"/hash", r->"/parse", r->"inner"]);
    for l in lines {
        table.add_row(row![
            l.frame,
            l.flows,
            r->l.empty.text(),
            r->l.parse_clock.text(),
            r->l.hash_atomics.text(),
            r->l.flow_cache.text(),
            r->format!("{:.2}", l.to_hash),
            r->format!("{:.2}", l.to_parse),
            r->l.inner.text()
        ]);
    }
    table.printstd();
}
