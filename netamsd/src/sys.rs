//! What the daemon asks of the operating system besides packets: capabilities, and not running twice.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability, CapsHashSet};
use nix::fcntl::{Flock, FlockArg};

/// Why the daemon may not start.
#[derive(Debug, thiserror::Error)]
pub enum SysError {
    /// Capabilities are missing.
    #[error("metering needs {0}; run as root or set AmbientCapabilities=")]
    Capabilities(String),
    /// Capabilities cannot be read or given up.
    #[error("cannot change capabilities: {0}")]
    Change(String),
    /// The state folder cannot be made.
    #[error("cannot create the state folder {0}: {1}; choose another one by `state`")]
    State(PathBuf, io::Error),
    /// The state folder belongs to another daemon.
    #[error("the state folder {0} is in use by netamsd with pid {1}; stop that one or set another `state`")]
    StateTaken(PathBuf, String),
    /// This network namespace is metered already.
    #[error(
        "another netamsd meters this network namespace; stop that one, two would count each packet twice"
    )]
    NamespaceTaken,
    /// The lock of the network namespace cannot be taken.
    #[error("cannot lock the network namespace: {0}")]
    NamespaceLock(io::Error),
}

/// What queues need.
const NEEDED_BY_QUEUES: [(Capability, Option<Capability>); 1] = [(Capability::CAP_NET_ADMIN, None)];
/// Each need, and the older capability that includes it.
const NEEDED: [(Capability, Option<Capability>); 3] = [
    (Capability::CAP_BPF, Some(Capability::CAP_SYS_ADMIN)),
    (Capability::CAP_NET_ADMIN, None),
    (Capability::CAP_PERFMON, Some(Capability::CAP_SYS_ADMIN)),
];

/// What netfilter's tools need: iptables-legacy, which opens a raw socket, both.
const FOR_TOOLS: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];

/// Whether the capabilities for loading and attaching programs are there, or those for queues alone.
///
/// # Errors
/// Names those that are missing.
pub fn require_capabilities(programs: bool) -> Result<(), SysError> {
    let held = caps::read(None, CapSet::Effective).map_err(|e| SysError::Change(e.to_string()))?;
    let needed = if programs { &NEEDED[..] } else { &NEEDED_BY_QUEUES };
    let missing: Vec<String> = needed
        .iter()
        .filter(|(need, instead)| !held.contains(need) && !instead.is_some_and(|i| held.contains(&i)))
        .map(|(need, _)| need.to_string())
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(SysError::Capabilities(missing.join(" and "))) }
}

/// Gives up, for this thread and those it starts, everything but what attaching, map access and queues need, and, where
/// one of `paths` lies below a folder that is closed to root as to others, what passing through takes. Programs that are run
/// get what setting netfilter rules needs.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_capabilities(paths: &[&Path]) -> Result<(), SysError> {
    let failed = |e: caps::errors::CapsError| SysError::Change(e.to_string());
    let mut keep: CapsHashSet = [Capability::CAP_BPF].into_iter().chain(FOR_TOOLS).collect();
    if paths.iter().any(|path| path.ancestors().any(is_closed)) {
        keep.insert(Capability::CAP_DAC_OVERRIDE);
    }
    let held = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let keep: CapsHashSet = keep.intersection(&held).copied().collect();
    caps::set(None, CapSet::Effective, &keep).map_err(failed)?;
    caps::set(None, CapSet::Permitted, &keep).map_err(failed)?;
    // Without them nft and iptables have no rights when the daemon is not root's.
    let hand_down: CapsHashSet = keep.into_iter().filter(|held| FOR_TOOLS.contains(held)).collect();
    caps::set(None, CapSet::Inheritable, &hand_down).map_err(failed)?;
    caps::set(None, CapSet::Ambient, &hand_down).map_err(failed)
}

/// Whether the owner of `folder` is somebody else and lets others not pass.
fn is_closed(folder: &Path) -> bool {
    let owner = nix::unistd::geteuid().as_raw();
    fs::metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() != owner && m.mode() & 0o001 == 0)
}

/// Held while the daemon runs; the kernel gives both locks back when it dies.
#[derive(Debug)]
pub struct Locks {
    _state: Flock<File>,
    _namespace: Flock<File>,
}

/// Makes the state folder and takes it, and this network namespace, for this daemon alone.
///
/// # Errors
/// When the folder cannot be made, or either is taken.
pub fn lock(state: &Path) -> Result<Locks, SysError> {
    Ok(Locks { _state: lock_state(state)?, _namespace: lock_namespace()? })
}

/// Makes the state folder and takes it for this process alone, until the lock is dropped.
///
/// # Errors
/// When the folder cannot be made, or is taken.
pub fn lock_state(state: &Path) -> Result<Flock<File>, SysError> {
    let failed = |e| SysError::State(state.to_owned(), e);
    fs::create_dir_all(state).map_err(failed)?;
    let path = state.join("lock");
    let mut file = match Flock::lock(open_lock(&path).map_err(failed)?, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((mut file, _)) => {
            let mut pid = String::new();
            // Only for the message.
            let _ = file.read_to_string(&mut pid);
            return Err(SysError::StateTaken(state.to_owned(), pid.trim().to_owned()));
        }
    };
    // The pid is for people; a disk too full for it is the store's to report.
    let _ =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// Opens or makes a file that nobody but its owner can open, and so lock.
fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(path)
}

/// Takes this network namespace.
fn lock_namespace() -> Result<Flock<File>, SysError> {
    let folder = Path::new("/run/netams");
    let inode = fs::metadata("/proc/thread-self/ns/net").map_err(SysError::NamespaceLock)?.ino();
    fs::create_dir_all(folder).map_err(SysError::NamespaceLock)?;
    let file = open_lock(&folder.join(format!("netns-{inode}.lock"))).map_err(SysError::NamespaceLock)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| SysError::NamespaceTaken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("a/b");
        let held = lock(&state).unwrap();
        let pid = std::process::id().to_string();
        assert!(matches!(lock(&state), Err(SysError::StateTaken(at, by)) if at == state && by == pid));
        drop(held);
        lock(&state).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let state = file.join("state");
        assert!(matches!(lock(&state), Err(SysError::State(at, _)) if at == state));
    }
}
