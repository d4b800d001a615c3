-- The whole schema as all migrations leave it: read this one. Never executed by the daemon; a test holds it
-- together with the numbered steps.
--
-- Times are milliseconds UTC since 1970. Counts are 64 bits wide: wire packets and layer-3 bytes.

-- One row, made with the store.
CREATE TABLE meta (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    node_id         INTEGER NOT NULL,   -- random 32 bits, never 0: the node id that `ngctl` shows
    created_ms      INTEGER NOT NULL,
    total_flows     INTEGER NOT NULL,   -- flow records ever made, expired ones included; also the newest flow.id
    longest_flow_ms INTEGER NOT NULL    -- no flow row has last_ms - first_ms above this
) STRICT;

-- One record of a unidirectional flow, cut by the idle and active timeouts.
CREATE TABLE flow (
    id         INTEGER PRIMARY KEY,
    version    INTEGER NOT NULL,        -- IP version on the wire, 4 or 6
    src        BLOB    NOT NULL,        -- 16 bytes in network order, IPv4 v4-mapped: blobs compare like addresses
    dst        BLOB    NOT NULL,
    proto      INTEGER NOT NULL,        -- upper-layer protocol
    sport      INTEGER NOT NULL,
    dport      INTEGER NOT NULL,        -- ICMP: type * 256 + code
    vlan       INTEGER NOT NULL,        -- 0: none
    vlan_inner INTEGER NOT NULL,
    fragment   INTEGER NOT NULL,        -- 1: later fragments, ports unknown
    layer      INTEGER NOT NULL,        -- 0: outermost packet, 1: innermost one of a tunnel; never added together
    first_ms   INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    packets    INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    estimated  INTEGER NOT NULL DEFAULT 0, -- 1: some packets were inferred from super-packets of unknown segment size
    tunnel     INTEGER NOT NULL DEFAULT 0, -- around an inner packet: 1 IP, 2 GRE, 3 VXLAN, 4 Geneve, 5 Teredo, 6 GTP-U
    tunnel_key INTEGER NOT NULL DEFAULT 0  -- GRE key, VNI or TEID
) STRICT;

-- Rows come in time order, so this index grows at its end only. It also answers `last_ms >= t`: such a row has
-- first_ms >= t - meta.longest_flow_ms.
CREATE INDEX flow_first ON flow (first_ms);

-- A unit is its name: it keeps its counts when its addresses or kind change, or when it is away from the
-- configuration for a while.
CREATE TABLE unit (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,                 -- host, user, cluster, net or group
    blocked INTEGER                     -- 1: by `ngctl block`, 0: not, by `ngctl allow`; NULL: as configured
) STRICT;

-- What a unit used in the hour that begins at hour_ms. Kept for ever.
CREATE TABLE unit_hour (
    unit        INTEGER NOT NULL REFERENCES unit (id),
    hour_ms     INTEGER NOT NULL,
    in_packets  INTEGER NOT NULL,
    in_bytes    INTEGER NOT NULL,
    out_packets INTEGER NOT NULL,
    out_bytes   INTEGER NOT NULL,
    PRIMARY KEY (unit, hour_ms)
) STRICT, WITHOUT ROWID;

-- A policy is its name.
CREATE TABLE policy (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- What of a unit's traffic a policy of its `acct_policy` held for. Kept for ever.
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

-- What verdicts have dropped of a unit's packets: in none of the tables above. Kept for ever.
CREATE TABLE dropped_hour (
    unit        INTEGER NOT NULL REFERENCES unit (id),
    reason      TEXT    NOT NULL,       -- blocked, quota, policy or default
    hour_ms     INTEGER NOT NULL,
    in_packets  INTEGER NOT NULL,
    in_bytes    INTEGER NOT NULL,
    out_packets INTEGER NOT NULL,
    out_bytes   INTEGER NOT NULL,
    PRIMARY KEY (unit, hour_ms, reason)
) STRICT, WITHOUT ROWID;

-- What was last told of each quota. Its use is not here: it is the sum of the unit's hours since the period began.
CREATE TABLE quota (
    unit     INTEGER NOT NULL REFERENCES unit (id),
    name     TEXT    NOT NULL,          -- such as `month sum`
    start_ms INTEGER NOT NULL,          -- of the period
    state    INTEGER NOT NULL,          -- 0 under, 1 warned, 2 over
    limit_bytes INTEGER NOT NULL,       -- as it was configured then
    PRIMARY KEY (unit, name)
) STRICT, WITHOUT ROWID;

-- Every term of the accounting identity, one row a data source: `kernel`, `nfqueue`. In wire packets, but for the terms
-- of the netfilter queues, where a super-packet is one.
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
    missed              INTEGER NOT NULL DEFAULT 0, -- never seen by a hook, by the interfaces' own counters; the sum over all events ever
    commits             INTEGER NOT NULL DEFAULT 0,
    last_commit_ms      INTEGER NOT NULL DEFAULT 0,
    estimated           INTEGER NOT NULL DEFAULT 0, -- inferred from super-packets of unknown segment size; in flows
    dropped             INTEGER NOT NULL DEFAULT 0, -- by a verdict; in no flow
    reference           INTEGER NOT NULL DEFAULT 0, -- counted by the netfilter rules in front of the queues
    queued              INTEGER NOT NULL DEFAULT 0, -- came out of the queues
    queue_lost          INTEGER NOT NULL DEFAULT 0, -- never did: the socket's buffer was full
    queue_full          INTEGER NOT NULL DEFAULT 0, -- never did: the queue was full
    bypassed            INTEGER NOT NULL DEFAULT 0, -- never were queued: nobody listened, or the full queue let them pass
    inner_packets       INTEGER NOT NULL DEFAULT 0, -- have an inner flow, beside the outer one
    inner_bytes         INTEGER NOT NULL DEFAULT 0,
    inner_overflow_packets INTEGER NOT NULL DEFAULT 0, -- have none because the flow table was full
    inner_overflow_bytes   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Last committed epoch of each set of flow tables. Both numbers are unsigned 64-bit, stored by their bits.
CREATE TABLE epoch (
    table_id INTEGER PRIMARY KEY,
    epoch    INTEGER NOT NULL
) STRICT;

-- What the administrator should know of; the newest 10,000.
CREATE TABLE event (
    id      INTEGER PRIMARY KEY,
    time_ms INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    missed  INTEGER NOT NULL            -- packets, by the interfaces' own counters
) STRICT;

-- The metered interfaces and how far their own counters were at the last commit.
CREATE TABLE metered (
    interface TEXT PRIMARY KEY,
    ifindex   INTEGER NOT NULL,
    packets   INTEGER NOT NULL,           -- received and sent, by the interface's own counters
    time_ms   INTEGER NOT NULL,
    boot      TEXT    NOT NULL             -- the kernel's boot id; counters of another boot say nothing
) STRICT, WITHOUT ROWID;

-- How far the counters of the netfilter rules were at the last commit. `reference` of the ledger is the way they went.
CREATE TABLE rule_counter (
    name    TEXT PRIMARY KEY,
    packets INTEGER NOT NULL,             -- a super-packet is one
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
