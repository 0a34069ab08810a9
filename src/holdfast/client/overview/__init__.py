"""Reads for people who operate jobs: the story of a run, what waits for a person, the family of a run, and series."""
