"""The SQLite store: jobs in one file, for the processes of one host."""

from holdfast.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
