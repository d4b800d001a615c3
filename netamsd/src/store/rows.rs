//! Between rows of the database and records in memory: each SQL statement of the writer's path, once.

use std::net::Ipv6Addr;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::cache::{Change, FlowCache, Record, Timeouts, new_record};
use super::{Metered, RuleCounter, StoreUnit, ToldQuota};
use crate::flow::{Account, Encapsulation, FlowKey, InOut, Tunnel, UnitCharge};

/// The columns that [`flow_key`] and [`record`] read, in their order.
macro_rules! flow_columns {
    () => {
        "id, first_ms, last_ms, version, src, dst, proto, sport, dport, vlan, vlan_inner, fragment, tunnel, tunnel_key"
    };
}
pub(super) use flow_columns;

/// The one row of `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) node_id: u32,
    pub(super) total_flows: u64,
    pub(super) longest_flow_ms: i64,
}

impl Meta {
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        conn.query_row("SELECT node_id, total_flows, longest_flow_ms FROM meta", [], |row| {
            Ok(Self {
                node_id: row.get(0)?,
                total_flows: row.get::<_, i64>(1)? as u64,
                longest_flow_ms: row.get(2)?,
            })
        })
    }

    pub(super) fn save(&self, conn: &Connection) -> rusqlite::Result<()> {
        conn.prepare_cached("UPDATE meta SET total_flows = ?1, longest_flow_ms = ?2")?
            .execute(params![self.total_flows as i64, self.longest_flow_ms])?;
        Ok(())
    }
}

/// Reads the key of a flow from [`flow_columns`].
pub(super) fn flow_key(row: &Row<'_>) -> rusqlite::Result<FlowKey> {
    Ok(FlowKey {
        version: row.get(3)?,
        src: Ipv6Addr::from(row.get::<_, [u8; 16]>(4)?),
        dst: Ipv6Addr::from(row.get::<_, [u8; 16]>(5)?),
        proto: row.get(6)?,
        sport: row.get(7)?,
        dport: row.get(8)?,
        vlan: row.get(9)?,
        vlan_inner: row.get(10)?,
        fragment: row.get(11)?,
        tunnel: tunnel(row.get(12)?, row.get(13)?),
    })
}

fn tunnel(kind: u8, key: u32) -> Option<Tunnel> {
    Encapsulation::from_number(kind).map(|kind| Tunnel { kind, key })
}

/// Reads a record from [`flow_columns`].
pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record { row: row.get(0)?, first_ms: row.get(1)?, last_ms: row.get(2)? })
}

/// Makes or updates the rows of the configured units, and returns their ids in the same order.
pub(super) fn save_units(conn: &Connection, units: &[StoreUnit]) -> rusqlite::Result<Vec<i64>> {
    let sql = "INSERT INTO unit (name, kind) VALUES (?1, ?2)
        ON CONFLICT (name) DO UPDATE SET kind = excluded.kind RETURNING id";
    let mut statement = conn.prepare(sql)?;
    units.iter().map(|unit| statement.query_row([&unit.name, &unit.kind], |row| row.get(0))).collect()
}

/// Hands `cache` the records that were alive at the last commit of any source: what was counted while no daemon ran
/// may continue them.
pub(super) fn load_alive(
    conn: &Connection,
    cache: &mut FlowCache,
    timeouts: Timeouts,
) -> rusqlite::Result<()> {
    let sql = concat!(
        "WITH newest (ms) AS (SELECT max(last_commit_ms) FROM ledger) SELECT ",
        flow_columns!(),
        " FROM newest CROSS JOIN flow INDEXED BY flow_first
         WHERE first_ms >= newest.ms - ?1 AND last_ms >= newest.ms - ?2"
    );
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([timeouts.active_ms, timeouts.idle_ms])?;
    while let Some(row) = rows.next()? {
        cache.adopt(flow_key(row)?, record(row)?);
    }
    Ok(())
}

/// Writes `changes`, numbering new records on from `meta.total_flows`. Returns how many are new.
pub(super) fn write_flows(
    conn: &Connection,
    changes: &mut [Change],
    meta: &mut Meta,
) -> rusqlite::Result<u64> {
    let before = meta.total_flows;
    let mut update = conn.prepare_cached(
        "UPDATE flow SET packets = packets + ?2, bytes = bytes + ?3, last_ms = ?4, estimated = estimated | ?5
         WHERE id = ?1",
    )?;
    let mut set_first = conn.prepare_cached("UPDATE flow SET first_ms = ?2 WHERE id = ?1")?;
    let mut insert = conn.prepare_cached(concat!(
        "INSERT INTO flow (",
        flow_columns!(),
        ", packets, bytes, estimated, layer)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
    ))?;
    for Change { delta, record } in changes {
        let (packets, bytes) = (delta.packets as i64, delta.bytes as i64);
        let continued = record.row != 0
            && update.execute(params![record.row, packets, bytes, record.last_ms, delta.estimated])? > 0;
        // Packets of a batch may be older than those of the one before, where the clock went back. Seldom: the index is by it.
        if continued && record.first_ms == delta.first_ms {
            set_first.execute(params![record.row, record.first_ms])?;
        }
        // A record that retention, or somebody, has deleted meanwhile begins anew.
        if !continued {
            meta.total_flows += 1;
            *record = Record { row: meta.total_flows as i64, ..new_record(delta) };
            let key = &delta.key;
            insert.execute(params![
                record.row,
                record.first_ms,
                record.last_ms,
                key.version,
                key.src.octets(),
                key.dst.octets(),
                key.proto,
                key.sport,
                key.dport,
                key.vlan,
                key.vlan_inner,
                key.fragment,
                key.tunnel.map_or(0, |tunnel| tunnel.kind.number()),
                key.tunnel.map_or(0, |tunnel| tunnel.key),
                packets,
                bytes,
                delta.estimated,
                key.tunnel.is_some(),
            ])?;
        }
        meta.longest_flow_ms = meta.longest_flow_ms.max(record.last_ms.saturating_sub(record.first_ms));
    }
    Ok(meta.total_flows - before)
}

/// Makes the rows of the configured policies where there are none, and returns their ids in the same order.
pub(super) fn save_policies(conn: &Connection, names: &[String]) -> rusqlite::Result<Vec<i64>> {
    let sql =
        "INSERT INTO policy (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = name RETURNING id";
    let mut statement = conn.prepare(sql)?;
    names.iter().map(|name| statement.query_row([name], |row| row.get(0))).collect()
}

/// Adds a charge to an hour of the unit with row id `unit`; `policies` are the row ids of the configured ones.
pub(super) fn write_charge(
    conn: &Connection,
    unit: i64,
    policies: &[i64],
    charge: &UnitCharge,
) -> rusqlite::Result<()> {
    // `$more` is what tells the rows of an hour apart, with its value as parameter 7.
    macro_rules! add_to {
        ($table:literal, $more:literal, $value:literal) => {
            concat!(
                "INSERT INTO ", $table, " (unit, hour_ms, in_packets, in_bytes, out_packets, out_bytes", $more, ")
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6", $value, ")
                 ON CONFLICT (unit, hour_ms", $more, ") DO UPDATE SET
                    in_packets = in_packets + excluded.in_packets, in_bytes = in_bytes + excluded.in_bytes,
                    out_packets = out_packets + excluded.out_packets, out_bytes = out_bytes + excluded.out_bytes"
            )
        };
    }
    let InOut { in_packets, in_bytes, out_packets, out_bytes } = charge.counts;
    let [a, b, c, d] = [in_packets, in_bytes, out_packets, out_bytes].map(|count| count as i64);
    let hour = charge.hour_ms;
    match charge.account {
        Account::Traffic => {
            conn.prepare_cached(add_to!("unit_hour", "", ""))?.execute(params![unit, hour, a, b, c, d])?
        }
        Account::Policy(policy) => conn
            .prepare_cached(add_to!("policy_hour", ", policy", ", ?7"))?
            .execute(params![unit, hour, a, b, c, d, policies[policy as usize]])?,
        Account::Dropped(reason) => conn
            .prepare_cached(add_to!("dropped_hour", ", reason", ", ?7"))?
            .execute(params![unit, hour, a, b, c, d, reason])?,
    };
    Ok(())
}

/// What an account of the unit with row id `unit` has in the hours that begin at or after `from_ms`.
pub(super) fn used(
    conn: &Connection,
    unit: i64,
    policies: &[i64],
    account: Account,
    from_ms: i64,
) -> rusqlite::Result<InOut> {
    macro_rules! sum {
        ($table:literal, $condition:literal) => {
            concat!(
                "SELECT ifnull(sum(in_packets), 0), ifnull(sum(in_bytes), 0), ifnull(sum(out_packets), 0),
                    ifnull(sum(out_bytes), 0) FROM ",
                $table,
                " WHERE unit = ?1 AND hour_ms >= ?2 AND ",
                $condition
            )
        };
    }
    let counts = |row: &Row<'_>| {
        let count = |column: usize| row.get::<_, i64>(column).map(|count| count as u64);
        Ok(InOut { in_packets: count(0)?, in_bytes: count(1)?, out_packets: count(2)?, out_bytes: count(3)? })
    };
    match account {
        Account::Traffic => {
            conn.prepare_cached(sum!("unit_hour", "TRUE"))?.query_row(params![unit, from_ms], counts)
        }
        Account::Policy(policy) => conn
            .prepare_cached(sum!("policy_hour", "policy = ?3"))?
            .query_row(params![unit, from_ms, policies[policy as usize]], counts),
        Account::Dropped(reason) => conn
            .prepare_cached(sum!("dropped_hour", "reason = ?3"))?
            .query_row(params![unit, from_ms, reason], counts),
    }
}

/// What was last told of a quota.
pub(super) fn load_quota(conn: &Connection, unit: i64, name: &str) -> rusqlite::Result<Option<ToldQuota>> {
    conn.prepare_cached("SELECT start_ms, state, limit_bytes FROM quota WHERE unit = ?1 AND name = ?2")?
        .query_row(params![unit, name], |row| {
            Ok(ToldQuota { start_ms: row.get(0)?, state: row.get(1)?, limit: row.get::<_, i64>(2)? as u64 })
        })
        .optional()
}

/// Keeps what is told of a quota.
pub(super) fn save_quota(conn: &Connection, unit: i64, name: &str, told: ToldQuota) -> rusqlite::Result<()> {
    let sql = "INSERT INTO quota (unit, name, start_ms, state, limit_bytes) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (unit, name) DO UPDATE SET
            start_ms = excluded.start_ms, state = excluded.state, limit_bytes = excluded.limit_bytes";
    conn.prepare_cached(sql)?.execute(params![unit, name, told.start_ms, told.state, told.limit as i64])?;
    Ok(())
}

/// Whether each configured unit was said to be blocked, if something was said; `units` are their row ids.
pub(super) fn load_blocked(conn: &Connection, units: &[i64]) -> rusqlite::Result<Vec<Option<bool>>> {
    let mut statement = conn.prepare("SELECT blocked FROM unit WHERE id = ?1")?;
    units.iter().map(|unit| statement.query_row([unit], |row| row.get(0))).collect()
}

/// Says whether the unit with row id `unit` is blocked, or that nothing is said of it.
pub(super) fn save_blocked(conn: &Connection, unit: i64, blocked: Option<bool>) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE unit SET blocked = ?2 WHERE id = ?1")?.execute(params![unit, blocked])?;
    Ok(())
}

/// Reads the last committed epoch of each set of flow tables.
pub(super) fn load_epochs<C: FromIterator<(u64, u64)>>(conn: &Connection) -> rusqlite::Result<C> {
    let mut statement = conn.prepare("SELECT table_id, epoch FROM epoch")?;
    let rows =
        statement.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)))?;
    rows.collect()
}

/// Notes that `epoch` of `table` is committed.
pub(super) fn write_epoch(conn: &Connection, table: u64, epoch: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO epoch (table_id, epoch) VALUES (?1, ?2)
        ON CONFLICT (table_id) DO UPDATE SET epoch = excluded.epoch";
    conn.prepare_cached(sql)?.execute([table as i64, epoch as i64])?;
    Ok(())
}

/// Replaces the interfaces that are metered.
pub(super) fn save_metered(conn: &Connection, metered: &[Metered]) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM metered")?.execute([])?;
    let sql = "INSERT INTO metered (interface, ifindex, packets, time_ms, boot) VALUES (?1, ?2, ?3, ?4, ?5)";
    let mut insert = conn.prepare_cached(sql)?;
    for m in metered {
        insert.execute(params![m.interface, m.ifindex, m.packets as i64, m.time_ms, m.boot])?;
    }
    Ok(())
}

/// The interfaces that were metered when that was last written.
pub(super) fn load_metered(conn: &Connection) -> rusqlite::Result<Vec<Metered>> {
    let mut statement = conn.prepare("SELECT interface, ifindex, packets, time_ms, boot FROM metered")?;
    let rows = statement.query_map([], |row| {
        Ok(Metered {
            interface: row.get(0)?,
            ifindex: row.get(1)?,
            packets: row.get::<_, i64>(2)? as u64,
            time_ms: row.get(3)?,
            boot: row.get(4)?,
        })
    })?;
    rows.collect()
}

/// Replaces the counters of the rules.
pub(super) fn save_rule_counters(conn: &Connection, counters: &[RuleCounter]) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM rule_counter")?.execute([])?;
    let mut insert =
        conn.prepare_cached("INSERT INTO rule_counter (name, packets, bytes) VALUES (?1, ?2, ?3)")?;
    for c in counters {
        insert.execute(params![c.name, c.packets as i64, c.bytes as i64])?;
    }
    Ok(())
}

/// The counters of the rules when they were last written.
pub(super) fn load_rule_counters(conn: &Connection) -> rusqlite::Result<Vec<RuleCounter>> {
    let mut statement = conn.prepare("SELECT name, packets, bytes FROM rule_counter ORDER BY name")?;
    let rows = statement.query_map([], |row| {
        Ok(RuleCounter {
            name: row.get(0)?,
            packets: row.get::<_, i64>(1)? as u64,
            bytes: row.get::<_, i64>(2)? as u64,
        })
    })?;
    rows.collect()
}
