//! Why a queue cannot be used.

use std::io;

/// What went wrong with a queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// Another socket is bound to the queue.
    #[error("netfilter queue {number} is taken by {owner}; stop that one or set another nfqueue.first_queue")]
    Taken {
        /// Number of the queue.
        number: u16,
        /// Process and port id, as far as they can be told.
        owner: String,
    },
    /// Capabilities are missing.
    #[error("netfilter queues need CAP_NET_ADMIN; run as root or set AmbientCapabilities=")]
    Rights,
    /// The kernel has no netfilter queues.
    #[error(
        "this kernel offers no netfilter queues; load the module nfnetlink_queue or set source = \"kernel\""
    )]
    Unsupported,
    /// The kernel refused to bind the queue.
    #[error("cannot bind netfilter queue {0}: {1}")]
    Bind(u16, io::Error),
    /// The queue is ours, but not as asked.
    #[error("netfilter queue {number} copies {range} bytes in mode {mode}; asked were {asked} in mode 2")]
    Differs {
        /// Number of the queue.
        number: u16,
        /// Copy mode, 2 for packets.
        mode: u8,
        /// Bytes copied of each packet.
        range: u32,
        /// Bytes that were asked for.
        asked: u32,
    },
    /// The list of queues cannot be read.
    #[error("cannot read {0}, which only root can: {1}")]
    Status(&'static str, io::Error),
    /// The socket failed.
    #[error("the socket of netfilter queue {0} failed: {1}")]
    Socket(u16, io::Error),
    /// The kernel did not take a verdict.
    #[error("the kernel refused a verdict on netfilter queue {0}: {1}")]
    Refused(u16, io::Error),
}
