//! What can go wrong between the daemon and netfilter's tools.

use std::io;

/// Why rules cannot be installed, read, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The configured backend's program is not there.
    #[error("{tool} is not there; install the package {package}, or choose the other nfqueue.backend")]
    Missing {
        /// Program that was looked for.
        tool: String,
        /// Debian's name of its package.
        package: &'static str,
    },
    /// No backend's program is there.
    #[error("neither nft nor iptables-restore is there; install the package nftables or iptables")]
    NoTool,
    /// The kernel's nftables cannot queue.
    #[error(
        "the nft queue statement cannot be used ({0}); set nfqueue.backend to \"iptables\", or use a kernel with CONFIG_NFT_QUEUE"
    )]
    NoQueue(String),
    /// Netfilter is closed to this process.
    #[error(
        "{0} is not permitted to use netfilter; run netamsd as root, or give it CAP_NET_ADMIN, and CAP_NET_RAW for iptables-legacy"
    )]
    NotPermitted(String),
    /// A program did not do what it was told.
    #[error("{tool} failed: {line}")]
    Refused {
        /// The program.
        tool: String,
        /// The first line that it said about it.
        line: String,
    },
    /// A program cannot be started or talked to.
    #[error("cannot run {0}: {1}")]
    Run(String, io::Error),
    /// A program did not end, and was killed after so many seconds.
    #[error(
        "{0} did not end within {1} s and was killed; see what else changes netfilter rules or holds iptables' lock"
    )]
    Late(String, u64),
    /// The output of nft is not what its schema promises.
    #[error("cannot understand what nft lists: {0}")]
    Listing(serde_json::Error),
    /// An interface pattern has no counterpart in netfilter.
    #[error(
        "netfilter rules cannot express the interface pattern {0:?}; use names of letters, digits and `._-@`, or prefixes of names that end in `*`"
    )]
    Pattern(String),
    /// Queues that do not exist.
    #[error("there are no {count} queues from {first} on; their numbers are 0 to 65535")]
    Queues {
        /// Number of the first one.
        first: u16,
        /// How many.
        count: u16,
    },
    /// A gate is to be changed that is not there.
    #[error("no rules are installed; install them before their gate is changed")]
    NotInstalled,
}

impl RulesError {
    /// Whether it only says that what was named is not there, or that this kernel has nothing of the kind.
    pub(super) fn is_absence(&self) -> bool {
        const ABSENT: [&str; 2] = ["No such file or directory", "Protocol not supported"];
        matches!(self, Self::Refused { line, .. } if ABSENT.iter().any(|text| line.contains(text)))
    }
}
