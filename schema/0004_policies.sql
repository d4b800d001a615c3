-- Version 3 to 4: accounts of policies, what verdicts have dropped, blocked units. What it means stands in latest.sql.

ALTER TABLE unit ADD COLUMN blocked INTEGER;

CREATE TABLE policy (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE policy_hour (
    unit        INTEGER NOT NULL REFERENCES unit (id),
    policy      INTEGER NOT NULL REFERENCES policy (id),
    hour_ms     INTEGER NOT NULL,
    in_packets  INTEGER NOT NULL,
    in_bytes    INTEGER NOT NULL,
    out_packets INTEGER NOT NULL,
    out_bytes   INTEGER NOT NULL,
    PRIMARY KEY (unit, hour_ms, policy)
) STRICT, WITHOUT ROWID;

CREATE TABLE dropped_hour (
    unit        INTEGER NOT NULL REFERENCES unit (id),
    reason      TEXT    NOT NULL,
    hour_ms     INTEGER NOT NULL,
    in_packets  INTEGER NOT NULL,
    in_bytes    INTEGER NOT NULL,
    out_packets INTEGER NOT NULL,
    out_bytes   INTEGER NOT NULL,
    PRIMARY KEY (unit, hour_ms, reason)
) STRICT, WITHOUT ROWID;

CREATE TABLE quota (
    unit     INTEGER NOT NULL REFERENCES unit (id),
    name     TEXT    NOT NULL,
    start_ms INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    limit_bytes INTEGER NOT NULL,
    PRIMARY KEY (unit, name)
) STRICT, WITHOUT ROWID;
