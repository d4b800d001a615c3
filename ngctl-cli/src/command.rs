//! The table of commands, and how a line becomes a call of one of them.
//!
//! The table is the only list of commands: parsing, prefixes, help and the overview are made from it.

use std::fmt::Write;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, FromArgMatches};

use crate::ask;
use crate::failure::{EXIT_CODES, Failure};
use crate::import;
use crate::session::Session;

type Result<T> = std::result::Result<T, Failure>;

/// One command.
pub struct Command {
    /// What is typed; any prefix that fits no other command will do.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// The whole line, options in brackets.
    pub syntax: &'static str,
    /// One line for the overview.
    pub summary: &'static str,
    /// What the summary and the options do not say, with examples.
    pub help: &'static str,
    args: fn(clap::Command) -> clap::Command,
    run: fn(&ArgMatches, &mut Session<'_>) -> Result<()>,
}

/// Every command, in the order of the overview.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "flows",
        aliases: &[],
        syntax: "flows [--top N] [--unit UNIT] [--src PREFIX] [--dst PREFIX] [--proto PROTO] [--port N] [--since TIME] \
                 [--layer outer|inner] [--sort bytes|packets|first|last] [--json|--csv] [--exact]",
        summary: "show flow records, the biggest first",
        help: "Flows are unidirectional. Packets are packets on the wire, bytes are layer-3 bytes. A `~`\n\
               before them says that they are estimated.\n\
               --layer inner shows what tunnels carry instead; the two layers are never added together.\n\
               Times are read and shown in the daemon's zone. An hour that a clock change repeats means its first\n\
               occurrence.\n\n\
               Examples:\n  ngctl flows --top 10\n  ngctl flows --unit server --since today --sort packets\n  \
               ngctl flows --proto udp --port 53 --since \"2026-11-30 14:00\" --csv\n  \
               ngctl flows --layer inner --dst 10.0.0.0/8",
        args: ask::FlowsArgs::augment_args,
        run: |matches, session| ask::flows(args(matches)?, session),
    },
    Command {
        name: "units",
        aliases: &[],
        syntax: "units [UNIT] [--json|--csv] [--exact]",
        summary: "show what each unit used today, this month and in total, or one unit in full",
        help: "In is traffic to the unit, out is traffic from it. One unit in full has what each policy of its\n\
               acct_policy counted, and what was dropped of its packets by reason, which is in no other count:\n\
               blocked, quota, policy (none of its fw_policy held), default (nobody decided), changed (by\n\
               policies that are no longer in force). In CSV, `estimated` says that some packets in the store\n\
               were inferred from super-packets whose segment size is not known.\n\n\
               Examples:\n  ngctl units\n  ngctl units students\n  ngctl units --csv > units.csv",
        args: ask::UnitsArgs::augment_args,
        run: |matches, session| ask::units(args(matches)?, session),
    },
    Command {
        name: "policies",
        aliases: &[],
        syntax: "policies [--json|--csv] [--exact]",
        summary: "show what each policy counted, of each unit that has it in its list",
        help: "Packets that the flow tables had no room for are in the counts of units, and in those of no policy.\n\n\
               Examples:\n  ngctl policies\n  ngctl policies --json",
        args: ask::PoliciesArgs::augment_args,
        run: |matches, session| ask::policies(args(matches)?, session),
    },
    Command {
        name: "quota",
        aliases: &[],
        syntax: "quota [UNIT] [--json|--csv] [--exact]",
        summary: "show how much of each quota is used, and say by the exit code whether one is over",
        help: "Exit codes: 0 none of those shown is over, 1 one is, 75 it cannot be told since the store does not\n\
               take the newest counts. A unit that is over a hard quota is blocked until the period ends.\n\n\
               Examples:\n  ngctl quota\n  ngctl quota students || echo enough for this month",
        args: ask::QuotaArgs::augment_args,
        run: |matches, session| ask::quota(args(matches)?, session),
    },
    Command {
        name: "explain",
        aliases: &[],
        syntax: "explain --src ADDRESS --dst ADDRESS [--proto PROTO] [--sport N] [--dport N] [--vlan ID] \
                 [--vlan-inner ID] [--at TIME] [--json]",
        summary: "show how a packet is counted and judged, and why",
        help: "Both sides of a packet must pass. A unit says pass when a policy of its fw_policy holds, and drop\n\
               when none does, or when it is blocked; without a list it says nothing. Where nobody says anything,\n\
               local_policy decides if a side is a unit, and default_policy otherwise.\n\n\
               Examples:\n  ngctl explain --src 192.0.2.77 --dst 198.51.100.1 --dport 443\n  \
               ngctl explain --src 192.0.2.77 --dst 198.51.100.1 --proto udp --dport 53 --at \"2026-11-30 23:30\"",
        args: ask::ExplainArgs::augment_args,
        run: |matches, session| ask::explain(args(matches)?, session),
    },
    Command {
        name: "block",
        aliases: &[],
        syntax: "block UNIT [--json]",
        summary: "let none of a unit's packets pass, from now on and also after a restart",
        help: "Flows that exist already are blocked within a second. Needs mode = \"divert\", and a store that\n\
               takes it: on a full disk the exit code is 75 and nothing has changed. A packet that belongs\n\
               to several units passes only if none of them is blocked.\n\n\
               Examples:\n  ngctl block students",
        args: ask::BlockArgs::augment_args,
        run: |matches, session| ask::block(args(matches)?, session),
    },
    Command {
        name: "allow",
        aliases: &[],
        syntax: "allow UNIT [--json]",
        summary: "end what `block` began",
        help: "Examples:\n  ngctl allow students",
        args: ask::BlockArgs::augment_args,
        run: |matches, session| ask::allow(args(matches)?, session),
    },
    Command {
        name: "list",
        aliases: &["ls"],
        syntax: "list [--json]",
        summary: "show the node that the daemon is",
        help: "Examples:\n  ngctl list",
        args: ask::ListArgs::augment_args,
        run: |matches, session| ask::list(args(matches)?, session),
    },
    Command {
        name: "show",
        aliases: &["inquire"],
        syntax: "show netams: [--json]",
        summary: "show the hooks through which the daemon sees packets",
        help: "Position 1 sees packets before every other program on the interface.\n\n\
               Examples:\n  ngctl show netams:",
        args: ask::ShowArgs::augment_args,
        run: |matches, session| ask::show(args(matches)?, session),
    },
    Command {
        name: "source",
        aliases: &[],
        syntax: "source [--json]",
        summary: "show where packets are taken from, how, and how many",
        help: "`ngctl msg netams: source kernel` switches. Rates are of packets on the wire; queues count a\n\
               super-packet as one.\n\n\
               Examples:\n  ngctl source\n  ngctl source --json | jq .packets_per_s",
        args: ask::SourceArgs::augment_args,
        run: |matches, session| ask::source(args(matches)?, session),
    },
    Command {
        name: "rules",
        aliases: &[],
        syntax: "rules [--json|--csv] [--exact]",
        summary: "show the netfilter rules of the daemon with their counters",
        help: "A rule counts a super-packet as one packet. The counters of rules that queue are the ledger's\n\
               reference. A narrow terminal cuts rules short; --csv shows them whole.\n\n\
               Examples:\n  ngctl rules",
        args: ask::RulesArgs::augment_args,
        run: |matches, session| ask::rules(args(matches)?, session),
    },
    Command {
        name: "msg",
        aliases: &["cmd"],
        syntax: "msg netams: MESSAGE [WORD] [--json] [--exact]",
        summary: "send a control message to the node and show its answer",
        help: "info    the historical counters on two lines\n  \
               mode: 0 off, 1 tee, 2 divert; default_policy: 1 drop, 2 pass; debug: 0 info, 1 debug, 2 trace\n\
               ledger  the same as the command `ledger`\n\
               source [kernel|nfqueue|off]\n        \
               switches to this source at once, and shows what the command `source` does\n\
               default_policy [pass|drop]\n        \
               sets what happens to packets that no policy decides; enforced in mode divert\n\n\
               Examples:\n  ngctl msg netams: info\n  ngctl msg netams: ledger --json\n  \
               ngctl msg netams: source nfqueue\n  ngctl msg netams: default_policy drop",
        args: ask::MsgArgs::augment_args,
        run: |matches, session| ask::msg(args(matches)?, session),
    },
    Command {
        name: "ledger",
        aliases: &[],
        syntax: "ledger [--json] [--exact]",
        summary: "show where every packet seen has gone",
        help: "For each source: since the daemon's store was created, since the daemon's start, and since the\n\
               source was switched last. Terms that a source does not have are left out.\n\n\
               Examples:\n  ngctl ledger\n  ngctl ledger --json | jq '.ledgers[].total.lost'",
        args: ask::LedgerArgs::augment_args,
        run: |matches, session| ask::ledger(args(matches)?, session),
    },
    Command {
        name: "events",
        aliases: &[],
        syntax: "events [--top N] [--json|--csv]",
        summary: "show recorded gaps and other events, the newest first",
        help: "Missed are the packets that passed meanwhile, by the interfaces' own counters. A narrow terminal cuts details short;\n\
               --csv shows them whole.\n\n\
               Examples:\n  ngctl events --top 5",
        args: ask::EventsArgs::augment_args,
        run: |matches, session| ask::events(args(matches)?, session),
    },
    Command {
        name: "import",
        aliases: &[],
        syntax: "import FILE [--output FILE] [--force]",
        summary: "turn a NeTAMS configuration into one of netamsd",
        help: "The configuration goes to stdout. The report on stderr names, by line, what was not kept as it\n\
               was and what is to be completed by hand; the exit code is 1 then, and 0 when nothing is to say.\n\
               No daemon is asked. Passwords are neither kept nor shown. Of quotas, 20G becomes 20GB.\n\
               NeTAMS keeps quotas in its database: add `set name UNIT month 20G sum` to `service quota`.\n\n\
               Examples:\n  ngctl import /usr/local/etc/netams.cfg --output netams.toml\n  \
               ngctl import netams.cfg 2> report.txt | less",
        args: import::ImportArgs::augment_args,
        run: |matches, session| import::import(args(matches)?, session),
    },
    Command {
        name: "help",
        aliases: &["?"],
        syntax: "help [COMMAND]",
        summary: "show all commands, or one",
        help: "Examples:\n  ngctl help\n  ngctl help flows",
        args: ask::HelpArgs::augment_args,
        run: |matches, session| ask::help(args(matches)?, session),
    },
    Command {
        name: "quit",
        aliases: &["exit"],
        syntax: "quit",
        summary: "end the interactive mode",
        help: "So does the end of input.",
        args: ask::NoArgs::augment_args,
        run: |matches, session| ask::quit(args(matches)?, session),
    },
];

impl Command {
    fn answers_to(&self, word: &str, fits: fn(&str, &str) -> bool) -> bool {
        std::iter::once(&self.name).chain(self.aliases).any(|name| fits(name, word))
    }

    fn to_clap(&self) -> clap::Command {
        // The doc comments of the option structs would otherwise become the summary.
        (self.args)(clap::Command::new(self.name))
            .aliases(self.aliases)
            .about(self.summary)
            .override_usage(format!("ngctl {}", self.syntax))
            .after_help(self.help)
    }
}

/// The options of one command from what was parsed.
///
/// # Errors
/// A usage failure.
pub fn args<A: FromArgMatches>(matches: &ArgMatches) -> Result<A> {
    A::from_arg_matches(matches).map_err(|error| usage(&error, None))
}

/// The command that `word` names: its name, an alias, or a prefix of only one command.
///
/// # Errors
/// A usage failure that names the candidates.
pub fn find(word: &str) -> Result<&'static Command> {
    if let Some(exact) = COMMANDS.iter().find(|command| command.answers_to(word, |name, word| name == word)) {
        return Ok(exact);
    }
    let fit: Vec<_> =
        COMMANDS.iter().filter(|c| c.answers_to(word, |name, word| name.starts_with(word))).collect();
    let names = fit.iter().map(|command| command.name).collect::<Vec<_>>().join(", ");
    match fit[..] {
        [only] => Ok(only),
        [] => Err(Failure::Usage(format!("no command `{word}`; see `ngctl help`"))),
        _ => Err(Failure::Usage(format!("`{word}` is ambiguous: write more of one of {names}"))),
    }
}

/// What stands on the command line beside the command.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The daemon's socket [default: $NETAMS_SOCKET, else /run/netams/control.sock]
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Carry out the commands in FILE; - is stdin
    #[arg(short, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// The grammar of the command line.
pub fn program() -> clap::Command {
    ProgramArgs::augment_args(commands())
}

/// The grammar of a line in a file or the interactive mode.
pub fn line() -> clap::Command {
    commands().subcommand_required(true)
}

fn commands() -> clap::Command {
    clap::Command::new("ngctl")
        .version(env!("CARGO_PKG_VERSION"))
        .override_help(overview())
        .disable_help_subcommand(true)
        .infer_subcommands(true)
        .subcommands(COMMANDS.iter().map(Command::to_clap))
}

/// Parses `words`, which start with the name of the program. `None` when they asked for help or the version, which is
/// then printed.
///
/// # Errors
/// A usage failure, or that of printing.
pub fn parse(
    grammar: clap::Command,
    words: &[String],
    session: &mut Session<'_>,
) -> Result<Option<ArgMatches>> {
    match grammar.try_get_matches_from(words) {
        Ok(matches) => Ok(Some(matches)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            write!(session.out, "{}", error.render())?;
            Ok(None)
        }
        Err(error) => {
            Err(usage(&error, words.get(1..).and_then(|words| words.iter().find_map(|w| find(w).ok()))))
        }
    }
}

/// Runs the command in `matches`.
///
/// # Errors
/// Those of the command.
pub fn run(matches: &ArgMatches, session: &mut Session<'_>) -> Result<()> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    (find(name)?.run)(matches, session)
}

/// A parser's message of several lines as one sentence.
fn usage(error: &clap::Error, command: Option<&Command>) -> Failure {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Err(failure) = find(word)
    {
        return failure;
    }
    let text = error.render().to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let first = first.join(" ");
    let what = first.strip_prefix("error: ").unwrap_or(&first);
    let help = command.map(|command| format!(" {}", command.name)).unwrap_or_default();
    Failure::Usage(format!("{what}; see `ngctl help{help}`"))
}

/// Help for the command that `word` names.
///
/// # Errors
/// Those of [`find`].
pub fn help(word: &str) -> Result<String> {
    Ok(find(word)?.to_clap().render_help().to_string())
}

/// All commands, modes and exit codes.
pub fn overview() -> String {
    let mut text = String::from(
        "ngctl asks netamsd about the traffic it accounts\n\n\
         Usage: ngctl [--socket PATH] [COMMAND]    carry out one command, or read them interactively\n       \
         ngctl [--socket PATH] -f FILE      carry out the commands in FILE (- is stdin), one a line;\n                                          \
         # starts a comment; the first failure ends it\n       \
         ngctl --version\n\nCommands:\n",
    );
    for command in COMMANDS {
        let aliases = match command.aliases {
            [] => String::new(),
            aliases => format!(" (also {})", aliases.join(", ")),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<8} {}{aliases}", command.name, command.summary);
    }
    text.push_str(
        "\nAny prefix of a command that fits no other will do: `ngctl fl`. `ngctl help COMMAND` shows its options.\n\n\
         Environment:\n  NETAMS_SOCKET  the daemon's socket, unless --socket names it; default /run/netams/control.sock\n  \
         COLUMNS        width of tables; else that of the terminal, and all columns when output is not a terminal\n  \
         NO_COLOR       no colours, on terminals too\n\nExit codes:\n",
    );
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "  {code:<8} {meaning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unambiguous_prefixes_find_their_command() {
        for (word, expected) in [
            ("flows", "flows"),
            ("fl", "flows"),
            ("u", "units"),
            ("li", "list"),
            ("ls", "list"),
            ("exi", "quit"),
            ("?", "help"),
        ] {
            assert_eq!(find(word).map(|command| command.name).ok(), Some(expected), "{word}");
        }
    }

    #[test]
    fn an_ambiguous_prefix_names_its_candidates() {
        let message = |word| find(word).err().unwrap().to_string();
        assert_eq!(message("l"), "`l` is ambiguous: write more of one of list, ledger");
        assert_eq!(message("bogus"), "no command `bogus`; see `ngctl help`");
    }

    #[test]
    fn names_and_aliases_are_unique() {
        let mut names: Vec<_> = COMMANDS.iter().flat_map(|c| c.aliases.iter().chain([&c.name])).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        program().debug_assert();
        line().debug_assert();
    }

    #[test]
    fn the_syntax_names_every_option_and_no_other() {
        for command in COMMANDS {
            let clap = command.to_clap();
            let mut options: Vec<_> = clap.get_arguments().filter_map(|arg| arg.get_long()).collect();
            let mut written: Vec<_> = command
                .syntax
                .split(['[', ']', '|', ' '])
                .filter_map(|word| word.strip_prefix("--"))
                .collect();
            options.sort_unstable();
            written.sort_unstable();
            assert_eq!(written, options, "{}", command.name);
        }
    }
}
