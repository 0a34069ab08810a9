-- Jobs that only workers of one build may claim; an empty text means all workers.
ALTER TABLE jobs ADD COLUMN kept_for TEXT NOT NULL DEFAULT '';
DROP INDEX jobs_claimable;
CREATE INDEX jobs_claimable ON jobs (plugin, entry, queue, kept_for, group_name, priority DESC, due_at, id) WHERE claimable = 1;
DROP INDEX jobs_delayed_claims;
CREATE INDEX jobs_delayed_claims ON jobs (plugin, entry, queue, kept_for, group_name, priority DESC, due_at, id)
    WHERE claimable = 0 AND state = 'queued';
CREATE INDEX jobs_kept ON jobs (kept_for, id) WHERE kept_for <> '' AND status IN ('queued', 'running', 'cancel_requested');
