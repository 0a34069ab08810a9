-- Who did what to which run or queue. Rows are only added.
CREATE TABLE {schema}.audit (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    actor text NOT NULL,
    said text,
    verb text NOT NULL,
    subject text NOT NULL,
    detail json NOT NULL
);
