-- Who did what to which run or queue. Rows are only added.
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    actor TEXT NOT NULL,
    said TEXT,
    verb TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL
);
