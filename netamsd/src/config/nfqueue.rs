//! `[nfqueue]`: which packets netfilter queues to the daemon, and how they are counted there.

use std::ops::RangeInclusive;

use super::check::{in_range, not_empty};
use super::*;

/// Number of the last queue that there can be: `nfgenmsg.res_id` of `linux/netfilter/nfnetlink.h` has 16 bits.
const LAST_QUEUE: u32 = 65_535;
const QUEUES: RangeInclusive<u32> = 1..=64;
/// At least an IPv6 header, some extension headers and the ports after them.
const COPY_BYTES: RangeInclusive<u32> = 96..=1024;
const MAX_PACKETS: RangeInclusive<u32> = 1..=1_048_576;

/// `[nfqueue]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NfqueueConfig {
    /// Netfilter chains whose packets are queued; at least one, none twice.
    pub chains: Vec<Chain>,
    /// Number of the first queue; the last one that is needed has 16 bits.
    pub first_queue: u32,
    /// Queues among which packets are spread, with a thread each. `gso = "auto"` has one more.
    pub queues: u32,
    /// Whether each queue's thread stays on one CPU.
    pub pin: bool,
    /// How the packets in a super-packet are counted.
    pub gso: Gso,
    /// What becomes of packets that the daemon does not take from the queue.
    pub fail: Fail,
    /// Whether verdicts are kept in the connmark, so that only undecided packets are queued.
    pub offload: bool,
    /// What sets up the rules.
    pub backend: Backend,
    /// Bytes of each packet that are copied to the daemon.
    pub copy_bytes: u32,
    /// Packets that wait in a queue at most.
    pub max_packets: u32,
    /// 16 adjacent bits of the fwmark: they carry the segment size of a super-packet from tc ingress to the queue.
    pub stamp_mask: u32,
    /// One bit of the fwmark, not of `stamp_mask`: such packets were counted by the kernel source already.
    pub handover_mark: u32,
    /// 8 adjacent bits of the connmark, for the verdict of `offload`.
    pub connmark_mask: u32,
    /// Folder of the flow tables, on a tmpfs.
    pub tables: PathBuf,
}

/// A place in netfilter where packets are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chain {
    /// Packets that are forwarded.
    Forward,
    /// Packets to this machine.
    Input,
    /// Packets of this machine.
    Output,
}

impl Chain {
    /// The word for it in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// `nfqueue.gso`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gso {
    /// By the segment size that a tc program has put into the fwmark; `Exact` where none can be attached.
    Auto,
    /// The kernel cuts super-packets before it queues them.
    Exact,
    /// By an inferred segment size; such counts are marked as estimated.
    Estimate,
}

/// `nfqueue.fail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fail {
    /// They pass.
    Open,
    /// They are dropped.
    Closed,
}

/// `nfqueue.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// nft where the kernel has its `queue` statement, else iptables.
    Auto,
    /// `nft`.
    Nft,
    /// `iptables` and `ip6tables`.
    Iptables,
}

impl NfqueueConfig {
    pub(super) fn validate(&self) -> Result<(), Problem> {
        if self.chains.is_empty() {
            return Err(Problem::Empty("nfqueue.chains"));
        }
        let twice = |(n, chain): (usize, &Chain)| self.chains[..n].contains(chain).then_some(*chain);
        if let Some(chain) = self.chains.iter().enumerate().find_map(twice) {
            return Err(Problem::ChainTwice(chain.name()));
        }
        in_range("nfqueue.first_queue", self.first_queue, 0..=LAST_QUEUE)?;
        in_range("nfqueue.queues", self.queues, QUEUES)?;
        // What this machine sends is not stamped, and goes through a queue of its own.
        let own = u32::from(self.gso == Gso::Auto);
        let last = self.first_queue + self.queues + own - 1;
        if last > LAST_QUEUE {
            return Err(Problem::QueueNumbers { last, max: LAST_QUEUE });
        }
        in_range("nfqueue.copy_bytes", self.copy_bytes, COPY_BYTES)?;
        in_range("nfqueue.max_packets", self.max_packets, MAX_PACKETS)?;
        let default = Self::default();
        adjacent("nfqueue.stamp_mask", self.stamp_mask, "16 adjacent bits", 16, default.stamp_mask)?;
        adjacent("nfqueue.handover_mark", self.handover_mark, "one bit", 1, default.handover_mark)?;
        if self.handover_mark & self.stamp_mask != 0 {
            return Err(Problem::SharedBit { mark: self.handover_mark, mask: self.stamp_mask });
        }
        adjacent("nfqueue.connmark_mask", self.connmark_mask, "8 adjacent bits", 8, default.connmark_mask)?;
        not_empty("nfqueue.tables", &self.tables)
    }
}

/// Refuses a mask that is not `count` bits side by side.
fn adjacent(
    key: &'static str,
    value: u32,
    wanted: &'static str,
    count: u32,
    example: u32,
) -> Result<(), Problem> {
    let side_by_side = value.count_ones() + value.leading_zeros() + value.trailing_zeros() == u32::BITS;
    if value.count_ones() == count && side_by_side {
        Ok(())
    } else {
        Err(Problem::Bits { key, value, wanted, example })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence for a line of `[nfqueue]`, without its place.
    fn sentence(line: &str) -> Option<String> {
        let error = Config::parse(&format!("kernel.interfaces = []\n[nfqueue]\n{line}")).err()?;
        assert_eq!(error.position.map(|at| at.line), Some(3), "{error}");
        Some(error.problem.to_string())
    }

    #[test]
    fn ranges() {
        for (key, min, max) in [
            ("first_queue", 0, 65_535),
            ("queues", 1, 64),
            ("copy_bytes", 96, 1024),
            ("max_packets", 1, 1_048_576_u32),
        ] {
            let refused = |value: u32| {
                sentence(&format!("{key} = {value}"))
                    == Some(format!("nfqueue.{key} is {value}, it must be from {min} to {max}"))
            };
            assert!(refused(max + 1), "{key}");
            assert!(min == 0 || refused(min - 1), "{key}");
            assert!(!refused(min) && !refused(max), "{key}");
        }
        for (lines, last) in [
            ("first_queue = 65534", None),
            ("first_queue = 65535", Some(65_536)),
            ("first_queue = 65535\ngso = \"exact\"", None),
            ("first_queue = 65472\nqueues = 64\ngso = \"estimate\"", None),
            ("first_queue = 65473\nqueues = 64\ngso = \"estimate\"", Some(65_536)),
            ("first_queue = 65472\nqueues = 64", Some(65_536)),
        ] {
            let expected = last.map(|last| {
                format!(
                    "nfqueue needs queues up to number {last}, the last there can be is 65535, lower \
                     nfqueue.first_queue"
                )
            });
            assert_eq!(sentence(lines), expected, "{lines}");
        }
    }

    #[test]
    fn chains_and_tables() {
        assert_eq!(sentence("chains = [\"input\"]"), None);
        let empty = "nfqueue.chains is empty, remove it to have the default";
        assert_eq!(sentence("chains = []").unwrap(), empty);
        let twice = "nfqueue.chains has `input` twice, remove one";
        assert_eq!(sentence("chains = [\"input\", \"output\", \"input\"]").unwrap(), twice);
        let tables = "nfqueue.tables is empty, remove it to have the default";
        assert_eq!(sentence("tables = \"\"").unwrap(), tables);
    }

    #[test]
    fn bits() {
        for (key, wanted, good, bad) in [
            (
                "stamp_mask",
                "16 adjacent bits such as 0xffff0000",
                &[0xffff_0000_u32, 0xffff, 0x0fff_f000][..],
                &[0, 0xff, 0x1_ffff, 0xffff_ffff, 0xff00_00ff, 0xffff_0000 >> 1 | 1, 0x8000_7fff][..],
            ),
            ("handover_mark", "one bit such as 0x800", &[1, 0x8000], &[0, 3, 0x8001, 0xffff_ffff_u32]),
            (
                "connmark_mask",
                "8 adjacent bits such as 0xff000000",
                &[0xff, 0xff00_0000, 0xff0],
                &[0, 0x7f, 0x1ff, 0xf00f, 0x8000_007f],
            ),
        ] {
            for value in good {
                // Somewhere beside any of the stamps.
                let rest = match key {
                    "stamp_mask" if value & 1 == 0 => "handover_mark = 1",
                    "stamp_mask" => "handover_mark = 0x80000000",
                    _ => "",
                };
                assert_eq!(sentence(&format!("{key} = {value:#x}\n{rest}")), None, "{key} {value:#x}");
            }
            for value in bad {
                let expected = format!("nfqueue.{key} is {value:#x}, it must be {wanted}");
                assert_eq!(sentence(&format!("{key} = {value:#x}")).unwrap(), expected);
            }
        }
        let shared =
            "nfqueue.handover_mark is 0x10000, a bit of nfqueue.stamp_mask (0xffff0000), choose another";
        assert_eq!(sentence("handover_mark = 0x10000").unwrap(), shared);
        let shared = "nfqueue.handover_mark is 0x800, a bit of nfqueue.stamp_mask (0xffff), choose another";
        assert_eq!(sentence("stamp_mask = 0xffff").unwrap(), shared);
    }
}
