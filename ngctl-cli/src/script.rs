//! Commands one a line: from a file, from a pipe, or typed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;

use crate::command;
use crate::failure::Failure;
use crate::session::Session;

/// Runs the commands in a file, `-` for stdin, up to the first that fails.
///
/// # Errors
/// That of the failed command, with its line, or of reading.
pub fn run_file(path: &Path, session: &mut Session<'_>) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return run_lines(io::stdin().lock(), "stdin", session);
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => run_lines(BufReader::new(file), &name, session),
        Err(source) => Err(Failure::Input { name, source }),
    }
}

/// Reads commands from stdin. A person gets a prompt and a chance to correct a failed command; a pipe is run like a
/// file.
///
/// # Errors
/// Those of reading and writing; for a pipe also that of the first failed command.
pub fn interactive(session: &mut Session<'_>) -> Result<(), Failure> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return run_lines(stdin.lock(), "stdin", session);
    }
    let mut line = String::new();
    while !session.quit {
        write!(session.out, "+ ")?;
        session.out.flush()?;
        line.clear();
        if stdin.lock().read_line(&mut line).map_err(|source| input("stdin", source))? == 0 {
            writeln!(session.out)?;
            break;
        }
        if let Err(failure) = run_line(&line, session) {
            if failure.is_broken_pipe() {
                return Err(failure);
            }
            session.complain(&failure)?;
        }
        session.out.flush()?;
    }
    Ok(())
}

fn run_lines(lines: impl BufRead, name: &str, session: &mut Session<'_>) -> Result<(), Failure> {
    for (at, line) in lines.lines().enumerate() {
        let line = line.map_err(|source| input(name, source))?;
        run_line(&line, session).map_err(|failure| Failure::Line {
            name: name.into(),
            line: at + 1,
            failure: Box::new(failure),
        })?;
        session.out.flush()?;
        if session.quit {
            break;
        }
    }
    Ok(())
}

fn input(name: &str, source: io::Error) -> Failure {
    Failure::Input { name: name.into(), source }
}

/// Runs one line: words as the shell splits them; nothing when it is empty or a comment.
fn run_line(line: &str, session: &mut Session<'_>) -> Result<(), Failure> {
    let words = shlex::split(line).ok_or_else(|| Failure::Usage("a quotation mark is not closed".into()))?;
    if words.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = std::iter::once("ngctl".into()).chain(words).collect();
    match command::parse(command::line(), &words, session)? {
        Some(matches) => command::run(&matches, session),
        None => Ok(()),
    }
}
