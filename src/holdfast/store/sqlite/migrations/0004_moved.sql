-- Where this store goes or has gone, if it does: one row. While there is one, triggers refuse every write but to it.
CREATE TABLE moved (
    only     INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    id       TEXT    NOT NULL,  -- of the move
    target   TEXT    NOT NULL,
    at       REAL    NOT NULL,
    requeued INTEGER NOT NULL,  -- jobs that were running then
    complete INTEGER NOT NULL
) STRICT;
