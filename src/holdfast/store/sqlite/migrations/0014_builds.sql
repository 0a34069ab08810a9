-- The build of a worker's code.
ALTER TABLE workers ADD COLUMN build TEXT;
