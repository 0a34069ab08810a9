"""What all tests share: how the garbage collector sees the process."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Leave thousands of collected tests out of every later garbage collection, which took 0.1 s each with them."""
    gc.collect()
    gc.freeze()
