//! Answers about the sources: their ledgers, how they stand, the rules.

use netams_proto::{
    Ledger, Ledgers, NfqueueStatus, Queue, Rule, Rules, SourceKind, SourceStatus, Terms, Verdict,
};

use super::{
    answers::Context,
    snapshot::{Queues, Snapshot, SourceLedger},
};
use crate::{
    config::{DataSource, DefaultPolicy, Fail, Mode},
    flow::{Counters, Source},
    source::nfqueue::{GsoMode, LaneInfo, RuleCounter},
};

/// The ledgers of both sources.
pub fn ledgers(context: &Context, snapshot: Snapshot) -> Ledgers {
    let counts = counting(context, &snapshot);
    let ledger = |l: &SourceLedger| {
        let total = terms(l.total);
        Ledger {
            source: l.source.name().to_owned(),
            active: counts == Some(l.source),
            total,
            since_start: total.since(&terms(l.at_start)),
            since_switch: total.since(&terms(l.at_switch)),
            waiting: l.waiting,
            commits: l.commits,
            last_commit_ms: l.last_commit_ms,
        }
    };
    Ledgers {
        ledgers: snapshot.ledgers.iter().map(ledger).collect(),
        started_ms: context.started_ms,
        switched_ms: snapshot.switched_ms,
        store_error: snapshot.trouble,
    }
}

/// Who counts: with verdicts in the connmark, the kernel source does.
fn counting(context: &Context, snapshot: &Snapshot) -> Option<Source> {
    match snapshot.active {
        DataSource::Off => None,
        DataSource::Nfqueue if !context.nfqueue.offload => Some(Source::Nfqueue),
        DataSource::Nfqueue | DataSource::Kernel => Some(Source::Kernel),
    }
}

/// Counters and missed packets as the ledger's terms.
fn terms((c, missed): (Counters, u64)) -> Terms {
    Terms {
        packets_in: c.packets_in,
        packets_out: c.packets_out,
        already_counted: c.already_counted,
        seen: c.seen(),
        flow_packets: c.flow_packets,
        flow_bytes: c.flow_bytes,
        overflow_packets: c.overflow_packets,
        overflow_bytes: c.overflow_bytes,
        non_ip: c.non_ip,
        malformed: c.malformed,
        dropped: c.dropped,
        lost: c.lost(),
        unexplained: c.unexplained(),
        missed,
        fragments: c.fragments,
        spilled: c.spilled,
        gso_headers_unknown: c.gso_headers_unknown,
        estimated: c.estimated,
        reference: c.reference,
        queued: c.queued,
        queue_lost: c.queue_lost,
        queue_full: c.queue_full,
        bypassed: c.bypassed,
        inner_packets: c.inner_packets,
        inner_bytes: c.inner_bytes,
        inner_overflow_packets: c.inner_overflow_packets,
        inner_overflow_bytes: c.inner_overflow_bytes,
    }
}

/// Which source counts, and how it does.
pub fn status(context: &Context, snapshot: &Snapshot) -> SourceStatus {
    let (packets_per_s, bits_per_s) = snapshot.rates;
    SourceStatus {
        source: match snapshot.active {
            DataSource::Kernel => SourceKind::Kernel,
            DataSource::Nfqueue => SourceKind::Nfqueue,
            DataSource::Off => SourceKind::Off,
        },
        since_ms: snapshot.since_ms,
        switches: snapshot.switches,
        mode: match context.mode {
            Mode::Tee => "tee",
            Mode::Divert => "divert",
        }
        .to_owned(),
        default_policy: match snapshot.default_policy {
            DefaultPolicy::Pass => Verdict::Pass,
            DefaultPolicy::Drop => Verdict::Drop,
        },
        packets_per_s,
        bits_per_s,
        nfqueue: snapshot.queues.as_ref().map(|queues| nfqueue(context, queues)),
    }
}

fn nfqueue(context: &Context, queues: &Queues) -> NfqueueStatus {
    let queue = |lane: &LaneInfo| Queue {
        number: lane.number,
        gso: lane.gso,
        waiting: lane.waiting,
        received: lane.received,
        lost: lane.lost,
        full: lane.full,
        restarts: lane.restarts,
        since_ms: lane.since_ms,
    };
    NfqueueStatus {
        backend: queues.backend.to_owned(),
        gso: match queues.gso {
            GsoMode::Auto => "auto",
            GsoMode::Exact => "exact",
            GsoMode::Estimate => "estimate",
        }
        .to_owned(),
        fail: match context.nfqueue.fail {
            Fail::Open => "open",
            Fail::Closed => "closed",
        }
        .to_owned(),
        offload: context.nfqueue.offload,
        chains: context.nfqueue.chains.iter().map(|chain| chain.name().to_owned()).collect(),
        waiting: queues.lanes.iter().map(|lane| lane.waiting).sum(),
        queues: queues.lanes.iter().map(queue).collect(),
    }
}

/// The netfilter rules that are ours.
pub fn rules(snapshot: &Snapshot) -> Rules {
    let Some(queues) = &snapshot.queues else { return Rules::default() };
    let rule = |(number, rule): (u32, &RuleCounter)| Rule {
        number,
        chain: format!("{} {}", rule.family.name(), rule.chain),
        rule: rule.text.clone(),
        packets: rule.packets,
        bytes: rule.bytes,
        queue: rule.queue,
    };
    let rules = queues.rules.iter().flat_map(|reading| &reading.rules);
    Rules { backend: queues.backend.to_owned(), rules: (1..).zip(rules).map(rule).collect() }
}
