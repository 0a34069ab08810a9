"""At most so many at once.

Full is Busy: it is told once, and whoever waits is Pending until a share comes back (IoReady) or the limit is raised
(ConfigReload). A limit that is lowered takes nothing away from those inside; the gate opens again below the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.machines.ready import Busy, WakeSource
from holdfast.ready.gate import OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate, whole
from holdfast.ready.next_reading import Hold, HoldKey

__all__ = ["ConcurrencyGate"]

_SOURCES = frozenset({WakeSource.IO_READY, WakeSource.CONFIG_RELOAD})


class ConcurrencyGate(LeafGate):
    """Lets `limit` shares out at a time."""

    def __init__(
        self,
        limit: int,
        *,
        name: str = "concurrency",
        now: Callable[[], float] = time.monotonic,
        on_violation: OnViolation = log_violation,
    ) -> None:
        self._limit = whole("limit", limit)
        self._taken = 0
        super().__init__(name, now, on_violation)

    @property
    def limit(self) -> int:
        """How many shares there are."""
        return self._limit

    @property
    def taken(self) -> int:
        """How many are out."""
        return self._taken

    def set_limit(self, limit: int) -> None:
        """Change how many shares there are."""
        whole("limit", limit)

        def change() -> bool:
            self._limit = limit
            return True

        self.change(WakeSource.CONFIG_RELOAD, change)

    def look(self) -> Hold | None:
        """Closed while all shares are out."""
        if self._taken < self._limit:
            return None
        reason = f"{self.name}: {self._taken} of {self._limit} are taken"
        return Hold(HoldKey(self.number, 0), reason, _SOURCES, self.clock_ns, Busy(reason))

    def take(self) -> object:
        """Take a share."""
        self._taken += 1
        return True

    def undo(self, receipt: object) -> bool:
        """Put it back."""
        return self.release(receipt, None)

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Put it back, however its use ended."""
        del receipt, error
        self._taken -= 1
        return self._taken < self._limit
