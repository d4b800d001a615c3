-- Version 1 to 2: several data sources, estimated counts, what netfilter queues lose. What it means stands in latest.sql.

ALTER TABLE flow ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;

ALTER TABLE ledger ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN reference INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN queued INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN queue_lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN queue_full INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN bypassed INTEGER NOT NULL DEFAULT 0;

CREATE TABLE rule_counter (
    name    TEXT PRIMARY KEY,
    packets INTEGER NOT NULL,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
