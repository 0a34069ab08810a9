-- What is spent of the budgets that several processes share: the newest window of each, in millionths.
CREATE TABLE {schema}.budgets (
    name         text PRIMARY KEY,
    window_start double precision NOT NULL,
    spent        bigint NOT NULL
) WITH (fillfactor = 70);
