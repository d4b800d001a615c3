//! What commands share: where the daemon is, where output goes, and how it should look.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use netams_proto::{DEFAULT_SOCKET, SOCKET_ENV, text::clean};

use crate::client::{Client, Error};
use crate::failure::Failure;
use crate::render::Look;

/// One run of `ngctl`.
pub struct Session<'a> {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Answers.
    pub out: &'a mut dyn Write,
    /// Warnings and errors.
    pub err: &'a mut dyn Write,
    /// Columns of the terminal; `None` when output goes elsewhere.
    pub width: Option<usize>,
    /// Whether answers may be coloured.
    pub colour: bool,
    /// Set by `quit`: the interactive mode ends.
    pub quit: bool,
}

impl Session<'_> {
    /// Connects. Each command has a connection of its own, so that a long interactive run survives the daemon's restart
    /// and holds no slot of it meanwhile.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn connect(&self) -> Result<Client, Error> {
        Client::connect(&self.socket)
    }

    /// How tables of the answer of `client` should look.
    pub fn look(&self, client: &Client, exact: bool) -> Look {
        Look { width: self.width, colour: self.colour, exact, zone: client.zone() }
    }

    /// Says on stderr that the answer lacks the newest counts.
    ///
    /// # Errors
    /// Those of stderr.
    pub fn warn_stale(&mut self, why: Option<&str>) -> Result<(), Failure> {
        if let Some(why) = why {
            let why = clean(why);
            writeln!(
                self.err,
                "ngctl: warning: the newest counts are not in this answer, they wait in the flow tables: {why}"
            )?;
        }
        Ok(())
    }

    /// Says on stderr what went wrong.
    ///
    /// # Errors
    /// Those of stderr.
    pub fn complain(&mut self, failure: &Failure) -> io::Result<()> {
        // Keeps the order on a terminal. A failure here is the one to be told, or a smaller one.
        let _ = self.out.flush();
        writeln!(self.err, "ngctl: {}", clean(&failure.to_string()))
    }
}

/// The socket from the environment, else the default.
pub fn default_socket() -> PathBuf {
    match std::env::var_os(SOCKET_ENV) {
        Some(path) if !path.is_empty() => path.into(),
        _ => DEFAULT_SOCKET.into(),
    }
}

/// The width for tables: `COLUMNS` when set, else the terminal's; no limit when output is not a terminal, so that what
/// a script reads does not depend on a window.
pub fn output_width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.or_else(|| {
        let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
        Some(width.0.into())
    })
}

/// Whether output may be coloured: a terminal that can, and nobody said no (no-color.org).
pub fn output_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal()
        && !set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
