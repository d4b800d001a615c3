//! What can go wrong between the daemon and the kernel.

use std::{io, path::PathBuf};

use crate::source::tables::TablesError;

/// What went wrong between the daemon and the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The BPF filesystem cannot be had.
    #[error(
        "cannot mount a BPF filesystem on {0}: {1}; mount one there (`mount -t bpf bpf {0}`) or set kernel.bpffs"
    )]
    Bpffs(PathBuf, io::Error),
    /// A folder of pins cannot be read or written.
    #[error("cannot use {0}: {1}")]
    Pins(PathBuf, io::Error),
    /// The flow tables.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The programs were refused.
    #[error("the kernel refused the programs: {0}")]
    Load(String),
    /// The object lacks something that is named in the ABI.
    #[error("the compiled programs are not those of this daemon; build netams again")]
    Object,
    /// An interface cannot be attached to.
    #[error("cannot attach to {0}: {1}")]
    Attach(String, String),
    /// The device has neither an Ethernet header nor does it start at layer 3.
    #[error("devices of this link type cannot be metered")]
    Unsupported,
    /// A pinned link belongs to nothing that is wanted.
    #[error("the interface is gone")]
    Gone,
    /// A hook cannot be asked for its programs.
    #[error("cannot list the programs of a hook: {0}")]
    Query(io::Error),
    /// rtnetlink failed.
    #[error("netlink: {0}")]
    Netlink(io::Error),
    /// The clock program cannot be run.
    #[error("cannot read the clock of the programs: {0}")]
    Clock(String),
    /// The configured tables do not fit.
    #[error(
        "the flow tables need {need_mib} MiB of kernel memory, of which {free_mib} MiB are free; lower kernel.flows"
    )]
    Memory {
        /// Wanted.
        need_mib: u64,
        /// Available.
        free_mib: u64,
    },
    /// An interface that is spelled out does not exist.
    #[error("there is no interface {0}; correct kernel.interfaces, or ignore this if it will appear later")]
    NoInterface(String),
    /// The source cannot run on this machine.
    #[error("{0}")]
    Machine(String),
}

impl KernelError {
    pub(super) fn attach(interface: &str, e: impl std::error::Error) -> Self {
        Self::Attach(interface.to_owned(), chain(&e))
    }
}

/// An error with its causes in one line; of the verifier's log the line with the reason, which is the last one but for its
/// statistics.
pub(super) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    let statistic =
        |line: &&str| STATISTICS.iter().any(|word| line.starts_with(word)) || line.trim().is_empty();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    match (first.split_once(LOG), lines.rfind(|line| !statistic(line))) {
        (Some((call, _)), Some(reason)) => format!("{call}: {reason}"),
        _ => first.to_owned(),
    }
}

/// What aya puts between the call and the verifier's log, and how the verifier's statistics begin.
const LOG: &str = ". Verifier output: ";
const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
