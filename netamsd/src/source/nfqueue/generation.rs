//! Which policy a verdict in a connmark is of: a number of six bits, another one after each change.
//!
//! Connmarks stay as long as their connections, and longer than the daemon; so does the number, in a file beside the flow
//! tables. A connection that is silent over 63 changes keeps a verdict that is taken for a new one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::shared::private_folder;

/// Numbers are from 1 to this: 0 is no verdict.
const LAST: u32 = 63;

/// The number of the policy that is in force.
pub struct Generation {
    file: PathBuf,
    number: u32,
}

impl Generation {
    /// That of the network namespace whose tables are in `tables`, as a former daemon has left it. Makes nothing.
    ///
    /// # Errors
    /// When there is something that cannot be read.
    pub fn open(tables: &Path) -> io::Result<Self> {
        let file = tables.with_extension("generation");
        let number = match fs::read_to_string(&file) {
            Ok(text) => text.trim().parse().unwrap_or(0),
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
        Ok(Self { file, number })
    }

    /// Forgets the number.
    ///
    /// # Errors
    /// When the file is there and cannot be removed.
    pub fn remove(tables: &Path) -> io::Result<()> {
        match fs::remove_file(tables.with_extension("generation")) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Goes on to the next one, which no earlier verdict has.
    ///
    /// # Errors
    /// When it cannot be remembered; the number is the same then.
    pub fn advance(&mut self) -> io::Result<()> {
        if let Some(folder) = self.file.parent() {
            private_folder(folder)?;
        }
        let number = self.number % LAST + 1;
        let fresh = self.file.with_extension("fresh");
        fs::write(&fresh, number.to_string())?;
        fs::rename(&fresh, &self.file)?;
        self.number = number;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_where_it_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let tables = dir.path().join("made").join("4026531840");
        let mut first = Generation::open(&tables).unwrap();
        assert_eq!(first.number(), 0);
        first.advance().unwrap();
        assert_eq!(first.number(), 1);
        let mut next = Generation::open(&tables).unwrap();
        let numbers: Vec<_> = (0..LAST)
            .map(|_| {
                next.advance().unwrap();
                next.number()
            })
            .collect();
        assert_eq!((numbers[0], numbers[61], numbers[62]), (2, 63, 1));
        assert_eq!(Generation::open(&tables).unwrap().number(), 1);
        assert!(!tables.exists(), "it is no table");
        Generation::remove(&tables).unwrap();
        Generation::remove(&tables).unwrap();
        assert_eq!(Generation::open(&tables).unwrap().number(), 0);
    }
}
