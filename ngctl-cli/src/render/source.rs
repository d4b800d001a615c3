//! The source of packets and its netfilter rules.

use std::io::{self, Write};

use netams_proto::{
    NfqueueStatus, Rules, SourceKind, SourceStatus, Verdict,
    text::{clean, human_bits},
};

use super::Look;
use super::table::{Column, Table};
use crate::time::show;

/// `source`: how it is set, how much comes in, and the queues.
///
/// # Errors
/// Those of the writer.
pub fn status(to: &mut dyn Write, status: &SourceStatus, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::text("setting"),
        Column::text("value").elastic(),
        Column::text("meaning").optional(1),
    ]);
    let mut row = |name: &str, value: &str, meaning: &str| {
        table.row([name.to_owned(), value.to_owned(), meaning.to_owned()]);
    };
    row("source", status.source.name(), counted_by(status));
    row("since", &show(status.since_ms, look.zone), &look.zone.to_string());
    row("switches", &status.switches.to_string(), "since the daemon's start");
    row("mode", &status.mode, mode(status));
    row("default_policy", status.default_policy.name(), undecided(status));
    row("packets", &format!("{:.1} /s", status.packets_per_s), "on the wire");
    row("bits", &format!("{}/s", human_bits(status.bits_per_s)), "of layer 3");
    if let Some(nfqueue) = &status.nfqueue {
        row("gso", &nfqueue.gso, gso(&nfqueue.gso));
        let fail = match nfqueue.fail.as_str() {
            "closed" => "packets that nobody takes are dropped",
            _ => "packets that nobody takes pass uncounted",
        };
        row("fail", &nfqueue.fail, fail);
        let offload = if nfqueue.offload {
            ("on", "only undecided connections are queued")
        } else {
            ("off", "every packet is queued")
        };
        row("offload", offload.0, offload.1);
        row("backend", &nfqueue.backend, "sets the rules: `ngctl rules`");
        row("chains", &nfqueue.chains.join(", "), "their packets are queued");
        row("waiting", &nfqueue.waiting.to_string(), "packets without a verdict yet");
    }
    table.print(to, look)?;
    match &status.nfqueue {
        Some(nfqueue) => queues(to, nfqueue, look),
        None => Ok(()),
    }
}

fn counted_by(status: &SourceStatus) -> &'static str {
    match status.source {
        SourceKind::Kernel => "counted by eBPF programs on tc hooks",
        // Packets of decided connections are in no queue.
        SourceKind::Nfqueue if status.nfqueue.as_ref().is_some_and(|n| n.offload) => {
            "counted by eBPF, verdicts by queues"
        }
        SourceKind::Nfqueue => "counted by the daemon, from queues",
        SourceKind::Off => "nothing is counted",
    }
}

/// Whether verdicts have a consequence.
fn diverts(status: &SourceStatus) -> bool {
    status.mode == "divert" && status.source != SourceKind::Off
}

fn mode(status: &SourceStatus) -> &'static str {
    match status.mode.as_str() {
        "divert" if diverts(status) => "verdicts are enforced",
        "divert" => "nothing is enforced while the source is off",
        _ => "no packet is dropped",
    }
}

/// What becomes of a packet that no policy decides.
fn undecided(status: &SourceStatus) -> &'static str {
    match status.default_policy {
        Verdict::Pass => "what no policy decides passes",
        Verdict::Drop if diverts(status) => "what no policy decides is dropped",
        Verdict::Drop if status.mode == "divert" => "not enforced while the source is off",
        Verdict::Drop => "enforced in mode divert only",
    }
}

fn gso(mode: &str) -> &'static str {
    match mode {
        "exact" => "exact: the kernel cuts super-packets",
        "estimate" => "super-packets are estimated, marked ~",
        _ => "exact: tc ingress stamps segment sizes",
    }
}

fn queues(to: &mut dyn Write, nfqueue: &NfqueueStatus, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::number("queue"),
        Column::text("gso").optional(2),
        Column::number("waiting"),
        Column::number("received"),
        Column::number("lost"),
        Column::number("full"),
        Column::number("restarts").optional(1),
        Column::text("since").optional(3),
    ]);
    for queue in &nfqueue.queues {
        let gso = if queue.gso { "yes" } else { "no" };
        table.row([
            queue.number.to_string(),
            gso.into(),
            queue.waiting.to_string(),
            queue.received.to_string(),
            queue.lost.to_string(),
            queue.full.to_string(),
            queue.restarts.to_string(),
            show(queue.since_ms, look.zone),
        ]);
    }
    writeln!(to)?;
    table.print(to, look)?;
    let meanings = ["lost: socket buffer full", "full: queue full", "a super-packet is one packet here"];
    look.notes(to, &meanings.map(str::to_owned))
}

/// `msg netams: default_policy`: one line.
///
/// # Errors
/// Those of the writer.
pub fn default_policy(to: &mut dyn Write, status: &SourceStatus, look: &Look) -> io::Result<()> {
    let policy = format!("default_policy {}", status.default_policy.name());
    let mode = format!("source {}, mode {}", status.source.name(), clean(&status.mode));
    look.notes(to, &[policy, mode, undecided(status).into()])
}

/// `rules`: each rule with its counters.
///
/// # Errors
/// Those of the writer.
pub fn rules(to: &mut dyn Write, answer: &Rules, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::number("no"),
        Column::number("packets"),
        Column::number("bytes"),
        Column::text("queues").optional(1),
        Column::text("chain"),
        Column::text("rule").elastic(),
    ]);
    for rule in &answer.rules {
        table.row([
            rule.number.to_string(),
            rule.packets.to_string(),
            look.bytes(rule.bytes),
            if rule.queue { "yes" } else { "" }.into(),
            rule.chain.clone(),
            rule.rule.clone(),
        ]);
    }
    table.print(to, look)?;
    let count = format!("{} rules by {}", answer.rules.len(), clean(&answer.backend));
    look.notes(to, &[count, "a super-packet is one packet here".into()])
}

/// `rules` when there are none: why.
///
/// # Errors
/// Those of the writer.
pub fn no_rules(to: &mut dyn Write, status: &SourceStatus, look: &Look) -> io::Result<()> {
    let why = format!("no rules are installed: source is {}", status.source.name());
    look.notes(to, &[why])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_says_what_it_means() {
        let settings = NfqueueStatus {
            gso: "estimate".into(),
            fail: "closed".into(),
            offload: true,
            ..NfqueueStatus::default()
        };
        let now = SourceStatus {
            source: SourceKind::Nfqueue,
            since_ms: 0,
            switches: 0,
            mode: "tee".into(),
            default_policy: Verdict::Drop,
            packets_per_s: 0.0,
            bits_per_s: 0.0,
            nfqueue: Some(settings),
        };
        let mut out = Vec::new();
        status(&mut out, &now, &Look::plain()).unwrap();
        let shown = String::from_utf8(out).unwrap();
        for (setting, value, meaning) in [
            ("source", "nfqueue", "counted by eBPF, verdicts by queues"),
            ("mode", "tee", "no packet is dropped"),
            ("default_policy", "drop", "enforced in mode divert only"),
            ("gso", "estimate", "super-packets are estimated, marked ~"),
            ("fail", "closed", "packets that nobody takes are dropped"),
            ("offload", "on", "only undecided connections are queued"),
        ] {
            let line = format!("{setting:<14}  {value:<19}  {meaning}\n");
            assert!(shown.contains(&line), "{line}in:\n{shown}");
        }
    }

    #[test]
    fn both_sources_enforce_and_none_does_not() {
        for (source, mode_says, default_says) in [
            (SourceKind::Kernel, "verdicts are enforced", "what no policy decides is dropped"),
            (SourceKind::Nfqueue, "verdicts are enforced", "what no policy decides is dropped"),
            (
                SourceKind::Off,
                "nothing is enforced while the source is off",
                "not enforced while the source is off",
            ),
        ] {
            let now = SourceStatus {
                source,
                since_ms: 0,
                switches: 0,
                mode: "divert".into(),
                default_policy: Verdict::Drop,
                packets_per_s: 0.0,
                bits_per_s: 0.0,
                nfqueue: None,
            };
            assert_eq!((mode(&now), undecided(&now)), (mode_says, default_says), "{source:?}");
        }
    }
}
