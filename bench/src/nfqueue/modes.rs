//! What is compared: each way to meter in a laboratory of its own, because a namespace that has had netfilter rules keeps
//! their hooks.

use anyhow::Context;
use netams_tests::config::Config;
use netams_tests::daemon::Daemon;
use netams_tests::lab::Lab;

use super::readers::{self, Open, Reader};

/// A way to meter.
pub struct Mode {
    /// Name in tables and in `--modes`.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    kind: Kind,
}

enum Kind {
    /// Nothing; the router forwards.
    Bare,
    /// A reader of this program behind a rule.
    Reader { target: &'static str, open: Open },
    /// netamsd, by its `source` and what its configuration says of queues.
    Daemon { source: &'static str, nfqueue: &'static str },
}

const QUEUE: &str = "NFQUEUE --queue-num 2050";

/// All of them; the first is what the others are compared with.
pub const MODES: [Mode; 10] = [
    Mode { name: "bare", about: "no metering, no hook", kind: Kind::Bare },
    Mode {
        name: "naive",
        about: "NFQUEUE, one message and one verdict at a time, untuned",
        kind: Kind::Reader { target: QUEUE, open: readers::naive },
    },
    Mode {
        name: "verdicts",
        about: "netamsd's way to read a queue, a verdict for each packet, no accounting",
        kind: Kind::Reader { target: QUEUE, open: readers::verdicts },
    },
    Mode {
        name: "queue",
        about: "netamsd's way to read a queue, batch verdicts, no accounting",
        kind: Kind::Reader { target: QUEUE, open: readers::queue },
    },
    Mode {
        name: "auto",
        about: "netamsd, source nfqueue",
        kind: Kind::Daemon { source: "nfqueue", nfqueue: "gso = \"auto\"" },
    },
    Mode {
        name: "roaming",
        about: "the same, its thread left to the scheduler",
        kind: Kind::Daemon { source: "nfqueue", nfqueue: "gso = \"auto\"\npin = false" },
    },
    Mode {
        name: "exact",
        about: "netamsd, source nfqueue, the kernel cuts super-packets",
        kind: Kind::Daemon { source: "nfqueue", nfqueue: "gso = \"exact\"" },
    },
    Mode {
        name: "offload",
        about: "netamsd, source nfqueue, verdicts in the connmark",
        kind: Kind::Daemon { source: "nfqueue", nfqueue: "offload = true" },
    },
    Mode {
        name: "nflog",
        about: "NFLOG, copies of 96 bytes, 512 to a message, no accounting",
        kind: Kind::Reader {
            target: "NFLOG --nflog-group 2050 --nflog-size 96 --nflog-threshold 512",
            open: readers::nflog,
        },
    },
    Mode {
        name: "kernel",
        about: "netamsd, source kernel",
        kind: Kind::Daemon { source: "kernel", nfqueue: "" },
    },
];

/// A mode with its laboratory.
pub struct Place {
    /// Which.
    pub mode: &'static Mode,
    /// Where.
    pub lab: Lab,
}

/// A mode at work, until dropped.
pub enum Running<'lab> {
    /// There is nothing to do.
    Bare,
    /// A thread of this process.
    Reader(Reader),
    /// A process.
    Daemon(Box<Daemon<'lab>>),
}

impl Place {
    /// Makes the laboratory, and the rule that the mode needs.
    pub fn new(mode: &'static Mode) -> Self {
        let lab = Lab::new();
        if let Kind::Reader { target, .. } = mode.kind {
            lab.router.run(&format!("iptables -w -t mangle -A FORWARD -j {target}"));
        }
        Self { mode, lab }
    }

    /// Starts to meter.
    pub fn start(&self) -> anyhow::Result<Running<'_>> {
        Ok(match self.mode.kind {
            Kind::Bare => Running::Bare,
            Kind::Reader { open, .. } => {
                Running::Reader(Reader::start(&self.lab.router, open).context(self.mode.name)?)
            }
            Kind::Daemon { source, nfqueue } => {
                let config = Config {
                    flows: 65536,
                    interval_ms: 5000,
                    source,
                    nfqueue: nfqueue.into(),
                    ..Config::default()
                };
                Running::Daemon(Box::new(Daemon::start(&self.lab.router, &config)))
            }
        })
    }
}

impl Running<'_> {
    /// Ends it in good order.
    pub fn end(self) -> anyhow::Result<()> {
        match self {
            Self::Bare => Ok(()),
            Self::Reader(mut reader) => reader.end(),
            Self::Daemon(mut daemon) => {
                let code = daemon.terminate();
                anyhow::ensure!(code == 0, "netamsd ended with {code}: {}", daemon.place.said());
                Ok(())
            }
        }
    }
}
