//! Answers as tables, and the two historical forms: `info` as netgraph printed it, `list` as FreeBSD's ngctl does.

use std::io::{self, Write};

use netams_proto::{
    Event, Flow, Flows, Info, Node, Units,
    text::{clean, protocol},
};

use super::Look;
use super::table::{Column, Table};
use crate::time::show;

/// The two lines of `msg netams: info`. Scripts read them since 2005: order, names and blanks are fixed.
///
/// # Errors
/// Those of the writer.
pub fn info(to: &mut dyn Write, i: &Info) -> io::Result<()> {
    writeln!(to, "Rec'd response \"info\" (1) from \"[{:x}]:\":", i.id)?;
    writeln!(
        to,
        "Args:   {{ packets/in={} packets/out={} mode={} debug={} active_flows={} total_flows={} default_policy={} }}",
        i.packets_in, i.packets_out, i.mode, i.debug, i.active_flows, i.total_flows, i.default_policy
    )
}

/// `list`: one line a node.
///
/// # Errors
/// Those of the writer.
pub fn list(to: &mut dyn Write, node: &Node) -> io::Result<()> {
    writeln!(to, "There are 1 total nodes:")?;
    node_line(to, node)
}

fn node_line(to: &mut dyn Write, node: &Node) -> io::Result<()> {
    let (name, kind) = (clean(&node.name), clean(&node.kind));
    writeln!(to, "  Name: {name:<15} Type: {kind:<15} ID: {:08x}   Num hooks: {}", node.id, node.hooks.len())
}

/// `show`: the node and its hooks.
///
/// # Errors
/// Those of the writer.
pub fn show_node(to: &mut dyn Write, node: &Node, look: &Look) -> io::Result<()> {
    node_line(to, node)?;
    let mut table = Table::new(&[
        Column::text("interface").elastic(),
        Column::text("direction"),
        Column::text("attach").optional(1),
        Column::text("program").optional(3),
        Column::number("id").optional(4),
        Column::text("position").optional(2),
        Column::text("since").optional(5),
    ]);
    for hook in &node.hooks {
        table.row([
            hook.interface.clone(),
            hook.direction.clone(),
            hook.attach.clone(),
            hook.program.clone(),
            hook.program_id.to_string(),
            format!("{} of {}", hook.position, hook.programs),
            show(hook.since_ms, look.zone),
        ]);
    }
    table.print(to, look)?;
    let (version, started) = (clean(&node.version), show(node.started_ms, look.zone));
    look.notes(to, &[format!("netamsd {version}"), format!("running since {started}"), times(look)])
}

/// Flow records and the sums of all that matched.
///
/// # Errors
/// Those of the writer.
pub fn flows(to: &mut dyn Write, answer: &Flows, look: &Look) -> io::Result<()> {
    // A tag of priority alone has id 0, and may have another one in it.
    let vlans = answer.flows.iter().any(|flow| (flow.vlan, flow.vlan_inner) != (0, 0));
    let mut columns = vec![
        Column::text("proto"),
        Column::text("source").elastic(),
        Column::text("destination").elastic(),
        Column::number("packets").optional(1),
        Column::number("bytes"),
        Column::text("last").optional(3),
        Column::text("first").optional(4),
    ];
    if vlans {
        columns.push(Column::text("vlan").optional(2));
    }
    let tunnels = answer.flows.iter().any(|flow| flow.tunnel.is_some());
    if tunnels {
        columns.push(Column::text("tunnel").optional(2));
    }
    let mut table = Table::new(&columns);
    for flow in &answer.flows {
        let [source, destination] = ends(flow);
        let cells = [
            protocol_cell(flow),
            source,
            destination,
            marked(flow.estimated, flow.packets.to_string()),
            marked(flow.estimated, look.bytes(flow.bytes)),
            show(flow.last_ms, look.zone),
            show(flow.first_ms, look.zone),
        ];
        let more =
            [vlans.then(|| vlan_cell((flow.vlan, flow.vlan_inner))), tunnels.then(|| tunnel_cell(flow))];
        table.row(cells.into_iter().chain(more.into_iter().flatten()));
    }
    table.print(to, look)?;
    let shown = format!("{} of {} flows shown", answer.flows.len(), answer.matched);
    let estimated = answer.estimated > 0;
    let sums = format!(
        "sums of all {}: packets {}, bytes {}",
        answer.matched,
        marked(estimated, answer.packets.to_string()),
        marked(estimated, look.bytes(answer.bytes))
    );
    look.notes(to, &[shown, sums, times(look)])?;
    if estimated {
        look.notes(to, &[format!("~ some packets were {INFERRED}")])?;
    }
    Ok(())
}

/// How a count can be inexact.
const INFERRED: &str = "inferred from super-packets whose segment size is not known";

/// A count with a mark when it is not exact.
fn marked(estimated: bool, count: String) -> String {
    if estimated { format!("~{count}") } else { count }
}

fn times(look: &Look) -> String {
    format!("times in {}", look.zone)
}

/// ICMP and ICMPv6 carry type * 256 + code in place of a port.
fn is_icmp(flow: &Flow) -> bool {
    matches!(flow.proto, 1 | 58)
}

fn protocol_cell(flow: &Flow) -> String {
    let name = protocol(flow.proto);
    match flow {
        Flow { fragment: true, .. } => format!("{name} fragment"),
        _ if is_icmp(flow) => format!("{name} {}/{}", flow.dport >> 8, flow.dport & 0xff),
        _ => name,
    }
}

/// Source and destination, with ports where the protocol has them.
fn ends(flow: &Flow) -> [String; 2] {
    [(flow.src, flow.sport), (flow.dst, flow.dport)].map(|(address, port)| {
        let no_ports = is_icmp(flow) || (flow.sport, flow.dport) == (0, 0);
        if no_ports { address.to_string() } else { std::net::SocketAddr::new(address, port).to_string() }
    })
}

/// Ids of the outer and the inner tag.
fn vlan_cell(ids: (u16, u16)) -> String {
    match ids {
        (0, 0) => String::new(),
        (outer, 0) => outer.to_string(),
        (outer, inner) => format!("{outer}.{inner}"),
    }
}

/// The tunnel around an inner flow, with its key if it has one.
fn tunnel_cell(flow: &Flow) -> String {
    match &flow.tunnel {
        None => String::new(),
        Some(tunnel) if tunnel.key == 0 => clean(&tunnel.kind),
        Some(tunnel) => format!("{} {}", clean(&tunnel.kind), tunnel.key),
    }
}

/// Totals, one line for each unit and period.
///
/// # Errors
/// Those of the writer.
pub fn units(to: &mut dyn Write, answer: &Units, look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::text("unit").elastic(),
        Column::text("kind").optional(2),
        Column::text("period"),
        Column::number("in packets").optional(1),
        Column::number("in bytes"),
        Column::number("out packets").optional(1),
        Column::number("out bytes"),
    ]);
    for unit in &answer.units {
        for (period, counts) in super::periods(unit) {
            table.row([
                unit.name.clone(),
                unit.kind.clone(),
                period.into(),
                counts.in_packets.to_string(),
                look.bytes(counts.in_bytes),
                counts.out_packets.to_string(),
                look.bytes(counts.out_bytes),
            ]);
        }
    }
    table.print(to, look)?;
    look.notes(to, &["in: to the unit, out: from it".into(), format!("days and months in {}", look.zone)])?;
    let blocked: Vec<String> =
        answer.units.iter().filter(|unit| unit.blocked).map(|unit| clean(&unit.name)).collect();
    if !blocked.is_empty() {
        look.notes(to, &[format!("blocked: {}", blocked.join(", "))])?;
    }
    if answer.estimated > 0 {
        look.notes(to, &[format!("{} packets in the store were {INFERRED}", answer.estimated)])?;
    }
    Ok(())
}

/// Events, newest first.
///
/// # Errors
/// Those of the writer.
pub fn events(to: &mut dyn Write, answer: &[Event], look: &Look) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::text("time"),
        Column::text("kind"),
        Column::number("missed"),
        Column::text("detail").elastic(),
    ]);
    for event in answer {
        let time = show(event.time_ms, look.zone);
        table.row([time, event.kind.clone(), event.missed.to_string(), event.detail.clone()]);
    }
    table.print(to, look)?;
    look.notes(to, &[format!("{} events", answer.len()), times(look)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_tag_is_shown_below_one_of_priority_alone() {
        for (ids, cell) in [((0, 0), ""), ((10, 0), "10"), ((10, 20), "10.20"), ((0, 20), "0.20")] {
            assert_eq!(vlan_cell(ids), cell);
        }
    }
}
