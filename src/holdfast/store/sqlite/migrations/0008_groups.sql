-- Whose runs are listed: those of one group, newest first, and those of one status. Jobs of no group cost nothing here.
-- The condition is one that only listings say: so no claim, which looks for groups too, is led through what has ended.
CREATE INDEX jobs_group ON jobs (group_name, id) WHERE length(group_name) > 0;
CREATE INDEX jobs_group_status ON jobs (group_name, status, id) WHERE length(group_name) > 0;
