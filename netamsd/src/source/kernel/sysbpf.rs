//! The few kernel calls that aya does not offer: batched access to a hash map, asking a hook for its programs, and waiting
//! until no program uses an old epoch.

use std::{
    fs, io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// `enum bpf_cmd` of include/uapi/linux/bpf.h.
const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_PROG_QUERY: i32 = 16;
const BPF_MAP_LOOKUP_BATCH: i32 = 24;
const BPF_MAP_DELETE_BATCH: i32 = 27;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
/// `MEMBARRIER_CMD_GLOBAL` of include/uapi/linux/membarrier.h.
const MEMBARRIER_GLOBAL: i32 = 1;

fn bpf<T>(command: i32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is a live, zero-padded prefix of `union bpf_attr`, and its size is passed along.
    let r = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), mem::size_of::<T>()) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as i32) }
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// All entries of a hash map. Entries that are inserted or removed meanwhile may or may not be among them.
///
/// # Errors
/// Those of `BPF_MAP_LOOKUP_BATCH` (Linux 5.6).
pub fn read_hash<K: Copy + Default, V: Copy + Default>(map: BorrowedFd<'_>) -> io::Result<Vec<(K, V)>> {
    let mut entries = Vec::new();
    let mut room = 4096;
    let mut position = 0u32;
    let mut started = false;
    loop {
        let (mut keys, mut values) = (vec![K::default(); room], vec![V::default(); room]);
        let mut next = 0u32;
        let mut attr = BatchAttr {
            in_batch: if started { &raw const position as u64 } else { 0 },
            out_batch: &raw mut next as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: room as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        let end = match bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) {
            Ok(_) => false,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => true,
            // One bucket alone holds more than there is room for.
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                room *= 2;
                continue;
            }
            Err(e) => return Err(e),
        };
        let count = attr.count as usize;
        entries.extend(keys.into_iter().zip(values).take(count));
        if end {
            return Ok(entries);
        }
        position = next;
        started = true;
    }
}

/// Removes `keys`; those that are not there are skipped.
///
/// # Errors
/// Those of `BPF_MAP_DELETE_BATCH` (Linux 5.6).
pub fn delete_from_hash<K>(map: BorrowedFd<'_>, mut keys: &[K]) -> io::Result<()> {
    while !keys.is_empty() {
        let mut attr = BatchAttr {
            keys: keys.as_ptr() as u64,
            count: keys.len() as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        match bpf(BPF_MAP_DELETE_BATCH, &mut attr) {
            Ok(_) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => keys = &keys[attr.count as usize + 1..],
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// Ids of the programs on a tcx hook, in the order in which they run.
///
/// # Errors
/// `ENODEV` when the interface is gone, `EINVAL` before Linux 6.6.
pub fn tcx_programs(ifindex: u32, ingress: bool) -> io::Result<Vec<u32>> {
    /// `BPF_TCX_INGRESS` of `enum bpf_attach_type`; egress is the next.
    const BPF_TCX_INGRESS: u32 = 46;
    let mut ids = vec![0u32; 64]; // BPF_MPROG_MAX of kernel/bpf/mprog.c
    let mut attr = QueryAttr {
        target_ifindex: ifindex,
        attach_type: BPF_TCX_INGRESS + u32::from(!ingress),
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: ids.len() as u32,
        ..QueryAttr::default()
    };
    match bpf(BPF_PROG_QUERY, &mut attr) {
        Ok(_) => ids.truncate(attr.prog_cnt as usize),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => ids.clear(),
        Err(e) => return Err(e),
    }
    Ok(ids)
}

/// Returns when every program that was running at the time of the call has ended.
///
/// # Errors
/// When neither `membarrier` nor its stand-in is to be had.
pub fn grace_period() -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let r = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) };
    if r == 0 {
        return Ok(());
    }
    // Refused on nohz_full kernels. Replacing a map inside another one waits for the same thing in the kernel
    // (maybe_wait_bpf_programs of kernel/bpf/syscall.c).
    let inner = create_map(BPF_MAP_TYPE_ARRAY, 0)?;
    let outer = create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, inner.as_raw_fd() as u32)?;
    let (key, value) = (0u32, inner.as_raw_fd() as u32);
    #[repr(C)]
    struct UpdateAttr {
        map_fd: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let mut attr = UpdateAttr {
        map_fd: outer.as_raw_fd() as u32,
        padding: 0,
        key: &raw const key as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    bpf(BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

fn create_map(kind: u32, inner_map_fd: u32) -> io::Result<OwnedFd> {
    /// Head of the `BPF_MAP_CREATE` member of `union bpf_attr`.
    #[repr(C)]
    struct CreateAttr {
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
        inner_map_fd: u32,
    }
    let mut attr = CreateAttr { kind, key_size: 4, value_size: 4, max_entries: 1, flags: 0, inner_map_fd };
    let fd = bpf(BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether `path` lies on a BPF filesystem.
pub fn is_bpffs(path: &std::path::Path) -> bool {
    nix::sys::statfs::statfs(path)
        .is_ok_and(|s| s.filesystem_type() == nix::sys::statfs::FsType(libc::BPF_FS_MAGIC as _))
}

/// Makes sure that `path` lies on a BPF filesystem, mounting one there when it does not; says whether it did.
///
/// # Errors
/// Those of making the folder and of `mount`, which needs `CAP_SYS_ADMIN`.
pub fn ensure_bpffs(path: &std::path::Path) -> io::Result<bool> {
    fs::create_dir_all(path).or_else(|e| if path.is_dir() { Ok(()) } else { Err(e) })?;
    if is_bpffs(path) {
        return Ok(false);
    }
    let none: Option<&str> = None;
    nix::mount::mount(Some("bpf"), path, Some("bpf"), nix::mount::MsFlags::empty(), none)?;
    Ok(true)
}
