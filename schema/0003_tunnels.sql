-- Version 2 to 3: inner flows of tunnels. What it means stands in latest.sql.

ALTER TABLE flow ADD COLUMN tunnel INTEGER NOT NULL DEFAULT 0;
ALTER TABLE flow ADD COLUMN tunnel_key INTEGER NOT NULL DEFAULT 0;

ALTER TABLE ledger ADD COLUMN inner_packets INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN inner_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN inner_overflow_packets INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN inner_overflow_bytes INTEGER NOT NULL DEFAULT 0;
