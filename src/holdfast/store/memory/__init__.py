"""The memory store: the reference backend, for tests and simulations."""

from holdfast.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
