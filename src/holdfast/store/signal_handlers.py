"""Signal handlers: whether one may run in the calling thread, in the middle of a commit.

Python runs signal handlers between two instructions of the main thread. A handler of the program may do anything: write
to the same store, close it, or never return. Ctrl-C only raises KeyboardInterrupt, which ends the commit.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable

# Without the wrapper around it, which looks up a name for each handler, to ask about all signals takes 1 µs and not 20.
_handler_of: Callable[[int], object] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
_HARMLESS = {signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler}
_SIGNALS = sorted(map(int, signal.valid_signals()))


def is_interruptible() -> bool:
    """Return whether Python runs signal handlers in the calling thread: it is the main thread."""
    return threading.get_ident() == threading.main_thread().ident


def may_run_handlers() -> bool:
    """Return whether a signal handler of the program may run in the calling thread."""
    if not is_interruptible():
        return False
    return not _HARMLESS.issuperset(map(_handler_of, _SIGNALS))
