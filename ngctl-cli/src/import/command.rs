//! The command itself: files, and what is told.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use netams_proto::text::clean;

use super::convert;
use crate::failure::Failure;
use crate::session::Session;

/// Options of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The NeTAMS configuration, netams.cfg
    file: PathBuf,
    /// Write the configuration to FILE instead of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the file that --output names
    #[arg(long, requires = "output")]
    force: bool,
}

/// `import`.
pub fn import(args: ImportArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    let bytes = fs::read(&args.file).map_err(|source| Failure::NoInput { name: name.clone(), source })?;
    let (config, notes) =
        convert(&String::from_utf8_lossy(&bytes)).ok_or_else(|| Failure::NotNetams(name.clone()))?;
    match &args.output {
        Some(path) => write(path, args.force, &config)?,
        None => session.out.write_all(config.as_bytes())?,
    }
    // Keeps the order on a terminal.
    session.out.flush()?;
    for note in &notes {
        writeln!(session.err, "{}:{}: {}", clean(&name), note.line, clean(&note.text))?;
    }
    if notes.is_empty() { Ok(()) } else { Err(Failure::NotAllKept(notes.len())) }
}

fn write(path: &Path, force: bool, config: &str) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = options.open(path).and_then(|mut file| file.write_all(config.as_bytes()));
    written.map_err(|source| {
        let name = path.display().to_string();
        match source.kind() {
            io::ErrorKind::AlreadyExists => Failure::Exists(name),
            _ => Failure::Create { name, source },
        }
    })
}
