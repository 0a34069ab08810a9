-- The stream is the truth. A row of `jobs` is its projection, written in the same transaction.
CREATE TABLE {schema}.events (
    job      text   COLLATE "C" NOT NULL,
    seq      bigint NOT NULL,
    type     text   NOT NULL,
    payload  json   NOT NULL,  -- not jsonb: the text is kept as it was hashed
    attempt  bigint,
    at       double precision NOT NULL,
    schema   integer NOT NULL,
    prev     bytea  NOT NULL,
    hash     bytea  NOT NULL,
    PRIMARY KEY (job, seq)
);

CREATE TABLE {schema}.jobs (
    id              text    COLLATE "C" NOT NULL PRIMARY KEY,
    plugin          text    COLLATE "C" NOT NULL,
    entry           text    COLLATE "C" NOT NULL,
    queue           text    COLLATE "C" NOT NULL,
    priority        bigint  NOT NULL,
    created_at      double precision NOT NULL,
    deadline        double precision,
    max_attempts    bigint  NOT NULL,
    idempotency_key text    COLLATE "C",
    fingerprint     text    NOT NULL,
    parent          text    COLLATE "C",
    parent_key      text,
    version         bigint  NOT NULL,
    head            text    NOT NULL,
    state           text    NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'completed', 'failed', 'cancelled')),
    attempt         bigint  NOT NULL,
    attempts        bigint  NOT NULL,
    run             bigint  NOT NULL,
    started         boolean NOT NULL,
    due_at          double precision NOT NULL,
    wait            text,
    cancel          text,
    updated_at      double precision NOT NULL,
    lease_worker    text,
    lease_until     double precision,
    pause           boolean NOT NULL,
    claimable       boolean NOT NULL,  -- queued and due: what a claim looks at, and nothing else is in its index
    ends_at         double precision   -- when the wait or the run ends by time alone, while nobody holds the job
) WITH (
    -- Growing a stream and renewing a lease touch no indexed column: with room on the page they leave no trace in any
    -- index. What is left of them is cleaned up early.
    fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);

CREATE INDEX jobs_claimable ON {schema}.jobs (plugin, entry, queue, priority DESC, due_at, id) WHERE claimable;
CREATE INDEX jobs_delayed ON {schema}.jobs (due_at) WHERE state = 'queued' AND NOT claimable;
CREATE INDEX jobs_held ON {schema}.jobs (lease_worker) WHERE state = 'running';
CREATE INDEX jobs_ending ON {schema}.jobs (ends_at) WHERE ends_at IS NOT NULL;
CREATE INDEX jobs_state ON {schema}.jobs (state, id);
CREATE UNIQUE INDEX jobs_key ON {schema}.jobs (plugin, entry, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_children ON {schema}.jobs (parent) WHERE parent IS NOT NULL;

CREATE TABLE {schema}.signals (
    job      text   COLLATE "C" NOT NULL,
    id       text   COLLATE "C" NOT NULL,
    key      text   NOT NULL,
    payload  json   NOT NULL,
    at       double precision NOT NULL,
    place    bigint GENERATED ALWAYS AS IDENTITY,  -- order of arrival
    used     boolean NOT NULL,
    PRIMARY KEY (job, id)
);

-- What a call reported after its attempt had lost the job: shown to people, never applied by itself.
CREATE TABLE {schema}.evidence (
    job     text   COLLATE "C" NOT NULL,
    node    text   NOT NULL,
    attempt bigint NOT NULL,
    number  bigint NOT NULL,
    result  json   NOT NULL,
    error   text,
    at      double precision NOT NULL,
    PRIMARY KEY (job, node, attempt, number)
);

-- Who works here. What each runs is seen from the leases. A worker that holds its session lock is alive.
CREATE TABLE {schema}.workers (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    card       text NOT NULL,
    started_at double precision NOT NULL,
    seen_at    double precision NOT NULL,
    lock_key   bigint
);

-- The store's time: the server's alone. Epoch seconds, read when it is called and not when the transaction began.
CREATE FUNCTION {schema}.clock() RETURNS double precision LANGUAGE sql VOLATILE
    AS 'SELECT extract(epoch FROM clock_timestamp())::double precision';
