//! What can go wrong with the queues, their rules or their tables.

use std::{io, path::PathBuf};

use super::{netlink::QueueError, rules::RulesError};
use crate::source::tables::TablesError;

/// What went wrong with the queues, their rules or their tables.
#[derive(Debug, thiserror::Error)]
pub enum NfqueueError {
    /// A queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The netfilter rules.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The flow tables.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The folder of the flow tables.
    #[error("cannot use {0} for the flow tables: {1}")]
    Folder(PathBuf, io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread for a queue: {0}")]
    Thread(io::Error),
    /// The system does not say what it has to.
    #[error("cannot read {0}: {1}")]
    System(&'static str, io::Error),
    /// Packets keep waiting although none come any more.
    #[error("{0} packets wait in the queues and get no verdict")]
    Waiting(u64),
}
