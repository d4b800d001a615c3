//! Packets a second of `netamsd replay`: of one core with the capture in memory, reading, parsing and counting; and of the
//! whole program with a file, the store and the JSON document, with the most memory that it had.

use std::{
    fs::{self, File},
    hint::black_box,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use netamsd::source::{Tunnels, replay::Replay};
use prettytable::{Table, row};

use crate::{
    frame::{self, Frame},
    report::{Spread, machine},
};

/// Options of `netams-bench replay`.
#[derive(clap::Args)]
pub struct Options {
    /// Packets of a capture in memory
    #[arg(long, default_value_t = 1_000_000)]
    packets: u32,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Flows of the files for the whole program; each file has four packets a flow, and a million at least
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 100_000, 1_000_000])]
    file_flows: Vec<u32>,
    /// The program
    #[arg(long, default_value = "target/release/netamsd")]
    netamsd: PathBuf,
    /// Folder for the file and for the store, which can take gigabytes
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const FLOWS: [(&str, u32); 4] = [("1", 1), ("1 k", 1000), ("100 k", 100_000), ("1 M", 1_000_000)];

/// One line of the first table: millions of packets a second.
#[derive(serde::Serialize)]
struct Core {
    frame: &'static str,
    flows: &'static str,
    outer: Spread,
    inner: Spread,
}

/// One line of the second table.
#[derive(serde::Serialize)]
struct Program {
    flows: u32,
    packets: u32,
    seconds: f64,
    megapackets_s: f64,
    peak_mib: u64,
}

/// Runs the benchmark and prints its tables.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut cores = Vec::new();
    for frame in [frame::ipv4("IPv4", &[]), frame::ipv6("IPv6"), frame::vxlan("VXLAN")] {
        for (name, flows) in FLOWS {
            let mut capture = Vec::new();
            write(&mut capture, &frame, flows, options.packets)?;
            let mut samples = [const { Vec::new() }; 2];
            for _ in 0..options.rounds {
                for (samples, tunnels) in samples.iter_mut().zip([Tunnels::Outer, Tunnels::Inner]) {
                    samples.push(in_memory(&capture, tunnels, options.packets)?);
                }
            }
            let [outer, inner] = samples.map(Spread::of);
            cores.push(Core { frame: frame.name, flows: name, outer, inner });
            eprint!("\r{} of 12 captures", cores.len());
        }
    }
    eprintln!();
    let folder = tempfile::tempdir_in(&options.folder)?;
    let programs = options.file_flows.iter().map(|flows| program(&options.netamsd, folder.path(), *flows));
    let programs = programs.collect::<anyhow::Result<Vec<_>>>()?;
    print(options, &cores, &programs);
    Ok(())
}

/// A pcap file: a packet a microsecond, each of a flow at random.
fn write(to: &mut impl Write, frame: &Frame, flows: u32, packets: u32) -> std::io::Result<()> {
    to.write_all(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat())?;
    let (mut bytes, len) = (frame.bytes.clone(), frame.bytes.len() as u32);
    // Marsaglia's xorshift.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for number in 0..packets {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let place = frame.place as usize;
        bytes[place..place + 4].copy_from_slice(&((random >> 32) as u32 % flows).to_be_bytes());
        let head = [1_700_000_000 + number / 1_000_000, number % 1_000_000, len, len];
        to.write_all(&head.map(u32::to_le_bytes).concat())?;
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn in_memory(capture: &[u8], tunnels: Tunnels, packets: u32) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let mut replay = Replay::new(capture, tunnels)?;
    let mut counted = 0;
    while let Some(batch) = replay.next_batch()? {
        counted += black_box(&batch).counters.packets_in;
    }
    let seconds = begin.elapsed().as_secs_f64();
    anyhow::ensure!(counted == u64::from(packets), "packets were lost");
    Ok(f64::from(packets) / seconds / 1e6)
}

fn program(netamsd: &Path, folder: &Path, flows: u32) -> anyhow::Result<Program> {
    let packets = flows.saturating_mul(4).max(1_000_000);
    let path = folder.join("capture.pcap");
    let mut file = BufWriter::new(File::create(&path)?);
    write(&mut file, &frame::ipv4("IPv4", &[]), flows, packets)?;
    file.into_inner()?.sync_all()?;
    let begin = Instant::now();
    let mut child = Command::new(netamsd)
        .args(["replay".as_ref(), "--json".as_ref(), path.as_os_str()])
        .env("TMPDIR", folder)
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("{}; see --netamsd", netamsd.display()))?;
    let mut peak_mib = 0;
    let status = loop {
        peak_mib = peak_mib.max(most_memory_mib(child.id()));
        match child.try_wait()? {
            Some(status) => break status,
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    anyhow::ensure!(status.success(), "netamsd failed");
    fs::remove_file(&path)?;
    Ok(Program { flows, packets, seconds, megapackets_s: f64::from(packets) / seconds / 1e6, peak_mib })
}

/// What a process has had of memory at most; 0 once it has ended.
fn most_memory_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn print(options: &Options, cores: &[Core], programs: &[Program]) {
    if options.json {
        let result = serde_json::json!({
            "machine": machine(), "unit": "million packets/s", "core": cores, "program": programs,
        });
        println!("{result:#}");
        return;
    }
    println!("{}\n{} rounds of {} packets", machine(), options.rounds, options.packets);
    println!("In memory, one core; millions of packets a second, median (quartiles):");
    let mut table = Table::new();
    table.set_format(*prettytable::format::consts::FORMAT_CLEAN);
    table.set_titles(row!["frame", "flows", r->"outer layer", r->"--inner"]);
    for core in cores {
        table.add_row(row![core.frame, core.flows, r->core.outer.text(), r->core.inner.text()]);
    }
    table.printstd();
    println!("\nThe whole program, replay --json of a file:");
    let mut table = Table::new();
    table.set_format(*prettytable::format::consts::FORMAT_CLEAN);
    table.set_titles(row![r->"flows", r->"packets", r->"seconds", r->"M packets/s", r->"peak MiB"]);
    for p in programs {
        let (seconds, rate) = (format!("{:.1}", p.seconds), format!("{:.2}", p.megapackets_s));
        table.add_row(row![r->p.flows, r->p.packets, r->seconds, r->rate, r->p.peak_mib]);
    }
    table.printstd();
}
