-- The stream is the truth. A row of `jobs` is its projection, written in the same transaction.
CREATE TABLE events (
    job      TEXT    NOT NULL,
    seq      INTEGER NOT NULL,
    type     TEXT    NOT NULL,
    payload  TEXT    NOT NULL,
    attempt  INTEGER,
    at       REAL    NOT NULL,
    schema   INTEGER NOT NULL,
    prev     BLOB    NOT NULL,
    hash     BLOB    NOT NULL,
    PRIMARY KEY (job, seq)
) STRICT;  -- with row ids: new events of many jobs go to the end together, and a commit touches few pages

CREATE TABLE jobs (
    id              TEXT    NOT NULL PRIMARY KEY,
    plugin          TEXT    NOT NULL,
    entry           TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    priority        INTEGER NOT NULL,
    created_at      REAL    NOT NULL,
    deadline        REAL,
    max_attempts    INTEGER NOT NULL,
    idempotency_key TEXT,
    fingerprint     TEXT    NOT NULL,
    parent          TEXT,
    parent_key      TEXT,
    version         INTEGER NOT NULL,
    head            TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    attempt         INTEGER NOT NULL,
    attempts        INTEGER NOT NULL,
    run             INTEGER NOT NULL,
    started         INTEGER NOT NULL,
    due_at          REAL    NOT NULL,
    wait            TEXT,
    cancel          TEXT,
    updated_at      REAL    NOT NULL,
    lease_worker    TEXT,
    lease_until     REAL,
    pause           INTEGER NOT NULL,
    claimable       INTEGER NOT NULL,  -- queued, and due when it was: what a claim looks at first
    ends_at         REAL               -- when the wait or the run ends by time alone, while nobody holds the job
) STRICT, WITHOUT ROWID;

CREATE INDEX jobs_claimable ON jobs (plugin, entry, queue, priority DESC, due_at, id) WHERE claimable = 1;
CREATE INDEX jobs_delayed ON jobs (due_at) WHERE claimable = 0 AND state = 'queued';
CREATE INDEX jobs_delayed_claims ON jobs (plugin, entry, queue, priority DESC, due_at, id)
    WHERE claimable = 0 AND state = 'queued';
CREATE INDEX jobs_leased ON jobs (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX jobs_ending ON jobs (ends_at) WHERE ends_at IS NOT NULL;
CREATE INDEX jobs_state ON jobs (state, id);
CREATE UNIQUE INDEX jobs_key ON jobs (plugin, entry, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE signals (
    job      TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    key      TEXT    NOT NULL,
    payload  TEXT    NOT NULL,
    at       REAL    NOT NULL,
    place    INTEGER NOT NULL,  -- order of arrival within the job
    used     INTEGER NOT NULL,
    PRIMARY KEY (job, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX signals_unused ON signals (job, key, place) WHERE used = 0;
