//! Why a command failed, and the exit code that says so (sysexits.h).

use std::io;

use crate::client;

/// A failed command. Each message is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command is not understood.
    #[error("{0}")]
    Usage(String),
    /// The daemon did not answer, or answered with an error.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A file of commands cannot be read.
    #[error("cannot read commands from {name}: {source}")]
    Input {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file to import cannot be read.
    #[error("cannot read {name}: {source}")]
    NoInput {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file to import is something else.
    #[error("{0} is no NeTAMS configuration: it has no service, policy or unit; name a netams.cfg")]
    NotNetams(String),
    /// The import was written, and its report has so many lines.
    #[error("not all was kept as it was; do what the report above says ({0})")]
    NotAllKept(usize),
    /// The file to write is there already.
    #[error("{0} exists; name another file, or overwrite it with --force")]
    Exists(String),
    /// A file cannot be written.
    #[error("cannot write {name}: {source}")]
    Create {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Quotas that were asked for are used up.
    #[error("over quota: {0}")]
    OverQuota(String),
    /// The newest counts are missing.
    #[error(
        "it cannot be told whether a quota is over, since the store does not take the newest counts: {0}"
    )]
    CannotTell(String),
    /// The answer cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// A command in a file failed, and the rest of the file was not run.
    #[error("{name}:{line}: {failure}")]
    Line {
        /// The file.
        name: String,
        /// Line number, counting from 1.
        line: usize,
        /// What failed there.
        failure: Box<Failure>,
    },
}

impl Failure {
    /// The exit code, one of [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotAllKept(_) | Self::OverQuota(_) => 1,
            Self::CannotTell(_) => 75,
            Self::Usage(_) => 64,
            Self::NotNetams(_) => 65,
            Self::NoInput { .. } => 66,
            Self::Exists(_) | Self::Create { .. } => 73,
            Self::Client(error) => error.exit_code(),
            Self::Input { .. } | Self::Output(_) => 74,
            Self::Line { failure, .. } => failure.exit_code(),
        }
    }

    /// Whether the reader of our output went away, as `head` does: the rest is not wanted, which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Line { failure, .. } => failure.is_broken_pipe(),
            Self::Usage(_)
            | Self::Client(_)
            | Self::Input { .. }
            | Self::NoInput { .. }
            | Self::NotNetams(_)
            | Self::NotAllKept(_)
            | Self::OverQuota(_)
            | Self::CannotTell(_)
            | Self::Exists(_)
            | Self::Create { .. } => false,
        }
    }
}

/// Every exit code with its meaning, as `ngctl help` shows them.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (0, "the command was carried out"),
    (1, "quota: one is over; import: not all was kept, the report on stderr says what"),
    (64, "usage: the command is not understood"),
    (65, "data: the daemon knows no such unit or value; import: no NeTAMS configuration"),
    (66, "no input: the file to import cannot be read"),
    (69, "unavailable: no daemon answers on the socket"),
    (70, "software: the daemon gave an answer that does not fit the question"),
    (71, "system: the daemon could not do it"),
    (73, "cannot create: the file to write exists or cannot be written"),
    (74, "i/o: a file, the output or the connection failed"),
    (75, "temporary: the daemon is busy, closing or without its store; try again"),
    (76, "protocol: daemon and ngctl are of different versions"),
    (77, "permission denied"),
];
