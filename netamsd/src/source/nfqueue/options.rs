//! How the source is set up, and what follows from it: the rules, and the sizes of the tables.

use std::path::PathBuf;

use kmod_bpf::{HALVES, WAYS};

use super::{
    NfqueueError,
    rules::{self, Backend, Plan, Rules},
    shared::{self, spill_part},
};
use crate::{
    flow::Prefix,
    source::{
        Judge,
        tables::{Geometry, Tunnels},
    },
};

/// Prefix classes a half that belong to no prefix.
const NO_CLASS: usize = 1;

/// How super-packets are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoMode {
    /// By the size that the tc programs write into the mark where they run, else cut by the kernel.
    Auto,
    /// Cut by the kernel.
    Exact,
    /// By inference.
    Estimate,
}

/// How the source is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which packets are queued.
    pub chains: Vec<rules::Chain>,
    /// Of which interfaces.
    pub interfaces: Vec<String>,
    /// Number of the first queue.
    pub first_queue: u16,
    /// Queues over which packets are spread.
    pub queues: u16,
    /// How super-packets are counted.
    pub gso: GsoMode,
    /// Packets pass when nobody takes them.
    pub fail_open: bool,
    /// Bits of the connmark for verdicts; `None`: every packet is queued.
    pub offload: Option<u32>,
    /// Tool for the rules; `None` chooses.
    pub backend: Option<Backend>,
    /// Each queue's thread stays on one CPU.
    pub pin: bool,
    /// Bytes copied of each packet.
    pub copy_bytes: u32,
    /// Packets that may wait in a queue.
    pub max_packets: u32,
    /// 16 bits of the mark with segment sizes.
    pub stamp: u32,
    /// The bit of the mark that says that a packet has been counted.
    pub handover: u32,
    /// Folder of the tables.
    pub folder: PathBuf,
    /// First-level flow slots a thread and a half, a power of two.
    pub flows: u32,
    /// Second-level entries.
    pub spill: u32,
    /// Identity of the store that the counts go to.
    pub store: u64,
    /// What is accounted of packets in tunnels.
    pub tunnels: Tunnels,
    /// Prefixes that overflow is counted by.
    pub prefixes: Vec<Prefix>,
    /// Who says which packets pass, where verdicts are enforced.
    pub judge: Option<Judge>,
}

impl Options {
    /// The rules as they have to be; where sizes are `stamped`, what this host sends has a queue of its own.
    pub(super) fn plan(&self, stamped: bool) -> Plan {
        let Self { first_queue, queues, .. } = *self;
        Plan {
            chains: self.chains.clone(),
            interfaces: self.interfaces.clone(),
            queues: rules::Queues { first: first_queue, count: queues },
            output_queue: stamped.then(|| first_queue + queues),
            bypass: self.fail_open,
        }
    }

    /// Sizes of the tables.
    pub(super) fn geometry(&self) -> Geometry {
        let Self { queues, flows, spill, prefixes, .. } = self;
        let mut geometry = Geometry {
            // The queue of what this host sends is there whether or not it has one of its own: then tables fit both.
            cpus: u32::from(*queues) + 1,
            sets: flows / WAYS as u32,
            spill: *spill,
            classes: (prefixes.len() + NO_CLASS).next_power_of_two() as u32,
        };
        geometry.spill = HALVES as u32 * geometry.cpus * spill_part(geometry);
        geometry
    }
}

/// What the source would use on this machine, in a sentence.
///
/// # Errors
/// When it cannot run.
pub fn can_run(options: &Options) -> Result<String, NfqueueError> {
    let backend = Rules::open(options.backend)?.backend();
    options.plan(false).check()?;
    // What this host sends has a queue of its own where sizes are stamped.
    let more = u16::from(options.gso == GsoMode::Auto);
    let last = options.first_queue + options.queues - 1 + more;
    Ok(format!(
        "rules by {}, queues {} to {last} with a thread each; {:.1} MiB in {}",
        backend.name(),
        options.first_queue,
        shared::bytes(options.geometry()) as f64 / f64::from(1 << 20),
        options.folder.display()
    ))
}
