-- What has ended, by when it was created: where retention begins to look. Not by when it ended: that column changes with
-- every event, and an index on it would make every event of every job a change of the index.
CREATE INDEX jobs_finished ON {schema}.jobs (created_at, id) WHERE state IN ('completed', 'failed', 'cancelled');

-- Whole jobs are removed: their room is found again early.
ALTER TABLE {schema}.events SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);
