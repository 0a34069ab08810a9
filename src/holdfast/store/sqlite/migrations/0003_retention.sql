-- What has ended, by when it was created: where retention begins to look.
CREATE INDEX jobs_finished ON jobs (created_at, id) WHERE state IN ('completed', 'failed', 'cancelled');
