//! Commands about the node itself: its hooks, its source of packets, its rules, its ledger, and the messages that change it.

use clap::{Args, ValueEnum};
use netams_proto::{SourceKind, Verdict};

use super::{Format, Json};
use crate::failure::Failure;
use crate::render::{csv, json, ledger as ledgers, source as sources, tables};
use crate::session::Session;

/// Options of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    format: Json,
}

/// `list`.
pub fn list(args: ListArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let node = session.connect()?.node()?;
    if args.format.json {
        json(session.out, &[node])?
    } else {
        tables::list(session.out, &node)?
    }
    Ok(())
}

/// The nodes there are, by path.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum NodePath {
    #[value(name = "netams:")]
    Netams,
}

/// Options of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The node's path
    #[arg(value_name = "NODE", value_enum)]
    _node: NodePath,
    #[command(flatten)]
    format: Json,
}

/// `show`.
pub fn show(args: ShowArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let node = client.node()?;
    let look = session.look(&client, false);
    if args.format.json {
        json(session.out, &node)?;
    } else {
        tables::show_node(session.out, &node, &look)?;
    }
    Ok(())
}

/// Options of `ledger`.
#[derive(Debug, Args)]
pub struct LedgerArgs {
    #[command(flatten)]
    format: Json,
    /// Do not round bytes in the table
    #[arg(long)]
    exact: bool,
}

/// `ledger`.
pub fn ledger(args: LedgerArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let answer = client.ledger()?;
    session.warn_stale(answer.store_error.as_deref())?;
    let look = session.look(&client, args.exact);
    if args.format.json {
        json(session.out, &answer)?;
    } else {
        ledgers::table(session.out, &answer, &look)?;
    }
    Ok(())
}

/// Options of `source`.
#[derive(Debug, Args)]
pub struct SourceArgs {
    #[command(flatten)]
    format: Json,
}

/// `source`.
pub fn source(args: SourceArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    switch(None, args.format, session)
}

/// Switches to `kind`, or only asks, and shows how it is then.
fn switch(kind: Option<SourceKind>, format: Json, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let status = match kind {
        Some(kind) => client.set_source(kind)?,
        None => client.source()?,
    };
    let look = session.look(&client, false);
    if format.json {
        json(session.out, &status)?;
    } else {
        sources::status(session.out, &status, &look)?;
    }
    Ok(())
}

/// Sets the default policy, or only asks, and shows what it is then.
fn default_policy(verdict: Option<Verdict>, format: Json, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let status = match verdict {
        Some(verdict) => client.set_default_policy(verdict)?,
        None => client.source()?,
    };
    let look = session.look(&client, false);
    if format.json {
        json(session.out, &status)?;
    } else {
        sources::default_policy(session.out, &status, &look)?;
    }
    Ok(())
}

/// Options of `rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    #[command(flatten)]
    format: Format,
    /// Do not round bytes in the table
    #[arg(long)]
    exact: bool,
}

/// `rules`.
pub fn rules(args: RulesArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let answer = client.rules()?;
    let look = session.look(&client, args.exact);
    match args.format {
        Format { json: true, .. } => json(session.out, &answer)?,
        Format { csv: true, .. } => csv::rules(session.out, &answer)?,
        Format { .. } if answer.rules.is_empty() => sources::no_rules(session.out, &client.source()?, &look)?,
        Format { .. } => sources::rules(session.out, &answer, &look)?,
    }
    Ok(())
}

/// Options of `msg`.
#[derive(Debug, Args)]
pub struct MsgArgs {
    /// The node's path
    #[arg(value_name = "NODE", value_enum)]
    _node: NodePath,
    /// The control message
    #[arg(value_enum)]
    message: Message,
    /// What to set; without it the message asks
    word: Option<String>,
    #[command(flatten)]
    options: LedgerArgs,
}

/// A control message that the node understands.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Message {
    Info,
    Ledger,
    Source,
    #[value(name = "default_policy")]
    DefaultPolicy,
}

/// `msg`.
pub fn msg(args: MsgArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let (word, format) = (args.word.as_deref(), args.options.format);
    match args.message {
        Message::Source => {
            switch(choose("source", word, &SourceKind::ALL, SourceKind::name)?, format, session)
        }
        Message::DefaultPolicy => {
            default_policy(choose("default_policy", word, &Verdict::ALL, Verdict::name)?, format, session)
        }
        Message::Ledger => {
            nothing_after("ledger", word)?;
            ledger(args.options, session)
        }
        Message::Info => {
            nothing_after("info", word)?;
            let info = session.connect()?.info()?;
            if format.json {
                json(session.out, &info)?
            } else {
                tables::info(session.out, &info)?
            }
            Ok(())
        }
    }
}

/// The one of `choices` that `word` names.
fn choose<T: Copy>(
    message: &str,
    word: Option<&str>,
    choices: &[T],
    name: fn(T) -> &'static str,
) -> Result<Option<T>, Failure> {
    let Some(word) = word else { return Ok(None) };
    if let Some(choice) = choices.iter().find(|choice| name(**choice) == word) {
        return Ok(Some(*choice));
    }
    let names: Vec<&str> = choices.iter().map(|choice| name(*choice)).collect();
    Err(Failure::Usage(format!(
        "invalid value '{word}' for '{message}' [possible values: {}]; see `ngctl help msg`",
        names.join(", ")
    )))
}

fn nothing_after(message: &str, word: Option<&str>) -> Result<(), Failure> {
    match word {
        None => Ok(()),
        Some(word) => Err(Failure::Usage(format!(
            "unexpected argument '{word}' found: `{message}` only asks; see `ngctl help msg`"
        ))),
    }
}
