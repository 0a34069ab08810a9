-- What queues may do at once. A queue without limits and without groups has no row.
CREATE TABLE limits (
    queue      TEXT    NOT NULL PRIMARY KEY,
    settings   TEXT    NOT NULL,            -- as JSON
    grouped    INTEGER NOT NULL DEFAULT 0,  -- whether jobs of it have groups
    tokens     REAL    NOT NULL DEFAULT 0,  -- what its rate allowed
    tokens_at  REAL    NOT NULL DEFAULT 0,  -- at this time
    turn       TEXT    NOT NULL DEFAULT '', -- the group that was served last
    changed_at REAL,
    changed_by TEXT,
    opens_at   REAL                         -- when its rate allows the next one
) STRICT, WITHOUT ROWID;

ALTER TABLE jobs ADD COLUMN group_name TEXT NOT NULL DEFAULT '';  -- empty: in none

-- The indexes of claims are made anew, with the group: so a group is found by steps, and jobs without one cost what they
-- did. They keep their names, by which a process of an older release asks for them.
DROP INDEX jobs_claimable;
CREATE INDEX jobs_claimable ON jobs (plugin, entry, queue, group_name, priority DESC, due_at, id) WHERE claimable = 1;
DROP INDEX jobs_delayed_claims;
CREATE INDEX jobs_delayed_claims ON jobs (plugin, entry, queue, group_name, priority DESC, due_at, id)
    WHERE claimable = 0 AND state = 'queued';

-- What runs, to be counted.
CREATE INDEX jobs_running ON jobs (queue, group_name) WHERE state = 'running';
