//! The files that policies name: lists of prefixes, and of autonomous systems.

use std::path::Path;

use super::{Config, ConfigError, Position, Problem};
use crate::policy::{Files, LineError, parse_prefixes, parse_systems};

/// Reads them; names without a folder are in that of the configuration. The error names the file and the place in it.
pub(super) fn read(config: &Config, folder: &Path) -> Result<Files, ConfigError> {
    let mut files = Files::default();
    for policy in &config.policies {
        if let Some(file) = &policy.file {
            let prefixes = read_one(&folder.join(file), parse_prefixes)?;
            files.prefixes.insert(policy.name.clone(), prefixes);
        }
    }
    if let Some(file) = &config.as_file {
        files.systems = read_one(&folder.join(file), parse_systems)?;
    }
    Ok(files)
}

fn read_one<T>(path: &Path, parse: impl Fn(&str) -> Result<T, LineError>) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| Problem::Read(error.to_string()));
    let parsed = text.map_err(ConfigError::from).and_then(|text| {
        parse(&text).map_err(|LineError { line, column, problem }| ConfigError {
            position: Some(Position { line, column }),
            ..Problem::File(problem).into()
        })
    });
    parsed.map_err(|error| error.in_file(path))
}
