//! A small disk of the test's own, to be full when wanted.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A mounted tmpfs of limited size.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts one that holds `bytes`.
    pub fn new(bytes: u64) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let options = format!("size={bytes}");
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .expect("mount a tmpfs");
        Self(folder)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all space that is left.
    pub fn fill(&self) {
        let open = OpenOptions::new().create(true).append(true).open(self.ballast());
        let mut file = open.expect("a file to fill the disk with");
        let page = [0u8; 4096];
        let full = loop {
            if let Err(e) = file.write_all(&page) {
                break e;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }

    /// Gives the space back.
    pub fn free(&self) {
        fs::remove_file(self.ballast()).expect("remove what fills the disk");
    }

    fn ballast(&self) -> std::path::PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = umount2(self.path(), MntFlags::MNT_DETACH);
        assert!(unmounted.is_ok() || thread::panicking(), "the small disk could not be unmounted");
    }
}
