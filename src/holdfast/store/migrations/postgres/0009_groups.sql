-- Whose runs are listed: those of one group, newest first, and those of one status. Jobs of no group cost nothing here.
CREATE INDEX jobs_group ON {schema}.jobs (group_name, id) WHERE group_name <> '';
CREATE INDEX jobs_group_status ON {schema}.jobs (group_name, status, id) WHERE group_name <> '';
