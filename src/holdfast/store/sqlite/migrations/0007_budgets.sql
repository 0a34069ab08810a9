-- What is spent of the budgets that several processes share: the newest window of each, in millionths.
CREATE TABLE budgets (
    name         TEXT PRIMARY KEY,
    window_start REAL NOT NULL,
    spent        INTEGER NOT NULL
) WITHOUT ROWID;
