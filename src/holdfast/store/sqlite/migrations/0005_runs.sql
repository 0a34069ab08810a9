-- The newest run of a job is part of its row: its course follows the stream, and is written with it. Each row that was
-- there before is made anew from its stream when this has been applied.
ALTER TABLE jobs ADD COLUMN facts TEXT;  -- trace id and attributes, if there are any
ALTER TABLE jobs ADD COLUMN course TEXT NOT NULL DEFAULT '{}';
ALTER TABLE jobs ADD COLUMN status TEXT NOT NULL DEFAULT 'queued'  -- as in `course`; for its index
    CHECK (status IN ('queued', 'running', 'cancel_requested', 'succeeded', 'failed', 'canceled', 'timeout'));
ALTER TABLE jobs ADD COLUMN exported INTEGER NOT NULL DEFAULT 0;

DROP INDEX jobs_state;
CREATE INDEX jobs_status ON jobs (status, id);

-- A process of an older release, which is still at work, knows nothing of the course: what it leaves behind is seen to be
-- out of date, and is made anew from the stream by whoever reads it.
CREATE TRIGGER jobs_outdated AFTER UPDATE OF state ON jobs
WHEN NEW.state <> OLD.state AND NEW.course = OLD.course AND NEW.status = OLD.status
BEGIN
    UPDATE jobs SET course = '', status = CASE NEW.state WHEN 'completed' THEN 'succeeded' WHEN 'failed' THEN 'failed'
        WHEN 'cancelled' THEN 'canceled' ELSE iif(NEW.started, 'running', 'queued') END WHERE id = NEW.id;
END;

-- Runs that have ended and were followed by another on the same job.
CREATE TABLE past_runs (
    job    TEXT    NOT NULL,
    run    INTEGER NOT NULL,
    status TEXT    NOT NULL,
    record TEXT    NOT NULL,
    PRIMARY KEY (job, run)
) STRICT, WITHOUT ROWID;

-- What a run has last reported of itself: no event, the latest wins.
CREATE TABLE progress (
    job  TEXT    NOT NULL,
    run  INTEGER NOT NULL,
    said TEXT    NOT NULL,
    at   REAL    NOT NULL,
    PRIMARY KEY (job, run)
) STRICT, WITHOUT ROWID;

-- What jobs are to be found by; values as JSON.
CREATE TABLE attributes (
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    job   TEXT NOT NULL,
    PRIMARY KEY (name, value, job)
) STRICT, WITHOUT ROWID;

CREATE INDEX attributes_job ON attributes (job);

-- What runs have produced: small things as JSON, larger ones as blobs, in pieces.
CREATE TABLE exports (
    job        TEXT    NOT NULL,
    run        INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    key        TEXT    NOT NULL,  -- name and content: a repeat is no second export
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('text', 'json', 'url', 'binary')),
    media_type TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    value      TEXT,
    blob       TEXT,
    at         REAL    NOT NULL,
    PRIMARY KEY (job, run, number),
    UNIQUE (job, run, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE blobs (
    job     TEXT    NOT NULL,
    blob    TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    content BLOB    NOT NULL,
    PRIMARY KEY (job, blob, number)
) STRICT;
