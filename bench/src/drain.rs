//! Time to read a half of the flow tables, and to commit it.

/// Options of `netams-bench drain`.
#[derive(clap::Args)]
pub struct Options {}

/// Runs the benchmark.
pub fn run(_: &Options) -> anyhow::Result<()> {
    Ok(())
}
