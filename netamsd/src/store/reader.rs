//! The reader: answers questions from the database, beside the writer and without stopping it.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::rows::{self, flow_columns};
use super::selection::{Largest, UnitFlows};
use super::{FlowOrder, FlowSelection, StoreError, schema};
use crate::flow::{FlowKey, InOut, canonical};

const ALL: (Ipv6Addr, Ipv6Addr) = (Ipv6Addr::UNSPECIFIED, Ipv6Addr::from_bits(u128::MAX));

/// Instructions of SQLite between two looks at whether somebody waits no longer: well below a tenth of a second.
const INTERRUPTIBLE: std::ffi::c_int = 100_000;

/// One flow record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    /// Which flow.
    pub key: FlowKey,
    /// First packet, milliseconds UTC since 1970.
    pub first_ms: i64,
    /// Last packet, milliseconds UTC since 1970.
    pub last_ms: i64,
    /// Wire packets.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
    /// Some of its packets were inferred from super-packets whose segment size is not known.
    pub estimated: bool,
}

/// What all records of the same addresses, protocol and ports have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowSum {
    /// IP version, 4 or 6.
    pub version: u8,
    /// Source address in its own family.
    pub src: IpAddr,
    /// Destination address in its own family.
    pub dst: IpAddr,
    /// Upper-layer protocol.
    pub proto: u8,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Wire packets.
    pub packets: u64,
    /// Layer-3 bytes.
    pub bytes: u64,
}

fn flow_sum(row: &rusqlite::Row<'_>) -> rusqlite::Result<FlowSum> {
    let version = row.get(0)?;
    let address =
        |column| Ok::<_, rusqlite::Error>(canonical(row.get::<_, [u8; 16]>(column)?.into(), version));
    Ok(FlowSum {
        version,
        src: address(1)?,
        dst: address(2)?,
        proto: row.get(3)?,
        sport: row.get(4)?,
        dport: row.get(5)?,
        packets: row.get::<_, i64>(6)? as u64,
        bytes: row.get::<_, i64>(7)? as u64,
    })
}

/// The selected flow records, and totals of all that matched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flows {
    /// At most `top` records, in the order asked for.
    pub flows: Vec<FlowRecord>,
    /// Records that matched, also those beyond `top`.
    pub matched: u64,
    /// Their wire packets.
    pub packets: u64,
    /// Their layer-3 bytes.
    pub bytes: u64,
    /// How many of the records that matched are estimated.
    pub estimated: u64,
}

/// A part of a unit's packets, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartTotals {
    /// Name of the unit.
    pub unit: String,
    /// A policy that held for them, or the reason why they were dropped.
    pub part: String,
    /// How many.
    pub counts: InOut,
}

fn part_totals(row: &rusqlite::Row<'_>) -> rusqlite::Result<PartTotals> {
    Ok(PartTotals { unit: row.get(0)?, part: row.get(1)?, counts: in_out(row, 2)? })
}

/// Four columns from `first` on.
fn in_out(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<InOut> {
    let count = |column: usize| row.get::<_, i64>(first + column).map(|count| count as u64);
    Ok(InOut { in_packets: count(0)?, in_bytes: count(1)?, out_packets: count(2)?, out_bytes: count(3)? })
}

/// Something the administrator should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// When, milliseconds UTC since 1970.
    pub time_ms: i64,
    /// Short name of the kind.
    pub kind: String,
    /// One sentence.
    pub detail: String,
    /// Packets that passed meanwhile, by the interfaces' own counters.
    pub missed: u64,
}

/// A read-only view of the database. Each answer is one consistent state, the one after the newest commit.
pub struct Reader {
    conn: Connection,
    path: PathBuf,
}

impl Reader {
    /// Opens the database in the folder `dir`, which a [`Writer`](super::Writer) has made before.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Full` and `UnknownUnit`; so it is with all functions here.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = schema::path(dir);
        Ok(Self { conn: schema::open_reader(&path)?, path })
    }

    /// Answers that take long end with an error once `ask` says so.
    ///
    /// # Errors
    /// When SQLite does not take it.
    pub fn interrupt_when(&self, ask: impl FnMut() -> bool + Send + 'static) -> Result<(), StoreError> {
        let set = self.conn.progress_handler(INTERRUPTIBLE, Some(ask));
        set.map_err(|e| StoreError::sql(&self.path, &e))
    }

    /// Flow records that `selection` selects. Reads all records since `since_ms`, about a million in a second.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn flows(&self, selection: &FlowSelection) -> Result<Flows, StoreError> {
        self.select(selection).map_err(|e| StoreError::sql(&self.path, &e))
    }

    fn select(&self, selection: &FlowSelection) -> rusqlite::Result<Flows> {
        // One transaction, so that longest_flow_ms belongs to the rows.
        let tx = self.conn.unchecked_transaction()?;
        let (since_ms, first_since_ms, scan) = match selection.since_ms {
            Some(since_ms) => {
                let longest_ms = rows::Meta::load(&tx)?.longest_flow_ms;
                (since_ms, since_ms.saturating_sub(longest_ms), "INDEXED BY flow_first")
            }
            None => (i64::MIN, i64::MIN, "NOT INDEXED"),
        };
        let sql = format!(
            "SELECT {columns}, packets, bytes, estimated FROM flow {scan}
             WHERE first_ms >= ?1 AND last_ms >= ?2 AND layer = ?9 AND id > ?10
                AND src BETWEEN ?3 AND ?4 AND dst BETWEEN ?5 AND ?6
                AND (?7 IS NULL OR proto = ?7)
                AND (?8 IS NULL OR sport = ?8 OR dport = ?8)",
            columns = flow_columns!()
        );
        let (src, dst) = (selection.src.unwrap_or(ALL), selection.dst.unwrap_or(ALL));
        let unit = selection.unit.clone().map(UnitFlows::new);
        let mut found = Flows::default();
        let mut largest = Largest::new(selection.top);
        let mut statement = tx.prepare_cached(&sql)?;
        let mut rows = statement.query(params![
            first_since_ms,
            since_ms,
            src.0.octets(),
            src.1.octets(),
            dst.0.octets(),
            dst.1.octets(),
            selection.proto,
            selection.port,
            selection.inner,
            selection.after as i64,
        ])?;
        while let Some(row) = rows.next()? {
            let key = rows::flow_key(row)?;
            if unit.as_ref().is_some_and(|unit| !unit.contains(&key)) {
                continue;
            }
            let (packets, bytes, estimated): (i64, i64, bool) = (row.get(14)?, row.get(15)?, row.get(16)?);
            found.matched += 1;
            found.packets += packets as u64;
            found.bytes += bytes as u64;
            found.estimated += u64::from(estimated);
            let record = rows::record(row)?;
            let value = match selection.order {
                FlowOrder::Bytes => bytes,
                FlowOrder::Packets => packets,
                FlowOrder::First => record.first_ms,
                FlowOrder::Last => record.last_ms,
            };
            let flow = FlowRecord {
                key,
                first_ms: record.first_ms,
                last_ms: record.last_ms,
                packets: packets as u64,
                bytes: bytes as u64,
                estimated,
            };
            largest.offer(value, record.row, flow);
        }
        found.flows = largest.into_sorted();
        Ok(found)
    }

    /// Gives `each` the sums of the records newer than `after` (see [`FlowSelection::after`]) of one layer: one a version,
    /// addresses, protocol and ports, whatever VLAN or tunnel they are in, ascending in that order. Sorts on disk what does not
    /// fit into memory.
    ///
    /// # Errors
    /// See [`Self::open`]; or that of `each`, which ends it.
    pub fn sums<E: From<StoreError>>(
        &self,
        after: u64,
        inner: bool,
        mut each: impl FnMut(FlowSum) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |e: rusqlite::Error| E::from(StoreError::sql(&self.path, &e));
        let sql = "SELECT version, src, dst, proto, sport, dport, sum(packets), sum(bytes) FROM flow
            WHERE id > ?1 AND layer = ?2
            GROUP BY version, src, dst, proto, sport, dport ORDER BY version, src, dst, proto, sport, dport";
        let mut statement = self.conn.prepare(sql).map_err(failed)?;
        let mut rows = statement.query(params![after as i64, inner]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            each(flow_sum(row).map_err(failed)?)?;
        }
        Ok(())
    }

    /// What each unit ever configured has used in the hours that begin at or after `from_ms` (milliseconds UTC since
    /// 1970), or since the store was created. Oldest unit first.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn unit_totals(&self, from_ms: Option<i64>) -> Result<Vec<(String, InOut)>, StoreError> {
        let sql = "SELECT name, ifnull(sum(in_packets), 0), ifnull(sum(in_bytes), 0),
                ifnull(sum(out_packets), 0), ifnull(sum(out_bytes), 0)
            FROM unit LEFT JOIN unit_hour ON unit_hour.unit = unit.id AND hour_ms >= ?1
            GROUP BY unit.id ORDER BY unit.id";
        self.query(sql, from_ms.unwrap_or(i64::MIN), |row| Ok((row.get(0)?, in_out(row, 1)?)))
    }

    /// What policies have held for of each unit's traffic, since `from_ms` as in [`Self::unit_totals`].
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn policy_totals(&self, from_ms: Option<i64>) -> Result<Vec<PartTotals>, StoreError> {
        let sql =
            "SELECT unit.name, policy.name, sum(in_packets), sum(in_bytes), sum(out_packets), sum(out_bytes)
            FROM policy_hour JOIN unit ON unit.id = unit JOIN policy ON policy.id = policy
            WHERE hour_ms >= ?1 GROUP BY unit, policy ORDER BY unit, policy";
        self.query(sql, from_ms.unwrap_or(i64::MIN), part_totals)
    }

    /// What verdicts have dropped of each unit's packets by reason, since `from_ms` as in [`Self::unit_totals`].
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn dropped_totals(&self, from_ms: Option<i64>) -> Result<Vec<PartTotals>, StoreError> {
        let sql = "SELECT name, reason, sum(in_packets), sum(in_bytes), sum(out_packets), sum(out_bytes)
            FROM dropped_hour JOIN unit ON unit.id = unit
            WHERE hour_ms >= ?1 GROUP BY unit, reason ORDER BY unit, reason";
        self.query(sql, from_ms.unwrap_or(i64::MIN), part_totals)
    }

    /// The newest `n` events, newest first.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn events(&self, n: u32) -> Result<Vec<EventRecord>, StoreError> {
        let sql = "SELECT time_ms, kind, detail, missed FROM event ORDER BY id DESC LIMIT ?1";
        self.query(sql, i64::from(n), |row| {
            Ok(EventRecord {
                time_ms: row.get(0)?,
                kind: row.get(1)?,
                detail: row.get(2)?,
                missed: row.get::<_, i64>(3)? as u64,
            })
        })
    }

    fn query<T>(
        &self,
        sql: &str,
        parameter: i64,
        row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let run = || {
            self.conn.prepare_cached(sql)?.query_map([parameter], row)?.collect::<rusqlite::Result<Vec<T>>>()
        };
        run().map_err(|e| StoreError::sql(&self.path, &e))
    }
}
