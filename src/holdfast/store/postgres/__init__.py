"""The PostgreSQL store: jobs for workers on any number of hosts."""

from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
