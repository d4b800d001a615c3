//! Answers of the policy engine as tables.

use std::io::{self, Write};

use netams_proto::{Explained, InOut, Part, Policies, Quotas, UnitReport, Verdict, text::clean};

use super::Look;
use super::table::{Column, Table};
use crate::time::show;

fn columns(first: &[Column]) -> Vec<Column> {
    let counts = [
        Column::text("period"),
        Column::number("in packets").optional(1),
        Column::number("in bytes"),
        Column::number("out packets").optional(1),
        Column::number("out bytes"),
    ];
    first.iter().chain(&counts).copied().collect()
}

fn cells(first: &[&str], period: &str, counts: &InOut, look: &Look) -> Vec<String> {
    let counts = [
        period.to_owned(),
        counts.in_packets.to_string(),
        look.bytes(counts.in_bytes),
        counts.out_packets.to_string(),
        look.bytes(counts.out_bytes),
    ];
    first.iter().map(|text| (*text).to_owned()).chain(counts).collect()
}

/// One unit in full.
///
/// # Errors
/// Those of the writer; so it is below.
pub fn unit(to: &mut dyn Write, answer: &UnitReport, look: &Look) -> io::Result<()> {
    let unit = &answer.unit;
    let mut table = Table::new(&columns(&[Column::text("traffic").elastic()]));
    let mut add = |name: &str, part: &Part| {
        for (period, counts) in super::periods_of(part) {
            table.row(cells(&[name], period, &counts, look));
        }
    };
    let all = Part { name: String::new(), today: unit.today, month: unit.month, total: unit.total };
    add("all", &all);
    answer.policies.iter().for_each(|part| add(&format!("by {}", part.name), part));
    answer.dropped.iter().for_each(|part| add(&format!("dropped: {}", part.name), part));
    table.print(to, look)?;
    let state = match (unit.blocked, unit.over_quota) {
        (true, _) => "blocked: none of its packets passes",
        (false, true) => "over its quota: none of its packets passes",
        (false, false) => "not blocked",
    };
    let who = format!("unit {}, a {}, {state}", clean(&unit.name), clean(&unit.kind));
    let zone = format!("days and months in {}", look.zone);
    let dropped = "dropped packets are in no other line".to_owned();
    let known = [&answer.description, &answer.email].into_iter().flatten().map(|text| clean(text));
    let known: Vec<String> = known.collect();
    if !known.is_empty() {
        look.notes(to, &known)?;
    }
    look.notes(to, &[who, "in: to the unit, out: from it".into(), zone, dropped])
}

/// What policies counted.
pub fn policies(to: &mut dyn Write, answer: &Policies, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&columns(&[Column::text("policy").elastic(), Column::text("unit").elastic()]));
    for one in &answer.policies {
        for (period, counts) in super::periods_of(&one.policy) {
            table.row(cells(&[&one.policy.name, &one.unit], period, &counts, look));
        }
    }
    table.print(to, look)?;
    let who = "of each unit that has the policy in acct_policy".to_owned();
    look.notes(
        to,
        &[who, "in: to the unit, out: from it".into(), format!("days and months in {}", look.zone)],
    )
}

/// How much of quotas is used.
pub fn quotas(to: &mut dyn Write, answer: &Quotas, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::text("unit").elastic(),
        Column::text("quota").elastic(),
        Column::number("used"),
        Column::number("limit"),
        Column::number("%"),
        Column::text("state"),
        Column::text("kind").optional(1),
        Column::text("period ends").optional(2),
    ]);
    for quota in &answer.quotas {
        let percent = u128::from(quota.used) * 100 / u128::from(quota.limit.max(1));
        table.row([
            quota.unit.clone(),
            quota.quota.clone(),
            look.bytes(quota.used),
            look.bytes(quota.limit),
            percent.to_string(),
            quota.state.clone(),
            if quota.hard { "hard" } else { "soft" }.to_owned(),
            show(quota.end_ms, look.zone),
        ]);
    }
    table.print(to, look)?;
    look.notes(to, &[format!("periods and times in {}", look.zone)])
}

/// How a unit is after it was blocked or allowed.
pub fn blocked(to: &mut dyn Write, answer: &UnitReport, look: &Look) -> io::Result<()> {
    let name = clean(&answer.unit.name);
    let text = if answer.unit.blocked {
        format!("{name} is blocked: none of its packets passes, also after a restart")
    } else if answer.unit.over_quota {
        format!("{name} is not blocked, but none of its packets passes since it is over its quota")
    } else {
        format!("{name} is not blocked")
    };
    look.notes(to, &[text])
}

/// Why a packet is counted and judged as it is.
pub fn explained(to: &mut dyn Write, answer: &Explained, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::text("unit").elastic(),
        Column::text("of"),
        Column::text("says"),
        Column::text("counted by").elastic(),
    ]);
    for unit in &answer.units {
        let says = match (unit.says.as_str(), &unit.policy) {
            ("pass", Some(policy)) => format!("pass, by {policy}"),
            ("policy", _) => "drop, no policy of its list holds".to_owned(),
            ("blocked", _) => "drop, it is blocked".to_owned(),
            ("quota", _) => "drop, it is over its quota".to_owned(),
            ("undecided", _) => "nothing, it has no list".to_owned(),
            (other, _) => other.to_owned(),
        };
        table.row([unit.unit.clone(), unit.side.clone(), says, unit.counted_by.join(", ")]);
    }
    table.print(to, look)?;
    let verdict = match (answer.verdict, answer.reason.as_str()) {
        (Verdict::Pass, _) => "verdict: pass".to_owned(),
        (Verdict::Drop, "default") => "verdict: drop, since nobody lets it pass".to_owned(),
        (Verdict::Drop, "policy") => "verdict: drop, since no policy of a unit's list holds".to_owned(),
        (Verdict::Drop, "quota") => "verdict: drop, since a unit is over its quota".to_owned(),
        (Verdict::Drop, "blocked") => "verdict: drop, since a unit is blocked".to_owned(),
        (Verdict::Drop, reason) => format!("verdict: drop ({})", clean(reason)),
    };
    let mut notes = vec![verdict];
    if !answer.enforced {
        notes.push("not enforced: mode is tee, or the source is off".into());
    }
    if answer.units.is_empty() {
        notes.push("neither side is a unit".into());
    }
    notes.push(format!("at {}", show(answer.at_ms, look.zone)));
    look.notes(to, &notes)
}
