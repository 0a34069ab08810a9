-- Stores that were moved here, written in the transaction that brought their jobs: whether a move has happened.
CREATE TABLE {schema}.moves (
    id       text   COLLATE "C" NOT NULL PRIMARY KEY,
    source   text   NOT NULL,
    at       double precision NOT NULL,
    jobs     bigint NOT NULL,
    events   bigint NOT NULL,
    signals  bigint NOT NULL,
    evidence bigint NOT NULL
);
