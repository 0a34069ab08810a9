"""Migrations of a store to the newest schema, and moves of a store to another place."""
