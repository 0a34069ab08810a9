-- From here on a row of `events` may have several events (holdfast/store/sql/event_rows.py). The columns stay the same.
-- The number alone matters: a release that knows only rows of one event refuses the schema.
COMMENT ON COLUMN {schema}.events.seq IS 'number of the last event of the row';
COMMENT ON COLUMN {schema}.events.type IS 'of one event its type, of several a letter for each';
COMMENT ON COLUMN {schema}.events.payload IS 'of one event an object, of several a list';
COMMENT ON COLUMN {schema}.events.hash IS '32 bytes for each event';
