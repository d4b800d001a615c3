//! Packets from netfilter queues: the kernel hands each to the daemon and waits for its verdict.

pub mod netlink;
pub mod status;
