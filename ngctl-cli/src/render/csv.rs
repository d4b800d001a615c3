//! Comma-separated values (RFC 4180, lines end in LF): a header, exact numbers, the field names of `--json`.

use std::fmt::Display;
use std::io::{self, Write};

use netams_proto::{Event, Flows, Part, Policies, Quotas, Rules, UnitReport, Units, text::clean};

/// Flow records.
///
/// # Errors
/// Those of the writer.
pub fn flows(to: &mut dyn Write, answer: &Flows) -> io::Result<()> {
    writeln!(
        to,
        "version,proto,src,sport,dst,dport,vlan,vlan_inner,fragment,first_ms,last_ms,packets,bytes,estimated,tunnel,tunnel_key"
    )?;
    for f in &answer.flows {
        let (tunnel, key) = f.tunnel.as_ref().map_or(("", 0), |tunnel| (tunnel.kind.as_str(), tunnel.key));
        let fields: [&dyn Display; 16] = [
            &f.version,
            &f.proto,
            &f.src,
            &f.sport,
            &f.dst,
            &f.dport,
            &f.vlan,
            &f.vlan_inner,
            &f.fragment,
            &f.first_ms,
            &f.last_ms,
            &f.packets,
            &f.bytes,
            &f.estimated,
            &tunnel,
            &key,
        ];
        line(to, &fields)?;
    }
    Ok(())
}

/// Totals, one line for each unit and period; `estimated` on all of them when the store holds inferred packets.
///
/// # Errors
/// Those of the writer.
pub fn units(to: &mut dyn Write, answer: &Units) -> io::Result<()> {
    writeln!(to, "name,kind,period,in_packets,in_bytes,out_packets,out_bytes,estimated,blocked")?;
    let estimated = answer.estimated > 0;
    for unit in &answer.units {
        for (period, c) in super::periods(unit) {
            let fields: [&dyn Display; 9] = [
                &unit.name,
                &unit.kind,
                &period,
                &c.in_packets,
                &c.in_bytes,
                &c.out_packets,
                &c.out_bytes,
                &estimated,
                &unit.blocked,
            ];
            line(to, &fields)?;
        }
    }
    Ok(())
}

/// One unit: all its traffic, what of it policies counted, and what was dropped by reason.
///
/// # Errors
/// Those of the writer.
pub fn unit(to: &mut dyn Write, answer: &UnitReport) -> io::Result<()> {
    writeln!(to, "account,name,period,in_packets,in_bytes,out_packets,out_bytes")?;
    let unit = &answer.unit;
    let all = Part { name: unit.name.clone(), today: unit.today, month: unit.month, total: unit.total };
    let policies = answer.policies.iter().map(|part| ("policy", part));
    let dropped = answer.dropped.iter().map(|part| ("dropped", part));
    for (account, part) in [("traffic", &all)].into_iter().chain(policies).chain(dropped) {
        for (period, c) in super::periods_of(part) {
            let counts: [&dyn Display; 4] = [&c.in_packets, &c.in_bytes, &c.out_packets, &c.out_bytes];
            line(to, &[&[&account as &dyn Display, &part.name, &period], &counts[..]].concat())?;
        }
    }
    Ok(())
}

/// What policies counted.
///
/// # Errors
/// Those of the writer.
pub fn policies(to: &mut dyn Write, answer: &Policies) -> io::Result<()> {
    writeln!(to, "policy,unit,period,in_packets,in_bytes,out_packets,out_bytes")?;
    for one in &answer.policies {
        for (period, c) in super::periods_of(&one.policy) {
            let counts: [&dyn Display; 4] = [&c.in_packets, &c.in_bytes, &c.out_packets, &c.out_bytes];
            line(to, &[&[&one.policy.name as &dyn Display, &one.unit, &period], &counts[..]].concat())?;
        }
    }
    Ok(())
}

/// Use of quotas.
///
/// # Errors
/// Those of the writer.
pub fn quotas(to: &mut dyn Write, answer: &Quotas) -> io::Result<()> {
    writeln!(to, "unit,quota,used,limit,warn,hard,state,start_ms,end_ms")?;
    for q in &answer.quotas {
        let fields: [&dyn Display; 9] =
            [&q.unit, &q.quota, &q.used, &q.limit, &q.warn, &q.hard, &q.state, &q.start_ms, &q.end_ms];
        line(to, &fields)?;
    }
    Ok(())
}

/// Netfilter rules.
///
/// # Errors
/// Those of the writer.
pub fn rules(to: &mut dyn Write, answer: &Rules) -> io::Result<()> {
    writeln!(to, "number,chain,rule,packets,bytes,queue")?;
    for rule in &answer.rules {
        line(to, &[&rule.number, &rule.chain, &rule.rule, &rule.packets, &rule.bytes, &rule.queue])?;
    }
    Ok(())
}

/// Events.
///
/// # Errors
/// Those of the writer.
pub fn events(to: &mut dyn Write, answer: &[Event]) -> io::Result<()> {
    writeln!(to, "time_ms,kind,missed,detail")?;
    for event in answer {
        line(to, &[&event.time_ms, &event.kind, &event.missed, &event.detail])?;
    }
    Ok(())
}

fn line(to: &mut dyn Write, fields: &[&dyn Display]) -> io::Result<()> {
    let fields: Vec<String> = fields.iter().map(|field| quote(&clean(&field.to_string()))).collect();
    writeln!(to, "{}", fields.join(","))
}

fn quote(field: &str) -> String {
    if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_and_quotes_are_quoted_and_controls_stripped() {
        let event =
            Event { time_ms: 1, kind: "gap".into(), detail: "said \"no\",\n left\x1b".into(), missed: 2 };
        let mut out = Vec::new();
        events(&mut out, &[event]).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "time_ms,kind,missed,detail\n1,gap,2,\"said \"\"no\"\", left\"\n"
        );
    }
}
