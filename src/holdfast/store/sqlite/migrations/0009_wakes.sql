-- A parent that waits for many children is woken by several results at once: when, if results have come.
ALTER TABLE jobs ADD COLUMN wake_at REAL;

-- The order of arrival is counted on from the last signal of a job, without a look at all of them.
CREATE INDEX signals_places ON signals (job, place);
