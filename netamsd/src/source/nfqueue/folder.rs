//! Where the tables are: one folder a network namespace, and in it one a set of tables.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    NfqueueError, NfqueueSource, Options,
    generation::Generation,
    shared::{self, Tables},
};
use crate::source::random;

impl NfqueueSource {
    /// Makes the tables, if there are none that fit.
    pub(super) fn ensure_tables(&mut self) -> Result<(), NfqueueError> {
        if self.tables.is_some() {
            return Ok(());
        }
        let geometry = self.options.geometry();
        let fits =
            |t: &Tables| t.geometry() == geometry && t.is_for(self.options.tunnels, &self.options.prefixes);
        if let Some(at) = self.former.iter().position(fits) {
            self.tables = Some(self.former.remove(at));
            return Ok(());
        }
        let root = namespace_folder(&self.options.folder)?;
        let failed = |e| NfqueueError::Folder(root.clone(), e);
        shared::private_folder(&self.options.folder)
            .map_err(|e| NfqueueError::Folder(self.options.folder.clone(), e))?;
        shared::private_folder(&root).map_err(failed)?;
        let id = random().map_err(|e| NfqueueError::System("/dev/urandom", e))?[7];
        let dir = root.join(format!("{id:016x}"));
        shared::private_folder(&dir).map_err(failed)?;
        let Options { store, tunnels, prefixes, .. } = &self.options;
        let made =
            shared::create(&dir, geometry, id, *store, *tunnels, prefixes).and_then(|()| shared::open(&dir));
        match made {
            Ok(tables) => self.tables = tables,
            Err(e) => {
                let _ = fs::remove_dir_all(&dir);
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Removes the tables; everything must have been committed.
    ///
    /// # Errors
    /// When files cannot be removed.
    pub fn remove_tables(&mut self) -> io::Result<()> {
        let Some(tables) = self.tables.take() else { return Ok(()) };
        remove(&tables)
    }
}

/// Removes the files of tables.
///
/// # Errors
/// Those of removing files.
pub fn remove(tables: &Tables) -> io::Result<()> {
    fs::remove_dir_all(tables.dir())?;
    if let Some(root) = tables.dir().parent() {
        // Something else may be there.
        let _ = fs::remove_dir(root);
    }
    Ok(())
}

/// Removes all tables of this network namespace, whoever made them, and the number of the policy beside them; says how many
/// packets they held. No rules may look for that number any more.
///
/// # Errors
/// When files cannot be removed.
pub fn cleanup(folder: &Path) -> Result<u64, NfqueueError> {
    let root = namespace_folder(folder)?;
    let failed = |e| NfqueueError::Folder(root.clone(), e);
    Generation::remove(&root).map_err(failed)?;
    if !root.exists() {
        return Ok(0);
    }
    let mut held = 0;
    for entry in fs::read_dir(&root).map_err(failed)? {
        if let Ok(Some(tables)) = shared::open(&entry.map_err(failed)?.path()) {
            held += tables.live_counters().seen();
        }
    }
    fs::remove_dir_all(&root).map_err(failed)?;
    Ok(held)
}

/// Folder of this network namespace.
pub(super) fn namespace_folder(folder: &Path) -> Result<PathBuf, NfqueueError> {
    const NETNS: &str = "/proc/thread-self/ns/net";
    let inode = fs::metadata(NETNS).map_err(|e| NfqueueError::System(NETNS, e))?.ino();
    Ok(folder.join(inode.to_string()))
}
