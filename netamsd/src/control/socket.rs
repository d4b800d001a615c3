//! The socket file: made, handed a group and a mode, and removed when the server is dropped.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::ControlError;

/// A listening socket that owns its file.
#[derive(Debug)]
pub(super) struct Bound {
    listener: UnixListener,
    path: PathBuf,
}

impl Bound {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The listener for the current tokio runtime.
    pub(super) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "control socket: cannot remove its file");
        }
    }
}

/// Binds `path`, mode 0660, or 0666 when others may read; its group becomes `group` when there is one.
///
/// The mode only spares strangers the way to a refusal: each connection's rights come from its credentials, so the
/// moment between making the file and setting its mode opens nothing.
pub(super) fn bind(path: &Path, group: Option<u32>, others_may_read: bool) -> Result<Bound, ControlError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|source| ControlError::Folder { path: folder.into(), source })?;
    }
    remove_stale(path)?;
    let failed = |source| ControlError::Bind { path: path.into(), source };
    let bound = Bound { listener: UnixListener::bind(path).map_err(failed)?, path: path.into() };
    let mode = if others_may_read { 0o666 } else { 0o660 };
    group
        .map_or(Ok(()), |group| chown(path, None, Some(group)))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|source| ControlError::Permissions { path: path.into(), source })?;
    Ok(bound)
}

/// Removes a socket that a dead process left behind; anything else at `path` is left alone.
fn remove_stale(path: &Path) -> Result<(), ControlError> {
    let failed = |source| ControlError::Bind { path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ControlError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    match probe(path) {
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(failed),
        // EAGAIN: somebody listens, and its queue is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(ControlError::InUse { path: path.into() }),
        Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

/// Connects without waiting.
fn probe(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)
}
