-- Schedules. The events of a schedule are in `events`, in a stream of its own; `row` is their projection, as JSON.
CREATE TABLE schedules (
    id     TEXT NOT NULL PRIMARY KEY,
    plugin TEXT NOT NULL,
    due_at REAL,           -- when a worker has to look at it; NULL: it is paused or has ended
    row    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (due_at, id) WHERE due_at IS NOT NULL;

-- Runs of schedules that have ended, until a worker has told the schedule.
CREATE TABLE schedule_ends (
    place    INTEGER PRIMARY KEY AUTOINCREMENT,
    schedule TEXT NOT NULL,
    job      TEXT NOT NULL,
    status   TEXT NOT NULL,
    at       REAL NOT NULL
) STRICT;

-- The builds that have declared schedules, in the order of their first declaration.
CREATE TABLE schedule_builds (
    plugin TEXT    NOT NULL,
    build  TEXT    NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (plugin, build)
) STRICT, WITHOUT ROWID;
