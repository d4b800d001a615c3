//! What each command does: its options, its question, and which printer shows the answer.

mod control;
mod flows;
mod policy;

use clap::Args;

use crate::command;
use crate::failure::Failure;
use crate::render::{csv, json, tables};
use crate::session::Session;

pub use control::{LedgerArgs, ListArgs, MsgArgs, RulesArgs, ShowArgs, SourceArgs};
pub use control::{ledger, list, msg, rules, show, source};
pub use flows::{FlowsArgs, flows};
pub use policy::{BlockArgs, ExplainArgs, PoliciesArgs, QuotaArgs, UnitsArgs};
pub use policy::{allow, block, explain, policies, quota, units};

/// Shape of an answer that has rows.
#[derive(Debug, Clone, Copy, Args)]
#[group(multiple = false)]
pub struct Format {
    /// Print the answer as JSON, numbers exact, times in milliseconds UTC
    #[arg(long)]
    json: bool,
    /// Print comma-separated values with a header, numbers exact
    #[arg(long)]
    csv: bool,
}

/// Shape of an answer that has no rows.
#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// Print the answer as JSON, numbers exact, times in milliseconds UTC
    #[arg(long)]
    json: bool,
}

/// Options of `events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Show at most the N newest
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    #[command(flatten)]
    format: Format,
}

/// `events`.
pub fn events(args: EventsArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let answer = client.events(args.top)?;
    let look = session.look(&client, false);
    match args.format {
        Format { json: true, .. } => json(session.out, &answer)?,
        Format { csv: true, .. } => csv::events(session.out, &answer)?,
        Format { .. } => tables::events(session.out, &answer, &look)?,
    }
    Ok(())
}

/// Options of `help`.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// A command, or a prefix of one
    command: Option<String>,
}

/// `help`.
pub fn help(args: HelpArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let text = match args.command {
        Some(word) => command::help(&word)?,
        None => command::overview(),
    };
    Ok(session.out.write_all(text.as_bytes())?)
}

/// `quit` has no options.
#[derive(Debug, Args)]
pub struct NoArgs {}

/// `quit`.
pub fn quit(_: NoArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    session.quit = true;
    Ok(())
}
