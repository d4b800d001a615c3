//! Answers about units: what they used, what policies counted, what was dropped, and why.

use std::collections::HashMap;

use netams_proto::{
    Error, ExplainQuery, Explained, ExplainedUnit, InOut, Part, Policies, PolicyUnit, QuotaUse, Quotas,
    UnitReport, UnitTotals, Units, Verdict as ProtoVerdict,
};

use super::{
    answers::{Context, reader, store},
    snapshot::Snapshot,
};
use crate::{
    config::{DataSource, Mode},
    flow::{self, FlowKey, Source, mapped},
    policy::{Engine, Side, UnitConfig, UnitSays, Verdict},
    source::unix_ms,
    store::{PartTotals, Reader, StoreError},
};

/// Counts of today, of this month, and since the store was created.
type Periods = [InOut; 3];

/// Counts in each period, by a name or two.
fn periods<K: std::hash::Hash + Eq>(
    context: &Context,
    mut since: impl FnMut(Option<i64>) -> Result<Vec<(K, flow::InOut)>, StoreError>,
) -> Result<HashMap<K, Periods>, Error> {
    let (zone, now) = (context.engine.zone(), unix_ms());
    let mut found: HashMap<K, Periods> = HashMap::new();
    let starts = [Some(zone.day_start(now)), Some(zone.month_start(now)), None];
    for (period, start) in starts.into_iter().enumerate() {
        for (key, counts) in since(start).map_err(store)? {
            found.entry(key).or_default()[period] = in_out(counts);
        }
    }
    Ok(found)
}

fn in_out(counts: flow::InOut) -> InOut {
    let flow::InOut { in_packets, in_bytes, out_packets, out_bytes } = counts;
    InOut { in_packets, in_bytes, out_packets, out_bytes }
}

fn by_part(totals: Vec<PartTotals>) -> Vec<((String, String), flow::InOut)> {
    totals.into_iter().map(|part| ((part.unit, part.part), part.counts)).collect()
}

fn totals(
    context: &Context,
    snapshot: &Snapshot,
    reader: &Reader,
) -> Result<impl Fn(usize, &UnitConfig) -> UnitTotals + use<>, Error> {
    let used = periods(context, |from| reader.unit_totals(from))?;
    let mut dropped: HashMap<String, InOut> = HashMap::new();
    for part in reader.dropped_totals(None).map_err(store)? {
        let sum = dropped.entry(part.unit).or_default();
        sum.in_packets += part.counts.in_packets;
        sum.in_bytes += part.counts.in_bytes;
        sum.out_packets += part.counts.out_packets;
        sum.out_bytes += part.counts.out_bytes;
    }
    let enforced = context.mode == Mode::Divert;
    let (blocked, over) = (snapshot.blocked.clone(), context.engine.over_quota());
    Ok(move |place: usize, unit: &UnitConfig| {
        let [today, month, total] = used.get(&unit.name).copied().unwrap_or_default();
        UnitTotals {
            name: unit.name.clone(),
            kind: unit.kind.as_str().to_owned(),
            today,
            month,
            total,
            dropped: dropped.get(&unit.name).copied().unwrap_or_default(),
            blocked: enforced && blocked.get(place).copied().unwrap_or(false),
            over_quota: enforced && over.get(place).copied().unwrap_or(false),
        }
    })
}

/// Totals of all units.
///
/// # Errors
/// When the store cannot be read; so it is below.
pub fn all(context: &Context, snapshot: Snapshot) -> Result<Units, Error> {
    let row = totals(context, &snapshot, &reader(context)?)?;
    Ok(Units {
        units: context.configured.iter().enumerate().map(|(place, unit)| row(place, unit)).collect(),
        estimated: snapshot.ledgers.iter().map(|ledger| ledger.total.0.estimated).sum(),
        stale: snapshot.trouble,
    })
}

/// One unit in full.
pub fn one(context: &Context, snapshot: Snapshot, name: &str) -> Result<UnitReport, Error> {
    let place = context.configured.iter().position(|unit| unit.name == name);
    let place = place.ok_or_else(|| unknown(&context.engine, name))?;
    let unit = &context.configured[place];
    let reader = reader(context)?;
    let counted = periods(context, |from| Ok(by_part(reader.policy_totals(from)?)))?;
    let dropped = periods(context, |from| Ok(by_part(reader.dropped_totals(from)?)))?;
    let mut policies: Vec<Part> = Vec::new();
    for reference in &unit.acct_policy {
        if policies.iter().all(|part| part.name != reference.name) {
            policies.push(part(&counted, &unit.name, &reference.name));
        }
    }
    let reasons = Verdict::ALL[1..].iter().rev().map(|verdict| verdict.name()).chain([flow::CHANGED]);
    let dropped = reasons.map(|reason| part(&dropped, &unit.name, reason));
    Ok(UnitReport {
        unit: totals(context, &snapshot, &reader)?(place, unit),
        description: unit.description.clone(),
        email: unit.email.clone(),
        policies,
        dropped: dropped.filter(|part| part.total != InOut::default()).collect(),
        stale: snapshot.trouble,
    })
}

fn part(found: &HashMap<(String, String), Periods>, unit: &str, name: &str) -> Part {
    let key = (unit.to_owned(), name.to_owned());
    let [today, month, total] = found.get(&key).copied().unwrap_or_default();
    Part { name: key.1, today, month, total }
}

/// What every policy counted.
pub fn policies(context: &Context, snapshot: Snapshot) -> Result<Policies, Error> {
    let reader = reader(context)?;
    let counted = periods(context, |from| Ok(by_part(reader.policy_totals(from)?)))?;
    let mut policies = Vec::new();
    for policy in context.engine.policy_names() {
        let has = |unit: &&UnitConfig| unit.acct_policy.iter().any(|reference| reference.name == *policy);
        for unit in context.configured.iter().filter(has) {
            let policy = part(&counted, &unit.name, policy);
            policies.push(PolicyUnit { unit: unit.name.clone(), policy });
        }
    }
    Ok(Policies { policies, stale: snapshot.trouble })
}

/// Use of the quotas, of one unit or of all.
///
/// # Errors
/// When there is no such unit.
pub fn quotas(context: &Context, snapshot: Snapshot, unit: Option<&str>) -> Result<Quotas, Error> {
    let names = context.engine.units().names();
    if let Some(unit) = unit.filter(|unit| names.iter().all(|name| name != unit)) {
        return Err(unknown(&context.engine, unit));
    }
    let row = |(quota, used): (&crate::policy::Quota, &super::quotas::Use)| QuotaUse {
        unit: names[quota.unit.0 as usize].clone(),
        quota: quota.config.to_string(),
        used: used.used,
        limit: quota.config.limit.0,
        warn: quota.config.warn,
        hard: quota.config.hard,
        state: used.state.name().to_owned(),
        start_ms: used.start_ms,
        end_ms: used.end_ms,
    };
    let rows = context.engine.quotas().iter().zip(&snapshot.quotas).map(row);
    Ok(Quotas {
        quotas: rows.filter(|row| unit.is_none_or(|unit| row.unit == unit)).collect(),
        stale: snapshot.trouble,
    })
}

/// How a packet is counted and judged.
pub fn explain(context: &Context, snapshot: &Snapshot, query: &ExplainQuery) -> Explained {
    let key = FlowKey {
        src: mapped(query.src),
        dst: mapped(query.dst),
        sport: query.sport,
        dport: query.dport,
        vlan: query.vlan,
        vlan_inner: query.vlan_inner,
        tunnel: None,
        proto: query.proto,
        version: if mapped(query.src).to_ipv4_mapped().is_some() { 4 } else { 6 },
        fragment: false,
    };
    let source = if snapshot.active == DataSource::Nfqueue { Source::Nfqueue } else { Source::Kernel };
    let at_ms = query.at_ms.unwrap_or_else(unix_ms);
    let explanation = context.engine.explain(&key, source, at_ms);
    let unit = |unit: crate::policy::UnitExplanation| ExplainedUnit {
        unit: context.engine.units().names()[unit.unit.0 as usize].clone(),
        side: if unit.side == Side::Source { "source" } else { "destination" }.to_owned(),
        says: match unit.says {
            UnitSays::Pass(_) => "pass",
            UnitSays::Drop(reason) => reason.name(),
            UnitSays::Undecided { .. } => "undecided",
        }
        .to_owned(),
        policy: unit.policy,
        counted_by: unit.counted_by,
    };
    Explained {
        at_ms,
        verdict: match explanation.verdict {
            Verdict::Pass => ProtoVerdict::Pass,
            _ => ProtoVerdict::Drop,
        },
        reason: explanation.verdict.name().to_owned(),
        enforced: context.mode == Mode::Divert && snapshot.active != DataSource::Off,
        units: explanation.units.into_iter().map(unit).collect(),
    }
}

/// There is no such unit.
pub fn unknown(engine: &Engine, name: &str) -> Error {
    let known = engine.units().names().join(", ");
    let known =
        if known.is_empty() { "none is configured".to_owned() } else { format!("configured are {known}") };
    Error::Invalid(format!("there is no unit `{name}`; {known}"))
}
