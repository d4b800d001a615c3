//! Where counts come from. Each source is a folder and yields [`crate::flow::Batch`]es; none knows units or the store.
//!
//! The two live sources fill [`tables`] of one layout, in the kernel and in shared memory; so the same code drains them.

mod clock;
mod fragments;
mod judge;
pub mod kernel;
mod mapping;
pub mod nfqueue;
pub mod replay;
pub mod tables;

use std::io::{self, Read};

pub use clock::{Clock, unix_ms};
pub use judge::Judge;
pub use tables::Tunnels;

/// Random odd numbers: seeds of hashes, identities of tables.
fn random() -> io::Result<[u64; 8]> {
    let mut bytes = [0; 64];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut numbers = [0; 8];
    for (number, chunk) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = chunk.iter().fold(0u64, |n, b| n << 8 | u64::from(*b)) | 1;
    }
    Ok(numbers)
}

/// Something that belongs in the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Short name.
    pub kind: &'static str,
    /// One sentence.
    pub detail: String,
    /// Packets that passed meanwhile, by the interface's own counter.
    pub missed: u64,
}

impl Notice {
    /// A notice.
    pub fn new(kind: &'static str, detail: String, missed: u64) -> Self {
        Self { kind, detail, missed }
    }
}
