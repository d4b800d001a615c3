-- Version 0 to 1: everything. What the tables mean stands in latest.sql.

CREATE TABLE meta (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    node_id         INTEGER NOT NULL,
    created_ms      INTEGER NOT NULL,
    total_flows     INTEGER NOT NULL,
    longest_flow_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE flow (
    id         INTEGER PRIMARY KEY,
    version    INTEGER NOT NULL,
    src        BLOB    NOT NULL,
    dst        BLOB    NOT NULL,
    proto      INTEGER NOT NULL,
    sport      INTEGER NOT NULL,
    dport      INTEGER NOT NULL,
    vlan       INTEGER NOT NULL,
    vlan_inner INTEGER NOT NULL,
    fragment   INTEGER NOT NULL,
    layer      INTEGER NOT NULL,
    first_ms   INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    packets    INTEGER NOT NULL,
    bytes      INTEGER NOT NULL
) STRICT;

CREATE INDEX flow_first ON flow (first_ms);

CREATE TABLE unit (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL
) STRICT;

CREATE TABLE unit_hour (
    unit        INTEGER NOT NULL REFERENCES unit (id),
    hour_ms     INTEGER NOT NULL,
    in_packets  INTEGER NOT NULL,
    in_bytes    INTEGER NOT NULL,
    out_packets INTEGER NOT NULL,
    out_bytes   INTEGER NOT NULL,
    PRIMARY KEY (unit, hour_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE ledger (
    source              TEXT PRIMARY KEY,
    packets_in          INTEGER NOT NULL DEFAULT 0,
    packets_out         INTEGER NOT NULL DEFAULT 0,
    already_counted     INTEGER NOT NULL DEFAULT 0,
    flow_packets        INTEGER NOT NULL DEFAULT 0,
    flow_bytes          INTEGER NOT NULL DEFAULT 0,
    overflow_packets    INTEGER NOT NULL DEFAULT 0,
    overflow_bytes      INTEGER NOT NULL DEFAULT 0,
    non_ip              INTEGER NOT NULL DEFAULT 0,
    malformed           INTEGER NOT NULL DEFAULT 0,
    fragments           INTEGER NOT NULL DEFAULT 0,
    spilled             INTEGER NOT NULL DEFAULT 0,
    gso_headers_unknown INTEGER NOT NULL DEFAULT 0,
    missed              INTEGER NOT NULL DEFAULT 0,
    commits             INTEGER NOT NULL DEFAULT 0,
    last_commit_ms      INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE epoch (
    table_id INTEGER PRIMARY KEY,
    epoch    INTEGER NOT NULL
) STRICT;

CREATE TABLE event (
    id      INTEGER PRIMARY KEY,
    time_ms INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    missed  INTEGER NOT NULL
) STRICT;

CREATE TABLE absence (
    interface TEXT PRIMARY KEY,
    ifindex   INTEGER NOT NULL,
    packets   INTEGER NOT NULL,
    since_ms  INTEGER NOT NULL,
    boot      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO meta VALUES (
    1,
    max(1, random() & 0xffffffff),
    CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
    0,
    0
);
