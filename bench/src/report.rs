//! Medians, spreads and the machine they belong to.

use std::fs;

/// Median and interquartile range of one measurement, repeated.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// First quartile.
    pub low: f64,
    /// Third quartile.
    pub high: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        Self { median: at(0.5), low: at(0.25), high: at(0.75) }
    }

    /// `median (low-high)` with one decimal.
    pub fn text(&self) -> String {
        self.text_to(1)
    }

    /// `median (low-high)` with so many decimals.
    pub fn text_to(&self, decimals: usize) -> String {
        format!("{:.decimals$} ({:.decimals$}-{:.decimals$})", self.median, self.low, self.high)
    }
}

/// One line about this machine.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or(": unknown CPU");
    let jit = read("/proc/sys/net/core/bpf_jit_enable");
    format!(
        "{}, {} CPUs, Linux {}, BPF JIT {}",
        model.trim_start_matches([' ', '\t', ':']),
        netamsd::source::kernel::possible_cpus().unwrap_or(0),
        read("/proc/sys/kernel/osrelease").trim(),
        if jit.trim() == "0" { "off" } else { "on" },
    )
}
