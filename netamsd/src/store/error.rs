//! What can go wrong with the store, sorted by what the caller or the administrator can do about it.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// Why the store could not do it. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk, or a quota on it, is full.
    #[error("no space left on the disk for {path}; free some")]
    Full {
        /// The database.
        path: PathBuf,
    },
    /// Somebody else holds the write lock.
    #[error("{path} is locked by another program; end whatever else writes to it")]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// The file is damaged, or is not a database.
    #[error(
        "{path} is damaged ({detail}); stop the daemon and restore a copy, or move the file away to start anew"
    )]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
    /// The database was written by a newer release.
    #[error(
        "{path} has schema version {found}, this release supports up to {supported}; install the newer release"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The latest version known here.
        supported: i64,
    },
    /// Reading or writing failed.
    #[error("cannot read or write {path} ({detail}); check the disk and the kernel log")]
    Io {
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
    /// The file cannot be opened or created.
    #[error("cannot open {path} ({detail}); check that the folder exists and may be written")]
    Open {
        /// The database.
        path: PathBuf,
        /// The system's or SQLite's words.
        detail: String,
    },
    /// A charge names a unit that was not in [`StoreConfig::units`](super::StoreConfig::units).
    #[error("charge to unit number {index}, but the store was opened with {known} units; restart the daemon")]
    UnknownUnit {
        /// The unit's number, counting from 0.
        index: u32,
        /// How many units there are.
        known: usize,
    },
    /// SQLite refused a statement.
    #[error("unexpected answer of the database {path} ({detail}); please report this")]
    Other {
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
}

impl StoreError {
    /// Whether the same call may succeed later without anybody touching the database.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Locked { .. } | Self::Io { .. })
    }

    /// Sorts what SQLite said about the database at `path`.
    pub(super) fn sql(path: &Path, error: &rusqlite::Error) -> Self {
        let path = path.to_owned();
        let detail = error.to_string();
        let rusqlite::Error::SqliteFailure(failure, _) = error else {
            return Self::Other { path, detail };
        };
        match failure.code {
            // The shared-memory index of the WAL cannot grow: SQLite has no better code for a full disk there.
            ErrorCode::SystemIoFailure if failure.extended_code == SQLITE_IOERR_SHMSIZE => {
                Self::Full { path }
            }
            ErrorCode::DiskFull => Self::Full { path },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Locked { path },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt { path, detail },
            ErrorCode::SystemIoFailure => Self::Io { path, detail },
            ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly => {
                Self::Open { path, detail }
            }
            _ => Self::Other { path, detail },
        }
    }
}
