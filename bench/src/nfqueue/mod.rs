//! Throughput kept and processor time used by each way to meter, beside a router that only forwards.
//!
//! Each mode has a laboratory of its own, client - router - server. One run measures bare, A, bare, B, ... bare, as often
//! as there are rounds; a ratio is that of a measurement to the mean of the bare ones before and after it. Sender, router,
//! reader and receiver share the processors of one machine, so what a reader costs shows in throughput sooner than on
//! a router that has them for itself.

mod loads;
mod modes;
mod print;
mod readers;

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use netams_tests::interrupt::{self, Ended, go_on};

use loads::{LOADS, Load, Sample};
use modes::{MODES, Place};

/// Options of `netams-bench nfqueue`.
#[derive(clap::Args)]
pub struct Options {
    /// Interleaved rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Modes by name, bare always among them; all unless given
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// Loads by name; all unless given
    #[arg(long, value_delimiter = ',')]
    loads: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// All measurements of one load.
pub struct Series {
    load: &'static Load,
    bare: Vec<Sample>,
    /// By mode, `bare` left out: each with the mean of the bare rates before and after it.
    modes: Vec<Vec<(Sample, f64)>>,
}

/// Runs the benchmark and prints its tables.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "this benchmark needs root, for network namespaces");
    let mut modes = chosen(&MODES, &options.modes, |mode| mode.name)?;
    modes.retain(|mode| mode.name != MODES[0].name);
    let loads = chosen(&LOADS, &options.loads, |load| load.name)?;
    let measured = interrupt::run(AssertUnwindSafe(|| measure(options, &modes, &loads)));
    match measured {
        Ok(series) => print::print(options, &modes, &series?),
        Err(Ended::Interrupted) => bail!("interrupted; everything it made is removed"),
        Err(Ended::Failed(why)) => bail!("{why}"),
    }
    Ok(())
}

/// Those of a table that are named, in the order of the table; all when none is.
fn chosen<T>(
    table: &'static [T],
    names: &[String],
    name: impl Fn(&T) -> &'static str,
) -> anyhow::Result<Vec<&'static T>> {
    let all: Vec<_> = table.iter().map(&name).collect();
    if let Some(unknown) = names.iter().find(|wanted| !all.contains(&wanted.as_str())) {
        bail!("there is no {unknown}; there are {}", all.join(", "));
    }
    Ok(table
        .iter()
        .filter(|row| names.is_empty() || names.iter().any(|wanted| wanted == name(row)))
        .collect())
}

fn measure(
    options: &Options,
    modes: &[&'static modes::Mode],
    loads: &[&'static Load],
) -> anyhow::Result<Vec<Series>> {
    let bare = Place::new(&MODES[0]);
    let places: Vec<Place> = modes.iter().map(|mode| Place::new(mode)).collect();
    let one = |place: &Place, load: &Load| -> anyhow::Result<Sample> {
        go_on();
        let running = place.start()?;
        let sample = load.run(&place.lab, Duration::from_secs(options.seconds));
        let sample = sample.with_context(|| format!("{} with {}", load.name, place.mode.name))?;
        running.end()?;
        Ok(sample)
    };
    let mut all = Vec::new();
    for load in loads {
        for place in places.iter().chain([&bare]) {
            place.lab.set_offloads(load.offloads);
        }
        let mut series = Series { load, bare: vec![one(&bare, load)?], modes: vec![Vec::new(); modes.len()] };
        for round in 1..=options.rounds {
            for (place, into) in places.iter().zip(&mut series.modes) {
                eprint!("\r{}: round {round} of {}, {:<10}", load.name, options.rounds, place.mode.name);
                std::io::stderr().flush()?;
                let sample = one(place, load)?;
                let (before, after) = (series.bare[series.bare.len() - 1], one(&bare, load)?);
                series.bare.push(after);
                into.push((sample, (before.rate + after.rate) / 2.0));
            }
        }
        all.push(series);
    }
    eprint!("\r{:40}\r", "");
    Ok(all)
}
