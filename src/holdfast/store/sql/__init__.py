"""Code that the SQLite and PostgreSQL stores share."""
