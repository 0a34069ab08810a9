-- Runs that continue one another (`continue_as`): the first of a chain names the newest.
ALTER TABLE jobs ADD COLUMN newest TEXT;
