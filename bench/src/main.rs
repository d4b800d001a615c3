//! `netams-bench`: what metering costs, measured on the user's own machine.
//!
//! Each sub-command is one file and one table. Numbers that are compared come from one interleaved run, and every table
//! states the machine it was measured on.

mod drain;
mod frame;
mod kernel;
mod nfqueue;
mod policies;
mod replay;
mod report;

use clap::{Parser, Subcommand};

/// Measures what metering costs on this machine.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:\n  netams-bench kernel\n  netams-bench kernel --rounds 21 --json\n  netams-bench drain --flows 100000\n  \
                  netams-bench nfqueue --modes bare,naive,queue --loads M1,U\n  netams-bench policies --units 10,10000\n  netams-bench replay --file-flows 10000000"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Nanoseconds per packet of the kernel program, beside simpler ones, by BPF_PROG_TEST_RUN (needs root)
    Kernel(kernel::Options),
    /// Time to read a half of the flow tables and to commit it to the store (needs root)
    Drain(drain::Options),
    /// Throughput kept and CPU used by each way to meter, in a laboratory of network namespaces (needs root)
    Nfqueue(nfqueue::Options),
    /// Time to load policies and to judge a flow, and what known flows notice (needs root)
    Policies(policies::Options),
    /// Packets a second of netamsd replay, and the memory it takes (needs no root)
    Replay(replay::Options),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Kernel(options) => kernel::run(&options),
        Command::Drain(options) => drain::run(&options),
        Command::Nfqueue(options) => nfqueue::run(&options),
        Command::Policies(options) => policies::run(&options),
        Command::Replay(options) => replay::run(&options),
    }
}
