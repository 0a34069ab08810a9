"""Numbered migrations, forward only: ``sqlite/0001_name.sql`` and so on, applied in order, each in one transaction."""
