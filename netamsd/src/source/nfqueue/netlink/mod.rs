//! Netfilter queues by raw netlink: binding one, receiving its packets in batches, giving verdicts.
//!
//! Owns the socket and nothing else: it neither counts nor decides, and allocates nothing for a packet. What the kernel
//! does when something is full or goes away is told where it matters, with the place in its source (net/netfilter of
//! Linux 6.18), and shown by the live tests of this folder.

mod bind;
mod error;
mod message;
mod queue;
mod socket;
mod wire;

pub use bind::QueueOptions;
pub use error::QueueError;
pub use message::{Message, gap};
pub use queue::{BATCH, PACKET, Queue, Received, Verdict};
pub use socket::{Inbox, Socket};
pub use wire::{Outbox, attributes, be32, messages};

#[cfg(test)]
mod tests;
