//! The ledger as a table: one block a source, one line a term.

use std::io::{self, Write};

use netams_proto::{Ledger, Ledgers, SourceKind, Terms, text::clean};

use super::Look;
use super::table::{Column, Table};
use crate::time::show;

/// What a term counts.
enum Value {
    Packets(u64),
    Difference(i64),
    Bytes(u64),
}

use Value::{Bytes, Difference, Packets};

impl Value {
    fn is_zero(&self) -> bool {
        matches!(self, Packets(0) | Difference(0) | Bytes(0))
    }

    fn show(&self, look: &Look) -> String {
        match self {
            Packets(count) => count.to_string(),
            Difference(count) => count.to_string(),
            Bytes(count) => look.bytes(*count),
        }
    }
}

/// One line of a block.
struct Term {
    /// With its sign in the identity.
    name: &'static str,
    value: fn(&Terms) -> Value,
    /// What it means for the kernel source; empty where that has no such term.
    kernel: &'static str,
    /// The same for nfqueue.
    nfqueue: &'static str,
    /// Shown only when it is not zero.
    rare: bool,
}

const fn term(
    name: &'static str,
    value: fn(&Terms) -> Value,
    kernel: &'static str,
    nfqueue: &'static str,
) -> Term {
    Term { name, value, kernel, nfqueue, rare: false }
}

/// A term that means the same for both sources.
const fn both(name: &'static str, value: fn(&Terms) -> Value, meaning: &'static str) -> Term {
    term(name, value, meaning, meaning)
}

/// A term of both sources that most gateways do not have.
const fn rare(name: &'static str, value: fn(&Terms) -> Value, meaning: &'static str) -> Term {
    Term { rare: true, ..both(name, value, meaning) }
}

const fn kernel(name: &'static str, value: fn(&Terms) -> Value, meaning: &'static str) -> Term {
    term(name, value, meaning, "")
}

const fn nfqueue(name: &'static str, value: fn(&Terms) -> Value, meaning: &'static str) -> Term {
    term(name, value, "", meaning)
}

/// In the order of the identity; a meaning has at most 31 columns, so that a line has at most 80 when nothing was switched.
const TERMS: &[Term] = &[
    term("  packets_in", |t| Packets(t.packets_in), "passed the ingress hooks", "came in through a queue"),
    term("+ packets_out", |t| Packets(t.packets_out), "passed the egress hooks", "went out through a queue"),
    kernel("- already_counted", |t| Packets(t.already_counted), "passed another hook before"),
    nfqueue("+ queue_lost", |t| Packets(t.queue_lost), "not read: socket buffer full"),
    nfqueue("+ queue_full", |t| Packets(t.queue_full), "not queued: queue full"),
    nfqueue("+ bypassed", |t| Packets(t.bypassed), "counted by rules, never queued"),
    both("= seen", |t| Packets(t.seen), "to be found in flows to lost"),
    both("  flows", |t| Packets(t.flow_packets), "in flow records"),
    both("+ overflow", |t| Packets(t.overflow_packets), "to units only: flow table full"),
    both("+ non_ip", |t| Packets(t.non_ip), "neither IPv4 nor IPv6"),
    both("+ malformed", |t| Packets(t.malformed), "without a valid IP header"),
    nfqueue("+ dropped", |t| Packets(t.dropped), "dropped by a verdict"),
    both("+ lost", |t| Difference(t.lost), "seen, and in none of these"),
    both("unexplained", |t| Difference(t.unexplained), "lost otherwise: a bug if not 0"),
    term("missed", |t| Packets(t.missed), "passed while no hook was there", "passed while no rule was there"),
    both("fragments", |t| Packets(t.fragments), "later fragments, by address"),
    kernel("spilled", |t| Packets(t.spilled), "in the second-level flow table"),
    both("gso_headers_unknown", |t| Packets(t.gso_headers_unknown), "bytes may lack inner headers"),
    nfqueue("estimated", |t| Packets(t.estimated), "inferred, segment size unknown"),
    nfqueue("reference", |t| Packets(t.reference), "rules' count, super-packet = 1"),
    nfqueue("queued", |t| Packets(t.queued), "queues' count, super-packet = 1"),
    both("flow_bytes", |t| Bytes(t.flow_bytes), "layer-3 bytes of flows"),
    both("overflow_bytes", |t| Bytes(t.overflow_bytes), "layer-3 bytes of overflow"),
    rare("inner_packets", |t| Packets(t.inner_packets), "with an inner flow as well"),
    rare("inner_bytes", |t| Bytes(t.inner_bytes), "layer-3 bytes of inner flows"),
    rare("inner_overflow", |t| Packets(t.inner_overflow_packets), "without: flow table full"),
    rare("inner_overflow_bytes", |t| Bytes(t.inner_overflow_bytes), "inner layer-3 bytes of those"),
];

/// One block for each source that counts or has ever counted.
///
/// # Errors
/// Those of the writer.
pub fn table(to: &mut dyn Write, answer: &Ledgers, look: &Look) -> io::Result<()> {
    let counted = |ledger: &&Ledger| ledger.active || ledger.commits > 0 || ledger.total != Terms::default();
    let switched = answer.switched_ms.is_some();
    let mut none = true;
    for ledger in answer.ledgers.iter().filter(counted) {
        block(to, ledger, switched, look)?;
        writeln!(to)?;
        none = false;
    }
    if none {
        writeln!(to, "no source has counted anything yet")?;
    }
    let mut notes = vec![format!("start {}", show(answer.started_ms, look.zone))];
    notes.extend(answer.switched_ms.map(|ms| format!("switch {}", show(ms, look.zone))));
    notes.push(format!("times in {}", look.zone));
    look.notes(to, &notes)
}

fn block(to: &mut dyn Write, ledger: &Ledger, switched: bool, look: &Look) -> io::Result<()> {
    let active = if ledger.active { "counting" } else { "not counting" };
    let mut notes = vec![
        format!("source {}, {active}", clean(&ledger.source)),
        format!("{} batches committed", ledger.commits),
        match ledger.last_commit_ms {
            0 => "no commit yet".into(),
            ms => format!("the last {}", show(ms, look.zone)),
        },
    ];
    if ledger.waiting > 0 {
        notes.push(format!("{} packets wait in queues", ledger.waiting));
    }
    look.notes(to, &notes)?;

    let mut columns =
        vec![Column::text("term"), Column::number("total"), Column::number("since start").optional(1)];
    let mut spans = vec![&ledger.total, &ledger.since_start];
    if switched {
        columns.push(Column::number("since switch"));
        spans.push(&ledger.since_switch);
    }
    columns.push(Column::text("meaning").optional(2));
    let mut table = Table::new(&columns);
    for term in TERMS {
        let values: Vec<Value> = spans.iter().map(|span| (term.value)(span)).collect();
        let meanings = [term.kernel, term.nfqueue];
        let [own, other] =
            if ledger.source == SourceKind::Nfqueue.name() { [meanings[1], meanings[0]] } else { meanings };
        if (own.is_empty() || term.rare) && values.iter().all(Value::is_zero) {
            continue;
        }
        let meaning = if own.is_empty() { other } else { own };
        let cells = values.iter().map(|value| value.show(look));
        table.row([term.name.to_owned()].into_iter().chain(cells).chain([meaning.to_owned()]));
    }
    table.print(to, look)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(ledger: Ledger) -> String {
        let mut out = Vec::new();
        let ledgers = Ledgers { ledgers: vec![ledger], ..Ledgers::default() };
        table(&mut out, &ledgers, &Look::plain()).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn ledger(source: SourceKind, total: Terms) -> Ledger {
        Ledger { source: source.name().into(), active: true, total, ..Ledger::default() }
    }

    #[test]
    fn meanings_leave_room_for_the_numbers() {
        for term in TERMS {
            for meaning in [term.kernel, term.nfqueue] {
                assert!(meaning.len() <= 31, "{meaning}");
            }
        }
    }

    #[test]
    fn a_term_of_the_other_source_is_shown_when_it_is_not_zero() {
        let none = shown(ledger(SourceKind::Kernel, Terms::default()));
        assert!(!none.contains("dropped") && none.contains("spilled"), "{none}");
        let some = shown(ledger(SourceKind::Kernel, Terms { dropped: 3, ..Terms::default() }));
        assert!(some.contains("+ dropped                3            0  dropped by a verdict"), "{some}");
        let queued = shown(ledger(SourceKind::Nfqueue, Terms::default()));
        assert!(queued.contains("reference") && !queued.contains("spilled"), "{queued}");
    }

    #[test]
    fn a_source_that_never_counted_is_left_out() {
        let idle = Ledger { active: false, ..ledger(SourceKind::Nfqueue, Terms::default()) };
        assert!(shown(idle.clone()).starts_with("no source has counted anything yet\n"));
        let former = Ledger { total: Terms { queue_full: 1, ..Terms::default() }, ..idle };
        assert!(
            shown(former).starts_with("source nfqueue, not counting; 0 batches committed; no commit yet\n")
        );
    }
}
