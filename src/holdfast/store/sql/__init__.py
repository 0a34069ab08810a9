"""What the SQLite and PostgreSQL stores share."""
