//! What the kernel source asks of the machine: whether it can run here, CPUs, memory, network namespace.

use std::{fs, io, os::unix::fs::MetadataExt};

use aya::util::KernelVersion;
use kmod_bpf::WAYS;

use super::{Geometry, KernelError, Metered, link, sysbpf};

/// The oldest kernel that has all that the programs need (CAP_BPF; mmapable arrays 5.5, batches 5.6, gso_size 5.7).
pub const OLDEST_KERNEL: (u8, u8) = (5, 8);

/// One more than the highest number that a CPU may ever have.
///
/// # Errors
/// When the kernel does not say.
pub fn possible_cpus() -> io::Result<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
    last.map(|n| n + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Why this machine cannot run the source, in a sentence; `Ok` when it can.
///
/// # Errors
/// [`KernelError::Machine`].
pub fn can_run() -> Result<(), KernelError> {
    let (major, minor) = OLDEST_KERNEL;
    let now = KernelVersion::current()
        .map_err(|e| KernelError::Machine(format!("cannot tell the kernel's version: {e}")))?;
    if now < KernelVersion::new(major, minor, 0) {
        return Err(KernelError::Machine(format!(
            "this kernel is older than {major}.{minor}, which the eBPF source needs; boot a newer one"
        )));
    }
    Ok(())
}

/// Whether programs can be attached by tcx links here.
///
/// # Errors
/// When the kernel does not say, for want of capabilities.
pub fn has_tcx() -> io::Result<bool> {
    /// The loopback interface of every network namespace.
    const LOOPBACK: u32 = 1;
    match sysbpf::tcx_programs(LOOPBACK, true) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(e) => Err(e),
    }
}

/// What tables of this size cost, in a sentence.
///
/// # Errors
/// When that is more than half of the memory that is free: the machine has other things to do with it.
pub fn fits(geometry: Geometry) -> Result<String, KernelError> {
    let free = available_memory().unwrap_or(u64::MAX);
    let need = geometry.bytes();
    if need > free / 2 {
        return Err(KernelError::Memory { need_mib: need >> 20, free_mib: free >> 20 });
    }
    Ok(format!(
        "{} flows a CPU and a half, {} CPUs, {} second-level entries: {:.1} MiB of kernel memory",
        geometry.sets * WAYS as u32,
        geometry.cpus,
        geometry.spill,
        need as f64 / f64::from(1 << 20)
    ))
}

/// Names of all interfaces of this network namespace.
///
/// # Errors
/// When they cannot be listed.
pub fn interface_names() -> Result<Vec<String>, KernelError> {
    let interfaces = link::interfaces().map_err(KernelError::Netlink)?;
    Ok(interfaces.into_iter().map(|i| i.name).collect())
}

/// The interfaces that are `wanted` and their own counters; no program is `adopted`.
///
/// # Errors
/// When they cannot be listed.
pub fn passed_interfaces(wanted: impl Fn(&str) -> bool) -> Result<Vec<Metered>, KernelError> {
    let interfaces = link::interfaces().map_err(KernelError::Netlink)?;
    let metered = |i: link::Interface| {
        let packets = i.packets.iter().sum();
        wanted(&i.name).then_some(Metered { name: i.name, index: i.index, packets, adopted: false })
    };
    Ok(interfaces.into_iter().filter_map(metered).collect())
}

/// Said when the BPF filesystem vanishes with the daemon.
pub const PRIVATE_MOUNT: &str = "the BPF filesystem is mounted in a private mount namespace (`ip netns exec` makes one): what is \
     not committed is lost when the daemon is killed; mount one outside and name it in kernel.bpffs";

/// Whether mounts made here are seen by nobody else.
pub fn in_private_mounts() -> bool {
    let of = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|m| m.ino());
    matches!((of("self"), of("1")), (Ok(here), Ok(first)) if here != first)
}

pub(super) fn netns() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// What the programs write into `tc_index` of packets counted in a flow, and of others: 1 to 65535, the same for all
/// daemons of a namespace.
pub(super) fn mark() -> io::Result<[u32; 2]> {
    let first = (netns()? % 0x7fff) as u32 * 2 + 1;
    Ok([first, first + 1])
}

/// `MemAvailable` of /proc/meminfo, bytes.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? << 10)
}
