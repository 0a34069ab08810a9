-- Schedules. The events of a schedule are in `events`, in a stream of its own; `row` is their projection, as JSON.
CREATE TABLE {schema}.schedules (
    id text COLLATE "C" PRIMARY KEY,
    plugin text NOT NULL,
    due_at double precision,  -- when a worker has to look at it; NULL: it is paused or has ended
    row text NOT NULL
);
CREATE INDEX schedules_due ON {schema}.schedules (due_at, id) WHERE due_at IS NOT NULL;

-- Runs of schedules that have ended, until a worker has told the schedule.
CREATE TABLE {schema}.schedule_ends (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule text NOT NULL,
    job text NOT NULL,
    status text NOT NULL,
    at double precision NOT NULL
);

-- The builds that have declared schedules, in the order of their first declaration.
CREATE TABLE {schema}.schedule_builds (
    plugin text NOT NULL,
    build text NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (plugin, build)
);
