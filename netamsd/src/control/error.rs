//! Why the control socket cannot be served.

use std::io;
use std::path::PathBuf;

/// Failures of the socket itself; those of a request travel to the client as [`netams_proto::Error`].
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another process listens there.
    #[error("control socket {path}: another process answers on it; stop it or set another control.socket")]
    InUse {
        /// The configured socket.
        path: PathBuf,
    },
    /// The path exists and is no socket, so it is left alone.
    #[error("control socket {path}: this is not a socket; remove it or set another control.socket")]
    NotASocket {
        /// The configured socket.
        path: PathBuf,
    },
    /// The folder of the socket cannot be made.
    #[error("control socket: cannot create its folder {path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket cannot be made or watched.
    #[error("control socket {path}: cannot listen: {source}")]
    Bind {
        /// The configured socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Owner or mode of the socket cannot be set.
    #[error("control socket {path}: cannot set its group and mode: {source}")]
    Permissions {
        /// The configured socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The group database cannot be read; a group that does not exist is no error.
    #[error("control socket: cannot look up the group {group}: {source}")]
    Group {
        /// The configured group.
        group: String,
        /// What the system said.
        source: nix::Error,
    },
}
