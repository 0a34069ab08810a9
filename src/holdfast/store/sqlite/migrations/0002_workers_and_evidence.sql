-- What a call reported after its attempt had lost the job: shown to people, never applied by itself.
CREATE TABLE evidence (
    job     TEXT    NOT NULL,
    node    TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    result  TEXT    NOT NULL,
    error   TEXT,
    at      REAL    NOT NULL,
    PRIMARY KEY (job, node, attempt, number)
) STRICT, WITHOUT ROWID;

-- Who works here. What each runs is seen from the leases.
CREATE TABLE workers (
    name       TEXT NOT NULL PRIMARY KEY,
    card       TEXT NOT NULL,
    started_at REAL NOT NULL,
    seen_at    REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- The children of a job, to be cancelled with it.
CREATE INDEX jobs_children ON jobs (parent) WHERE parent IS NOT NULL;
