-- The build of a worker's code.
ALTER TABLE {schema}.workers ADD COLUMN build text;
