-- A parent that waits for many children is woken by several results at once: when, if results have come.
ALTER TABLE {schema}.jobs ADD COLUMN wake_at double precision;

-- What is in an inbox, without a look at what was used.
CREATE INDEX signals_unused ON {schema}.signals (job, place) WHERE NOT used;
