//! The disk is full, the database locked or damaged.

use std::fs;
use std::os::unix::fs::FileExt;

use rusqlite::Connection;

use super::*;
use crate::store::StoreError;

fn big(epoch: u64) -> Batch {
    batch(epoch, (0..5000).map(|n| delta(key(n), 1, 100, T0, T0)).collect())
}

/// Commits two epochs of which the second fails with what `check` accepts, until `repair` was called.
fn fails_and_recovers(
    dir: &Path,
    prepare: impl FnOnce(&Writer),
    check: impl Fn(&StoreError) -> bool,
    repair: impl FnOnce(&Writer),
) {
    let mut writer = open(dir);
    let commit = |writer: &mut Writer, epoch| {
        let batch = big(epoch);
        writer.commit(&batch, &charges(&batch), T0)
    };
    commit(&mut writer, 1).unwrap();
    prepare(&writer);
    let flood = batch(2, (0..20_000).map(|n| delta(key(n), 2, 200, T0, T0)).collect());
    for _ in 0..3 {
        let error = writer.commit(&flood, &charges(&flood), T0).unwrap_err();
        assert!(check(&error), "{error}");
        assert!(error.is_temporary());
        assert_eq!(writer.committed_epoch(TABLE), Some(1));
        assert_eq!(writer.active_flows(T0), 5000);
    }
    assert_totals(dir, &writer, 5000, 500_000);
    repair(&writer);
    writer.commit(&flood, &charges(&flood), T0).unwrap();
    commit(&mut writer, 3).unwrap();
    assert_eq!(writer.total_flows(), 20_000);
    assert_totals(dir, &writer, 50_000, 5_000_000);
}

#[test]
fn a_database_that_may_not_grow_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let limit = |writer: &Writer, pages: i64| {
        writer.connection().pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    };
    fails_and_recovers(
        dir.path(),
        |writer| limit(writer, 1),
        |error| matches!(error, StoreError::Full { .. }),
        |writer| limit(writer, 1_000_000),
    );
}

/// The event would say that the ledger has what the rules have counted, and a crash make that true for ever.
#[test]
fn an_event_after_a_failed_commit_does_not_write_the_counters_of_its_rules() {
    let dir = tempfile::tempdir().unwrap();
    let other = Connection::open(dir.path().join("netams.db")).unwrap();
    let mut writer = open(dir.path());
    let batch = Batch { source: Source::Nfqueue, ..big(1) };
    writer.set_rule_counters(rules(5));
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    writer.commit(&batch, &[], T0).unwrap_err();
    other.execute_batch("ROLLBACK").unwrap();
    writer.record(Source::Nfqueue, "gap", "somebody removed the rules", 0, T0).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), []);
    writer.commit(&batch, &[], T0).unwrap();
    assert_eq!(writer.last_rule_counters().unwrap(), rules(5));
}

#[test]
fn a_locked_database_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let other = Connection::open(dir.path().join("netams.db")).unwrap();
    fails_and_recovers(
        dir.path(),
        |_| other.execute_batch("BEGIN IMMEDIATE").unwrap(),
        |error| matches!(error, StoreError::Locked { .. }),
        |_| other.execute_batch("ROLLBACK").unwrap(),
    );
}

/// On a real filesystem, so that what SQLite makes of ENOSPC is what is tested.
#[test]
#[ignore = "mounts a tmpfs in a mount namespace of its own: needs root"]
fn a_full_disk_loses_nothing() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    // Of this thread only: when it ends, the namespace and the mount are gone.
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    let dir = tempfile::tempdir().unwrap();
    mount(Some("tmpfs"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("size=24m")).unwrap();
    let filler = dir.path().join("filler");
    fails_and_recovers(
        dir.path(),
        |_| {
            let file = fs::File::create(&filler).unwrap();
            let page = [0_u8; 4096];
            let full = (0..).find_map(|n| file.write_all_at(&page, n * 4096).err()).unwrap();
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        },
        |error| matches!(error, StoreError::Full { .. }),
        |_| fs::remove_file(&filler).unwrap(),
    );
    nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn what_is_not_a_database_is_said_to_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("netams.db"), "this was a database once ".repeat(1000)).unwrap();
    let error = Writer::open(dir.path(), config(&[])).err().unwrap();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert!(!error.is_temporary());
    assert!(error.to_string().contains("restore a copy"));
}

#[test]
fn damaged_pages_are_noticed_when_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    writer.commit(&big(1), &[], T0).unwrap();
    drop(writer);
    let file = fs::OpenOptions::new().write(true).open(dir.path().join("netams.db")).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    assert!(pages > 100);
    for page in 1..pages {
        file.write_all_at(&[0xa5; 4096], page * 4096).unwrap();
    }
    let error = Writer::open(dir.path(), config(&[])).err().unwrap();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    let error = Reader::open(dir.path()).unwrap().flows(&FlowSelection::default()).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = Writer::open(&missing, config(&[])).err().unwrap();
    assert!(matches!(error, StoreError::Open { .. }), "{error}");
    assert!(error.to_string().contains("missing/netams.db"));
}
