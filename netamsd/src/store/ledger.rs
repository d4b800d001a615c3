//! The ledgers of the data sources: a row of each in the database and in memory.

use rusqlite::Connection;

use crate::flow::{Counters, Source};

/// The ledger of each source.
#[derive(Debug)]
pub(super) struct Ledgers([Ledger; Source::ALL.len()]);

impl Ledgers {
    /// Reads all of them, opening empty ones where there are none.
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mut ledgers = Self(Source::ALL.map(|source| Ledger { source, ..Ledger::default() }));
        for ledger in &mut ledgers.0 {
            *ledger = Ledger::load(conn, ledger.source)?;
        }
        Ok(ledgers)
    }

    pub(super) fn of(&self, source: Source) -> &Ledger {
        &self.0[source as usize]
    }

    /// Puts `ledger` in the place of the one that its source had.
    pub(super) fn replace(&mut self, ledger: Ledger) {
        let source = ledger.source;
        self.0[source as usize] = ledger;
    }
}

/// Everything a source ever counted, cumulative since the store was created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Whose it is.
    pub source: Source,
    /// Sum of the counters of all committed batches.
    pub counters: Counters,
    /// Packets that passed while the source was not there to see them: the sum over all its events.
    pub missed: u64,
    /// Batches committed.
    pub commits: u64,
    /// Last commit, milliseconds UTC since 1970; 0 when there was none.
    pub last_commit_ms: i64,
}

impl Ledger {
    /// Reads the ledger of `source`, opening an empty one if there is none.
    fn load(conn: &Connection, source: Source) -> rusqlite::Result<Self> {
        let name = source.name();
        conn.execute("INSERT INTO ledger (source) VALUES (?1) ON CONFLICT DO NOTHING", [name])?;
        conn.query_row("SELECT * FROM ledger WHERE source = ?1", [name], |row| {
            let last_commit_ms = row.get("last_commit_ms")?;
            let mut ledger = Self { source, last_commit_ms, ..Self::default() };
            for (column, value) in ledger.terms() {
                *value = row.get::<_, i64>(column)? as u64;
            }
            Ok(ledger)
        })
    }

    /// Writes the whole row. Takes `mut` only to go through the one list of terms.
    pub(super) fn save(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let terms = self.terms();
        let columns: String = terms.iter().map(|(column, _)| format!("{column} = ?, ")).collect();
        let sql = format!("UPDATE ledger SET {columns} last_commit_ms = ? WHERE source = ?");
        let mut statement = conn.prepare_cached(&sql)?;
        let count = terms.len();
        for (index, (_, value)) in terms.into_iter().enumerate() {
            statement.raw_bind_parameter(index + 1, *value as i64)?;
        }
        statement.raw_bind_parameter(count + 1, self.last_commit_ms)?;
        statement.raw_bind_parameter(count + 2, self.source.name())?;
        statement.raw_execute()?;
        Ok(())
    }

    /// Each unsigned column with its value. A new counter does not compile before it is listed here.
    fn terms(&mut self) -> [(&'static str, &mut u64); 25] {
        let Self { source: _, counters, missed, commits, last_commit_ms: _ } = self;
        let Counters {
            packets_in,
            packets_out,
            already_counted,
            flow_packets,
            flow_bytes,
            inner_packets,
            inner_bytes,
            inner_overflow_packets,
            inner_overflow_bytes,
            overflow_packets,
            overflow_bytes,
            non_ip,
            malformed,
            fragments,
            spilled,
            gso_headers_unknown,
            estimated,
            dropped,
            reference,
            queued,
            queue_lost,
            queue_full,
            bypassed,
        } = counters;
        [
            ("packets_in", packets_in),
            ("packets_out", packets_out),
            ("already_counted", already_counted),
            ("flow_packets", flow_packets),
            ("flow_bytes", flow_bytes),
            ("overflow_packets", overflow_packets),
            ("overflow_bytes", overflow_bytes),
            ("non_ip", non_ip),
            ("malformed", malformed),
            ("fragments", fragments),
            ("spilled", spilled),
            ("gso_headers_unknown", gso_headers_unknown),
            ("estimated", estimated),
            ("dropped", dropped),
            ("reference", reference),
            ("queued", queued),
            ("queue_lost", queue_lost),
            ("queue_full", queue_full),
            ("bypassed", bypassed),
            ("inner_packets", inner_packets),
            ("inner_bytes", inner_bytes),
            ("inner_overflow_packets", inner_overflow_packets),
            ("inner_overflow_bytes", inner_overflow_bytes),
            ("missed", missed),
            ("commits", commits),
        ]
    }
}
