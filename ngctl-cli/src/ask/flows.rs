//! `flows`: the one command that selects and sorts.

use std::net::IpAddr;

use chrono::Utc;
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use netams_proto::{FlowQuery, FlowSort, Layer, text::parse_protocol};

use super::Format;
use crate::failure::Failure;
use crate::render::{csv, json, tables};
use crate::session::Session;
use crate::time::Since;

/// Options of `flows`.
#[derive(Debug, Args)]
pub struct FlowsArgs {
    /// Show at most N flows; the sums below the table are those of all that matched
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// Either side belongs to this unit
    #[arg(long)]
    unit: Option<String>,
    /// The source is this address or in this prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    src: Option<IpNet>,
    /// The destination is this address or in this prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    dst: Option<IpNet>,
    /// Protocol: tcp, udp, icmp, ... or a number
    #[arg(long, value_parser = parse_protocol)]
    proto: Option<u8>,
    /// Either port
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Flows with packets at or after this time: 90s, 10m, 2h, 3d, today, yesterday, 2026-11-30, "2026-11-30 14:00"
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,
    /// Outermost packets, or the innermost ones of tunnels
    #[arg(long, value_enum, default_value_t = LayerName::Outer)]
    layer: LayerName,
    /// Order, largest or newest first
    #[arg(long, value_enum, default_value_t = Sort::Bytes)]
    sort: Sort,
    #[command(flatten)]
    format: Format,
    /// Do not round bytes in the table
    #[arg(long)]
    exact: bool,
}

/// Which packet of a frame.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayerName {
    Outer,
    Inner,
}

/// Order of flows.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sort {
    Bytes,
    Packets,
    First,
    Last,
}

/// An address is the prefix that holds it alone. A v4-mapped address is the IPv4 host it stands for.
fn prefix(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
    address.or_else(|_| text.parse()).map_err(|_| "write an address or a prefix such as 10.0.0.0/8".into())
}

/// `flows`.
pub fn flows(args: FlowsArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let since = args.since.map(|since| since.resolve(Utc::now(), client.zone())).transpose();
    let query = FlowQuery {
        unit: args.unit,
        src: args.src,
        dst: args.dst,
        proto: args.proto,
        port: args.port,
        since_ms: since.map_err(|error| Failure::Usage(format!("--since: {error}")))?,
        layer: match args.layer {
            LayerName::Outer => Layer::Outer,
            LayerName::Inner => Layer::Inner,
        },
        sort: match args.sort {
            Sort::Bytes => FlowSort::Bytes,
            Sort::Packets => FlowSort::Packets,
            Sort::First => FlowSort::First,
            Sort::Last => FlowSort::Last,
        },
        top: args.top,
    };
    let answer = client.flows(query)?;
    session.warn_stale(answer.stale.as_deref())?;
    let look = session.look(&client, args.exact);
    match args.format {
        Format { json: true, .. } => json(session.out, &answer)?,
        Format { csv: true, .. } => csv::flows(session.out, &answer)?,
        Format { .. } => {
            tables::flows(session.out, &answer, &look)?;
            if matches!(args.layer, LayerName::Inner) && answer.matched == 0 {
                look.notes(
                    session.out,
                    &["inner flows are accounted with tunnels = \"inner\" in [kernel]".into()],
                )?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_prefix_of_one() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1/32"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ] {
            assert_eq!(prefix(text).unwrap().to_string(), expected);
        }
        for text in ["", "10.0.0", "10.0.0.0/33", "host"] {
            assert!(prefix(text).is_err(), "{text}");
        }
    }
}
