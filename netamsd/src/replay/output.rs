//! What came of a replay: for people, and as a JSON document.

use std::{
    fmt::Write as _,
    io::{self, BufWriter, Write},
    net::SocketAddr,
    path::Path,
};

use netams_proto::text::{human_bytes, protocol};
use serde_json::json;

use super::ReplayError;
use crate::{
    flow::{Counters, FlowKey},
    policy::Zone,
    store::{FlowSelection, Flows, Reader},
};

/// What is to be shown.
pub struct Summary<'a> {
    /// The capture.
    pub file: &'a Path,
    /// Terms of the ledger, of this replay.
    pub counters: Counters,
    /// Times of the earliest and the latest frame, milliseconds UTC since 1970.
    pub span_ms: Option<(i64, i64)>,
    /// Inner flows were accounted.
    pub inner: bool,
    /// In which times are shown.
    pub zone: &'a Zone,
    /// Names of the configured units, in order.
    pub units: &'a [String],
    /// Records of this replay are newer than this one.
    pub after: u64,
    /// At most so many flows.
    pub top: u32,
}

/// The document: counts of frames, and the flows of both layers, one a line.
///
/// # Errors
/// When the store cannot be read or the document not be printed.
pub fn json(summary: &Summary, reader: &Reader) -> Result<(), ReplayError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let name = summary.file.file_name().unwrap_or(summary.file.as_os_str()).to_string_lossy();
    let Counters { packets_in, non_ip, malformed, .. } = summary.counters;
    write!(
        out,
        "{{\n \"file\": {},\n \"frames\": {packets_in},\n \"non_ip\": {non_ip},\n \"malformed\": {malformed}",
        json!(name)
    )?;
    for (layer, inner) in [("outer", false), ("inner", true)] {
        write!(out, ",\n \"{layer}\": [")?;
        let mut separator = "\n  ";
        reader.sums(summary.after, inner, |f| -> Result<(), ReplayError> {
            let flow = json!({
                "ver": f.version, "src": f.src, "dst": f.dst, "proto": f.proto, "sport": f.sport,
                "dport": f.dport, "packets": f.packets, "bytes": f.bytes,
            });
            write!(out, "{separator}{flow}")?;
            separator = ",\n  ";
            Ok(())
        })?;
        write!(out, "\n ]")?;
    }
    writeln!(out, "\n}}")?;
    Ok(out.flush()?)
}

/// The same for people, with the largest flows and what units have used.
///
/// # Errors
/// When the store cannot be read or the text not be printed.
pub fn text(summary: &Summary, reader: &Reader) -> Result<(), ReplayError> {
    let mut text = String::new();
    let c = &summary.counters;
    let span = summary.span_ms.map(|(from, to)| {
        format!(" from {} to {} ({})", summary.zone.show(from), summary.zone.show(to), summary.zone.name())
    });
    // Writing to a string cannot fail, here and below.
    let (name, frames) = (super::name_of(summary.file), c.packets_in);
    let _ = writeln!(text, "{name}: {frames} frames{}", span.unwrap_or_default());
    let mut terms = vec![
        ("flows", c.flow_packets, format!("{} layer-3 bytes", c.flow_bytes)),
        ("non_ip", c.non_ip, "neither IPv4 nor IPv6".to_owned()),
        ("malformed", c.malformed, "without a valid IP header".to_owned()),
        ("fragments", c.fragments, "of flows: later ones whose first was not there".to_owned()),
    ];
    if summary.inner {
        terms.push((
            "inner",
            c.inner_packets,
            format!("of flows: in tunnels, {} inner bytes", c.inner_bytes),
        ));
    }
    let rows =
        terms.iter().map(|(name, packets, note)| [(*name).to_owned(), packets.to_string(), note.clone()]);
    table(&mut text, ["", "packets", ""], &[false, true, false], rows);
    let layers: &[(&str, bool)] =
        if summary.inner { &[("outer", false), ("inner", true)] } else { &[("outer", false)] };
    for (layer, inner) in layers {
        let selection = FlowSelection {
            after: summary.after,
            inner: *inner,
            top: Some(summary.top),
            ..FlowSelection::default()
        };
        flows(&mut text, layer, &reader.flows(&selection)?, summary.zone);
    }
    if !summary.units.is_empty() {
        let totals = reader.unit_totals(None)?;
        let rows = totals.iter().filter(|(name, _)| summary.units.contains(name)).map(|(name, u)| {
            [
                name.clone(),
                u.in_packets.to_string(),
                u.in_bytes.to_string(),
                u.out_packets.to_string(),
                u.out_bytes.to_string(),
            ]
        });
        let _ = writeln!(text);
        let head = ["unit", "in packets", "in bytes", "out packets", "out bytes"];
        table(&mut text, head, &[false, true, true, true, true], rows);
        let _ = writeln!(text, "in: to the unit, out: from it; all that is in the store");
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn flows(text: &mut String, layer: &str, found: &Flows, zone: &Zone) {
    let rows = found.flows.iter().map(|f| {
        let [source, destination] = ends(&f.key);
        let tunnel = f.key.tunnel.map_or_else(String::new, |tunnel| match tunnel.key {
            0 => tunnel.kind.name().to_owned(),
            key => format!("{} {key}", tunnel.kind.name()),
        });
        let vlan = match (f.key.vlan, f.key.vlan_inner) {
            (0, 0) => String::new(),
            (outer, 0) => outer.to_string(),
            (outer, inner) => format!("{outer}.{inner}"),
        };
        [
            protocol_cell(&f.key),
            source,
            destination,
            vlan,
            tunnel,
            f.packets.to_string(),
            human_bytes(f.bytes),
            zone.show(f.last_ms),
        ]
    });
    let head = ["proto", "source", "destination", "vlan", "tunnel", "packets", "bytes", "last"];
    // Without tags, or tunnels, there is no such column. A tag of priority alone has id 0, and may have another one in it.
    let tagged = found.flows.iter().any(|f| (f.key.vlan, f.key.vlan_inner) != (0, 0));
    let used = [true, true, true, tagged, layer == "inner", true, true, true];
    let head = std::array::from_fn(|column| if used[column] { head[column] } else { "" });
    let _ = writeln!(text);
    table(text, head, &[false, false, false, false, false, true, true, false], rows);
    let _ = writeln!(
        text,
        "{layer}: {} of {} flow records shown; sums of all {}: packets {}, bytes {}",
        found.flows.len(),
        found.matched,
        found.matched,
        found.packets,
        human_bytes(found.bytes)
    );
}

/// ICMP and ICMPv6 carry type * 256 + code in place of a port.
fn is_icmp(key: &FlowKey) -> bool {
    matches!(key.proto, 1 | 58)
}

fn protocol_cell(key: &FlowKey) -> String {
    let name = protocol(key.proto);
    match key {
        FlowKey { fragment: true, .. } => format!("{name} fragment"),
        _ if is_icmp(key) => format!("{name} {}/{}", key.dport >> 8, key.dport & 0xff),
        _ => name,
    }
}

/// Source and destination, with ports where there are any.
fn ends(key: &FlowKey) -> [String; 2] {
    let no_ports = is_icmp(key) || (key.sport, key.dport) == (0, 0);
    [(key.src_ip(), key.sport), (key.dst_ip(), key.dport)].map(|(address, port)| {
        if no_ports { address.to_string() } else { SocketAddr::new(address, port).to_string() }
    })
}

/// Columns as wide as their widest cell, numbers to the right.
fn table<const N: usize>(
    text: &mut String,
    head: [&str; N],
    numbers: &[bool; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(rows);
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0));
    for line in lines {
        let cells: Vec<String> = (0..N)
            .filter(|column| widths[*column] > 0)
            .map(|column| {
                let (cell, width) = (&line[column], widths[column]);
                if numbers[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            })
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}
