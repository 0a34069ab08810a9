-- From here on a row of `events` may have several events (holdfast/store/sql/event_rows.py). The columns stay the same.
-- The number alone matters: a release that knows only rows of one event refuses the file.
SELECT 1;
