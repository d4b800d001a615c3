//! `ngctl` asks netamsd over its control socket, in the manners of FreeBSD's ngctl.
//!
//! ```text
//! main -> script -> command (the table) -> ask (one function a command) -> client  -> the daemon
//!                                                                       -> render  -> stdout
//!                                   -> import (asks nobody: a file in, a file out)
//! ```
//!
//! Knows the protocol only: neither the daemon's code nor its database.

#![forbid(unsafe_code)]

mod ask;
mod client;
mod command;
mod failure;
mod import;
mod render;
mod script;
mod session;
mod time;

use std::io::{self, BufWriter};
use std::process::ExitCode;

use command::ProgramArgs;
use failure::Failure;
use session::Session;

fn main() -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut err = io::stderr();
    let mut session = Session {
        socket: session::default_socket(),
        out: &mut out,
        err: &mut err,
        width: session::output_width(),
        colour: session::output_colour(),
        quit: false,
    };
    let done = run(&mut session).and_then(|()| Ok(session.out.flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // With stderr gone, the exit code is all that is left to say.
            let _ = session.complain(&failure);
            failure.exit_code().into()
        }
    }
}

/// What the command line asks for: one command, a file of them, or the interactive mode.
fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.into_string().map_err(|word| Failure::Usage(format!("{word:?} is not valid UTF-8"))))
        .collect::<Result<_, _>>()?;
    let Some(matches) = command::parse(command::program(), &words, session)? else { return Ok(()) };
    let args: ProgramArgs = command::args(&matches)?;
    if let Some(socket) = args.socket {
        session.socket = socket;
    }
    match (args.file, matches.subcommand_name()) {
        (Some(_), Some(_)) => {
            Err(Failure::Usage("give either a command or -f FILE; see `ngctl help`".into()))
        }
        (Some(path), None) => script::run_file(&path, session),
        (None, Some(_)) => command::run(&matches, session),
        (None, None) => script::interactive(session),
    }
}
