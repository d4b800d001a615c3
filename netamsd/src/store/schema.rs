//! Opens the database file and brings its schema up to date.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::{Durability, StoreError};

/// Step n leads from `user_version` n to n + 1.
const STEPS: &[&str] = &[
    include_str!("../../../schema/0001_init.sql"),
    include_str!("../../../schema/0002_sources.sql"),
    include_str!("../../../schema/0003_tunnels.sql"),
    include_str!("../../../schema/0004_policies.sql"),
];
/// The caller comes back, so a busy database is reported rather than waited for.
const BUSY_TIMEOUT: Duration = Duration::from_millis(200);
/// A WAL that a burst has blown up is cut back to this size, bytes.
const WAL_LIMIT: i64 = 64 << 20;

/// Where the database is inside the state folder.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join("netams.db")
}

/// Opens the database for the writer, making it if there is none, with the latest schema.
pub(super) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, StoreError> {
    // SQLite would make the file readable for everyone; who talked to whom is not everyone's business. The WAL and
    // its index get the permissions of the database.
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|e| StoreError::Open { path: path.to_owned(), detail: e.to_string() })?;
    let sql = |e: rusqlite::Error| StoreError::sql(path, &e);

    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(sql)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(sql)?;
    // Before anything is written: a newer database must stay as it is.
    let found = version(&conn).map_err(sql)?;
    refuse_newer(path, found)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(sql)?;
    if mode != "wal" {
        let detail = format!("its filesystem supports journal mode {mode} only, not wal");
        return Err(StoreError::Open { path: path.to_owned(), detail });
    }
    conn.pragma_update(None, "synchronous", durability.pragma()).map_err(sql)?;
    conn.pragma_update_and_check(None, "journal_size_limit", WAL_LIMIT, |_| Ok(())).map_err(sql)?;
    migrate(&mut conn, STEPS).map_err(sql)?;
    Ok(conn)
}

/// Opens the database for reading only. It must be there, with the latest schema.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let sql = |e: rusqlite::Error| StoreError::sql(path, &e);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(sql)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(sql)?;
    let found = version(&conn).map_err(sql)?;
    refuse_newer(path, found)?;
    if found < latest() {
        let detail = format!("schema version {found} is not migrated to {} yet", latest());
        return Err(StoreError::Open { path: path.to_owned(), detail });
    }
    Ok(conn)
}

fn latest() -> i64 {
    STEPS.len() as i64
}

fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn refuse_newer(path: &Path, found: i64) -> Result<(), StoreError> {
    if found > latest() {
        return Err(StoreError::Newer { path: path.to_owned(), found, supported: latest() });
    }
    Ok(())
}

/// Runs those of `steps` that the database has not seen. Each commits together with its version number.
fn migrate(conn: &mut Connection, steps: &[&str]) -> rusqlite::Result<()> {
    let found = usize::try_from(version(conn)?).unwrap_or(0);
    for (number, step) in steps.iter().enumerate().skip(found) {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(step)?;
        tx.pragma_update(None, "user_version", number as i64 + 1)?;
        tx.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Value;

    use super::*;

    /// Tables and indices as SQL without comments and layout.
    fn shape(conn: &Connection) -> Vec<String> {
        let mut statement =
            conn.prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").unwrap();
        let sql = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        sql.map(|sql| {
            let code: Vec<_> =
                sql.unwrap().lines().map(|l| l.split("--").next().unwrap().to_owned()).collect();
            let sql = code.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
            // SQLite adds a column in front of the white space at the end.
            sql.replace(" ,", ",").replace(" )", ")")
        })
        .collect()
    }

    #[test]
    fn every_step_from_every_older_version_gives_the_latest_schema() {
        let wanted = Connection::open_in_memory().unwrap();
        wanted.execute_batch(include_str!("../../../schema/latest.sql")).unwrap();
        assert_eq!(shape(&wanted).len(), 14);
        for older in 0..=STEPS.len() {
            let mut conn = Connection::open_in_memory().unwrap();
            migrate(&mut conn, &STEPS[..older]).unwrap();
            assert_eq!(version(&conn).unwrap(), older as i64);
            migrate(&mut conn, STEPS).unwrap();
            assert_eq!(version(&conn).unwrap(), latest());
            assert_eq!(shape(&conn), shape(&wanted), "from version {older}");
        }
    }

    #[test]
    fn what_is_in_version_1_stays() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, &STEPS[..1]).unwrap();
        conn.execute_batch(
            "INSERT INTO ledger (source, packets_in, flow_packets, missed, commits, last_commit_ms)
                 VALUES ('kernel', 10, 9, 3, 2, 1000);
             INSERT INTO flow (id, version, src, dst, proto, sport, dport, vlan, vlan_inner, fragment, layer,
                     first_ms, last_ms, packets, bytes)
                 VALUES (1, 4, zeroblob(16), zeroblob(16), 17, 1, 2, 0, 0, 0, 0, 500, 900, 9, 900);
             UPDATE meta SET total_flows = 1, longest_flow_ms = 400;
             INSERT INTO metered VALUES ('eth0', 2, 77, 1000, 'boot')",
        )
        .unwrap();
        let old = ["ledger", "flow", "meta", "metered"];
        let row = |conn: &Connection, table: &str| -> Vec<(String, Value)> {
            let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
            let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
            let values = statement.query_row([], |row| {
                columns.iter().enumerate().map(|(n, name)| Ok((name.clone(), row.get(n)?))).collect()
            });
            values.unwrap()
        };
        let before = old.map(|table| row(&conn, table));
        migrate(&mut conn, STEPS).unwrap();
        for (table, before) in old.iter().zip(before) {
            let after = row(&conn, table);
            let (kept, added) = after.split_at(before.len());
            assert_eq!(kept, before, "{table}");
            assert!(added.iter().all(|(_, value)| *value == Value::Integer(0)), "{table}: {added:?}");
        }
    }

    #[test]
    fn a_step_that_fails_leaves_the_version_before_it() {
        let mut conn = Connection::open_in_memory().unwrap();
        let steps = ["CREATE TABLE a (x)", "CREATE TABLE b (x); CREATE TABLE a (x)"];
        migrate(&mut conn, &steps).unwrap_err();
        assert_eq!(version(&conn).unwrap(), 1);
        assert_eq!(shape(&conn), ["CREATE TABLE a (x)"]);
    }

    #[test]
    fn a_newer_database_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path());
        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", 999).unwrap();
        drop(conn);
        let before = std::fs::read(&path).unwrap();
        let newer = StoreError::Newer { path: path.clone(), found: 999, supported: latest() };
        assert_eq!(open_writer(&path, Durability::EachCommit).unwrap_err(), newer);
        assert_eq!(open_reader(&path).unwrap_err(), newer);
        assert!(newer.to_string().contains("schema version 999"));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_file_that_was_not_migrated_is_no_store_for_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path());
        assert!(matches!(open_reader(&path), Err(StoreError::Open { .. })));
        drop(Connection::open(&path).unwrap().execute_batch("CREATE TABLE other (x)"));
        assert!(matches!(open_reader(&path), Err(StoreError::Open { .. })));
    }
}
