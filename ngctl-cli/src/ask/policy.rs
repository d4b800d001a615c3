//! Commands about units and policies.

use std::net::IpAddr;

use chrono::Utc;
use clap::Args;
use netams_proto::{ExplainQuery, UnitReport, text::parse_protocol};

use super::{Format, Json};
use crate::failure::Failure;
use crate::render::{Look, csv, json, policy as show, tables};
use crate::session::Session;
use crate::time::Since;

/// Options of `units`.
#[derive(Debug, Args)]
pub struct UnitsArgs {
    /// This unit in full, with what its policies counted and what was dropped
    unit: Option<String>,
    #[command(flatten)]
    format: Format,
    /// Do not round bytes in the table
    #[arg(long)]
    exact: bool,
}

/// `units`.
pub fn units(args: UnitsArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let look = session.look(&client, args.exact);
    if let Some(unit) = args.unit {
        let answer = client.unit(unit)?;
        return show_unit(&answer, args.format, &look, session);
    }
    let answer = client.units()?;
    session.warn_stale(answer.stale.as_deref())?;
    match args.format {
        Format { json: true, .. } => json(session.out, &answer)?,
        Format { csv: true, .. } => csv::units(session.out, &answer)?,
        Format { .. } => tables::units(session.out, &answer, &look)?,
    }
    Ok(())
}

fn show_unit(
    answer: &UnitReport,
    format: Format,
    look: &Look,
    session: &mut Session<'_>,
) -> Result<(), Failure> {
    session.warn_stale(answer.stale.as_deref())?;
    match format {
        Format { json: true, .. } => json(session.out, answer)?,
        Format { csv: true, .. } => csv::unit(session.out, answer)?,
        Format { .. } => show::unit(session.out, answer, look)?,
    }
    Ok(())
}

/// Options of `policies`.
#[derive(Debug, Args)]
pub struct PoliciesArgs {
    #[command(flatten)]
    format: Format,
    /// Do not round bytes in the table
    #[arg(long)]
    exact: bool,
}

/// `policies`.
pub fn policies(args: PoliciesArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let answer = client.policies()?;
    session.warn_stale(answer.stale.as_deref())?;
    let look = session.look(&client, args.exact);
    match args.format {
        Format { json: true, .. } => json(session.out, &answer)?,
        Format { csv: true, .. } => csv::policies(session.out, &answer)?,
        Format { .. } => show::policies(session.out, &answer, &look)?,
    }
    Ok(())
}

/// Options of `quota`.
#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// Only those of this unit
    unit: Option<String>,
    #[command(flatten)]
    format: Format,
    /// Do not round bytes in the table
    #[arg(long)]
    exact: bool,
}

/// `quota`. What it shows is also its exit code.
pub fn quota(args: QuotaArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let answer = client.quotas(args.unit)?;
    let look = session.look(&client, args.exact);
    match args.format {
        Format { json: true, .. } => json(session.out, &answer)?,
        Format { csv: true, .. } => csv::quotas(session.out, &answer)?,
        Format { .. } => show::quotas(session.out, &answer, &look)?,
    }
    if let Some(why) = answer.stale {
        return Err(Failure::CannotTell(why));
    }
    let over = answer.quotas.iter().filter(|quota| quota.state == "over");
    let over: Vec<String> = over.map(|quota| format!("{} ({})", quota.unit, quota.quota)).collect();
    if over.is_empty() { Ok(()) } else { Err(Failure::OverQuota(over.join(", "))) }
}

/// Options of `block` and `allow`.
#[derive(Debug, Args)]
pub struct BlockArgs {
    /// The unit
    unit: String,
    #[command(flatten)]
    format: Json,
}

/// `block`.
pub fn block(args: BlockArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    set_blocked(args, true, session)
}

/// `allow`.
pub fn allow(args: BlockArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    set_blocked(args, false, session)
}

fn set_blocked(args: BlockArgs, blocked: bool, session: &mut Session<'_>) -> Result<(), Failure> {
    let mut client = session.connect()?;
    let answer = client.set_blocked(args.unit, blocked)?;
    let look = session.look(&client, false);
    if args.format.json {
        json(session.out, &answer)?;
    } else {
        show::blocked(session.out, &answer, &look)?;
    }
    Ok(())
}

/// Options of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Source address
    #[arg(long, value_name = "ADDRESS")]
    src: IpAddr,
    /// Destination address
    #[arg(long, value_name = "ADDRESS")]
    dst: IpAddr,
    /// Protocol: tcp, udp, icmp, ... or a number
    #[arg(long, value_parser = parse_protocol, default_value = "tcp")]
    proto: u8,
    /// Source port
    #[arg(long, value_name = "N", default_value_t = 0)]
    sport: u16,
    /// Destination port
    #[arg(long, value_name = "N", default_value_t = 0)]
    dport: u16,
    /// VLAN id, where there are two tags the outer one
    #[arg(long, value_name = "ID", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..4095))]
    vlan: u16,
    /// Inner VLAN id
    #[arg(long, value_name = "ID", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..4095))]
    vlan_inner: u16,
    /// When: 90s or 2h ago, today, 2026-11-30, "2026-11-30 14:00"; by default now
    #[arg(long, value_name = "TIME")]
    at: Option<Since>,
    #[command(flatten)]
    format: Json,
}

/// `explain`.
pub fn explain(args: ExplainArgs, session: &mut Session<'_>) -> Result<(), Failure> {
    if args.src.is_ipv4() != args.dst.is_ipv4() {
        return Err(Failure::Usage("--src and --dst are of different IP versions; give two of one".into()));
    }
    let mut client = session.connect()?;
    let at = args.at.map(|at| at.resolve(Utc::now(), client.zone())).transpose();
    let query = ExplainQuery {
        src: args.src,
        dst: args.dst,
        proto: args.proto,
        sport: args.sport,
        dport: args.dport,
        vlan: args.vlan,
        vlan_inner: args.vlan_inner,
        at_ms: at.map_err(|error| Failure::Usage(format!("--at: {error}")))?,
    };
    let answer = client.explain(query)?;
    let look = session.look(&client, false);
    if args.format.json {
        json(session.out, &answer)?;
    } else {
        show::explained(session.out, &answer, &look)?;
    }
    Ok(())
}
