-- Jobs that only workers of one build may claim; an empty text means all workers.
ALTER TABLE {schema}.jobs ADD COLUMN kept_for text NOT NULL DEFAULT '';
DROP INDEX {schema}.jobs_claimable;
CREATE INDEX jobs_claimable ON {schema}.jobs (plugin, entry, queue, kept_for, group_name, priority DESC, due_at, id) WHERE claimable;
CREATE INDEX jobs_kept ON {schema}.jobs (kept_for, id)
    WHERE kept_for <> '' AND status IN ('queued', 'running', 'cancel_requested');
