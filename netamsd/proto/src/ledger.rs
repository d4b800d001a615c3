//! The ledger: where every packet has gone, for each source of packets.

use serde::{Deserialize, Serialize};

/// The ledgers of all sources, active or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledgers {
    /// One a source, in a fixed order.
    pub ledgers: Vec<Ledger>,
    /// When the daemon started, milliseconds UTC since 1970.
    pub started_ms: i64,
    /// When the source was switched last since then, milliseconds UTC since 1970.
    pub switched_ms: Option<i64>,
    /// Why the store does not take batches now; nothing is lost, counting goes on in the flow tables.
    pub store_error: Option<String>,
}

/// The ledger of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Which source: `kernel` or `nfqueue`.
    pub source: String,
    /// Whether it counts now.
    pub active: bool,
    /// Since the store was created.
    pub total: Terms,
    /// Since the daemon's start.
    pub since_start: Terms,
    /// Since the source was switched last; since the daemon's start when it never was.
    pub since_switch: Terms,
    /// Packets that are in queues now: in `reference`, and in no other term yet. A super-packet is one.
    pub waiting: u64,
    /// Batches committed since the store was created.
    pub commits: u64,
    /// Last commit, milliseconds UTC since 1970; 0 when there was none.
    pub last_commit_ms: i64,
}

/// Every term of the identity `seen = flows + overflow + non_ip + malformed + dropped + lost`, in wire packets unless a
/// name says bytes; where a super-packet is one, its segments were never counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Passed the ingress hooks, or came in through a queue.
    pub packets_in: u64,
    /// Passed the egress hooks, or went out through a queue.
    pub packets_out: u64,
    /// Passed a hook after another hook of ours had counted them; not counted again.
    pub already_counted: u64,
    /// `packets_in + packets_out - already_counted + queue_lost + queue_full + bypassed`.
    pub seen: u64,
    /// In flow records.
    pub flow_packets: u64,
    /// Layer-3 bytes in flow records.
    pub flow_bytes: u64,
    /// Charged to units without flow detail because the flow table was full.
    pub overflow_packets: u64,
    /// Layer-3 bytes of those.
    pub overflow_bytes: u64,
    /// Neither IPv4 nor IPv6.
    pub non_ip: u64,
    /// Said to be IP, but without a valid IP header.
    pub malformed: u64,
    /// Dropped by a verdict; in no flow.
    pub dropped: u64,
    /// Seen, and in none of the terms above.
    pub lost: i64,
    /// `lost` without `queue_lost`, `queue_full` and `bypassed`: zero unless there is a bug.
    pub unexplained: i64,
    /// Passed interfaces while no program, or no netfilter rule, was there, by the interfaces' own counters: a forwarded
    /// packet passes two of them, and a super-packet counts once.
    pub missed: u64,
    /// Later fragments that were accounted without ports.
    pub fragments: u64,
    /// Packets whose flow went to the second-level table.
    pub spilled: u64,
    /// Super-packets of an encapsulation whose header length is not known; their bytes may lack inner headers.
    pub gso_headers_unknown: u64,
    /// Inferred from super-packets whose segment size is not known; in flows.
    pub estimated: u64,
    /// Counted by the netfilter rules in front of the queues; a super-packet is one.
    pub reference: u64,
    /// Came out of the queues; a super-packet is one.
    pub queued: u64,
    /// Never came out because the socket's buffer was full: gaps in the packets' ids. A super-packet is one.
    pub queue_lost: u64,
    /// Never came out because the queue was full. A super-packet is one.
    pub queue_full: u64,
    /// Counted by the rules and never queued: nobody listened, or the queue was full and let them pass. A super-packet is
    /// one.
    pub bypassed: u64,
    /// Packets with an inner flow, beside their outer one: no term of the identity.
    pub inner_packets: u64,
    /// Layer-3 bytes in inner flows.
    pub inner_bytes: u64,
    /// Packets without an inner flow because the flow table was full.
    pub inner_overflow_packets: u64,
    /// Inner layer-3 bytes of those.
    pub inner_overflow_bytes: u64,
}

impl Terms {
    /// The sum of both, term by term.
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add, i64::saturating_add)
    }

    /// What was added since `earlier`, term by term.
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub, i64::saturating_sub)
    }

    fn with(&self, other: &Self, count: fn(u64, u64) -> u64, difference: fn(i64, i64) -> i64) -> Self {
        Self {
            packets_in: count(self.packets_in, other.packets_in),
            packets_out: count(self.packets_out, other.packets_out),
            already_counted: count(self.already_counted, other.already_counted),
            seen: count(self.seen, other.seen),
            flow_packets: count(self.flow_packets, other.flow_packets),
            flow_bytes: count(self.flow_bytes, other.flow_bytes),
            overflow_packets: count(self.overflow_packets, other.overflow_packets),
            overflow_bytes: count(self.overflow_bytes, other.overflow_bytes),
            non_ip: count(self.non_ip, other.non_ip),
            malformed: count(self.malformed, other.malformed),
            dropped: count(self.dropped, other.dropped),
            lost: difference(self.lost, other.lost),
            unexplained: difference(self.unexplained, other.unexplained),
            missed: count(self.missed, other.missed),
            fragments: count(self.fragments, other.fragments),
            spilled: count(self.spilled, other.spilled),
            gso_headers_unknown: count(self.gso_headers_unknown, other.gso_headers_unknown),
            estimated: count(self.estimated, other.estimated),
            reference: count(self.reference, other.reference),
            queued: count(self.queued, other.queued),
            queue_lost: count(self.queue_lost, other.queue_lost),
            queue_full: count(self.queue_full, other.queue_full),
            bypassed: count(self.bypassed, other.bypassed),
            inner_packets: count(self.inner_packets, other.inner_packets),
            inner_bytes: count(self.inner_bytes, other.inner_bytes),
            inner_overflow_packets: count(self.inner_overflow_packets, other.inner_overflow_packets),
            inner_overflow_bytes: count(self.inner_overflow_bytes, other.inner_overflow_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_since_is_what_a_sum_takes_back() {
        let earlier =
            Terms { packets_in: 5, seen: 7, lost: -2, unexplained: -2, bypassed: 1, ..Terms::default() };
        let added = Terms { packets_in: 1, seen: 3, lost: 2, flow_bytes: 100, ..Terms::default() };
        let now = earlier.plus(&added);
        assert_eq!((now.packets_in, now.seen, now.lost, now.bypassed), (6, 10, 0, 1));
        assert_eq!(now.since(&earlier), added);
        assert_eq!(now.since(&now), Terms::default());
    }
}
