"""What all tests share: how the garbage collector and signals see the process."""

from __future__ import annotations

import gc
import signal
import threading


def pytest_configure() -> None:
    """Let processes that tests start be interrupted, also where a shell has started the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave thousands of collected tests out of every later garbage collection, which took 0.1 s each with them."""
    gc.collect()
    gc.freeze()
