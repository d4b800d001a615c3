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
    prompt(&mut stdin.lock(), session)
}

fn prompt(lines: &mut impl BufRead, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut line = String::new();
    while !session.quit {
        write!(session.out, "+ ")?;
        session.out.flush()?;
        line.clear();
        if lines.read_line(&mut line).map_err(|source| input("stdin", source))? == 0 {
            writeln!(session.out)?;
            break;
        }
        if let Err(failure) = run_line(&line, session) {
            if failure.is_broken_pipe() {
                return Err(failure);
            }
            session.complain(&failure)?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a person sees who types `typed`, as stdout and stderr.
    fn typed(typed: &str) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut session = Session {
            socket: "/nonexistent/sock".into(),
            out: &mut out,
            err: &mut err,
            width: Some(80),
            colour: false,
            quit: false,
        };
        prompt(&mut typed.as_bytes(), &mut session).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn a_person_is_prompted_until_quit_whatever_fails() {
        let (out, err) = typed("bogus\n\nunits\n# nothing\nexit\nlist\n");
        assert_eq!(out, "+ + + + + ");
        let errors: Vec<&str> = err.lines().collect();
        assert_eq!(errors.len(), 2, "{err}");
        assert_eq!(errors[0], "ngctl: no command `bogus`; see `ngctl help`");
        assert!(errors[1].starts_with("ngctl: cannot reach netamsd at /nonexistent/sock"), "{err}");
    }

    #[test]
    fn the_end_of_input_ends_the_line() {
        assert_eq!(typed(""), ("+ \n".into(), String::new()));
    }

    #[test]
    fn options_of_the_program_are_none_of_a_line() {
        for line in ["--socket /tmp/x list\n", "-f x\n"] {
            let (_, err) = typed(line);
            assert!(err.contains("unexpected argument"), "{err}");
        }
    }
}
