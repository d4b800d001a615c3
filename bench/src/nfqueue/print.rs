//! The tables.

use prettytable::{Cell, Row, Table};

use super::loads::{SEGMENT, Sample};
use super::modes::{MODES, Mode};
use super::{Options, Series};
use crate::report::{Spread, machine};

/// A mode under a load.
#[derive(serde::Serialize)]
struct Outcome {
    mode: &'static str,
    load: &'static str,
    /// Wire packets a second.
    rate: Spread,
    /// Of the bare rate.
    kept: Spread,
    /// Microseconds of processor time for each packet.
    cpu: Spread,
    /// Share of the packets.
    lost: Spread,
}

impl Series {
    /// How much a bare measurement differs from the mean of the two beside it, by its worse quartile: less is no difference.
    fn noise(&self) -> f64 {
        let beside = |w: &[Sample]| w[1].rate / ((w[0].rate + w[2].rate) / 2.0);
        let ratios: Vec<f64> = self.bare.windows(3).map(beside).collect();
        if ratios.is_empty() {
            return f64::INFINITY;
        }
        let spread = Spread::of(ratios);
        (1.0 - spread.low).abs().max((spread.high - 1.0).abs())
    }

    fn results(&self, modes: &[&'static Mode]) -> Vec<Outcome> {
        let result = |mode: &'static Mode, samples: &[(Sample, f64)]| {
            let spread =
                |value: &dyn Fn(&(Sample, f64)) -> f64| Spread::of(samples.iter().map(value).collect());
            Outcome {
                mode: mode.name,
                load: self.load.name,
                rate: spread(&|(sample, _)| sample.rate),
                kept: spread(&|(sample, bare)| sample.rate / bare),
                cpu: spread(&|(sample, _)| sample.cpu),
                lost: spread(&|(sample, _)| sample.lost),
            }
        };
        let bare: Vec<_> = self.bare.iter().map(|sample| (*sample, sample.rate)).collect();
        let rest = modes.iter().zip(&self.modes).map(|(mode, samples)| result(mode, samples));
        std::iter::once(result(&MODES[0], &bare)).chain(rest).collect()
    }
}

/// Prints tables, or JSON.
pub fn print(options: &Options, modes: &[&'static Mode], series: &[Series]) {
    let results: Vec<Vec<Outcome>> = series.iter().map(|series| series.results(modes)).collect();
    let noise: Vec<f64> = series.iter().map(Series::noise).collect();
    if options.json {
        let noise: serde_json::Map<_, _> = series
            .iter()
            .zip(&noise)
            .map(|(series, noise)| (series.load.name.into(), (*noise).into()))
            .collect();
        let results: Vec<_> = results.iter().flatten().collect();
        let json = serde_json::json!({"machine": machine(), "noise": noise, "results": results});
        println!("{json:#}");
        return;
    }
    println!("{}\n{} rounds of {} s; median (quartiles)\n", machine(), options.rounds, options.seconds);
    for mode in std::iter::once(&&MODES[0]).chain(modes) {
        println!("  {:<9}{}", mode.name, mode.about);
    }
    println!();
    for series in series {
        println!("  {:<9}{}", series.load.name, series.load.about);
    }
    println!("\nShare of the bare router's throughput that is kept:");
    table(&results, |mode, load| match mode {
        0 => "1".to_owned(),
        _ => {
            let kept = results[load][mode].kept;
            let same = (kept.median - 1.0).abs() < noise[load];
            format!("{}{}", if same { "~" } else { "" }, kept.text_to(2))
        }
    });
    let noise: Vec<_> =
        series.iter().zip(&noise).map(|(s, noise)| format!("{} {noise:.2}", s.load.name)).collect();
    println!(
        "Smaller differences are noise: {}; ~ marks what cannot be told from the bare router.",
        noise.join(", ")
    );
    println!("\nThousands of wire packets delivered a second (TCP: received payload by {SEGMENT} bytes):");
    table(&results, |mode, load| {
        let Spread { median, low, high } = results[load][mode].rate;
        Spread { median: median / 1e3, low: low / 1e3, high: high / 1e3 }.text_to(0)
    });
    println!("\nProcessor time of the whole machine for each of them, in microseconds:");
    table(&results, |mode, load| results[load][mode].cpu.text_to(2));
    let Some(flood) = series.iter().position(|series| series.load.name == "U") else { return };
    println!("\nShare of the flood's packets that never arrived:");
    table(&results[flood..=flood], |mode, _| results[flood][mode].lost.text_to(2));
}

/// A row for each mode, a column for each load.
fn table(results: &[Vec<Outcome>], cell: impl Fn(usize, usize) -> String) {
    let right = |text: &str| Cell::new_align(text, prettytable::format::Alignment::RIGHT);
    let mut table = Table::new();
    table.set_format(*prettytable::format::consts::FORMAT_CLEAN);
    let loads = results.iter().filter_map(|of_load| Some(right(of_load.first()?.load)));
    table.set_titles(Row::new(std::iter::once(Cell::new("")).chain(loads).collect()));
    let Some(modes) = results.first() else { return };
    for (mode, result) in modes.iter().enumerate() {
        let cells = (0..results.len()).map(|load| right(&cell(mode, load)));
        table.add_row(Row::new(std::iter::once(Cell::new(result.mode)).chain(cells).collect()));
    }
    table.printstd();
}
