"""A limit on how many shares are out at the same time.

A full gate is Busy, reported once. After that a waiting caller is Pending until a share is released (IoReady) or the
limit is raised (ConfigReload). Lowering the limit takes no shares away; the gate opens again below the new limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.machines.ready_table import Busy, WakeSource
from holdfast.ready.gate import OnViolation, log_violation
from holdfast.ready.leaf_gate import LeafGate, whole
from holdfast.ready.next_reading import Hold, HoldKey

_SOURCES = frozenset({WakeSource.IO_READY, WakeSource.CONFIG_RELOAD})


class ConcurrencyGate(LeafGate):
    """A gate that lets `limit` shares out at the same time.

    Args:
        limit: the number of shares.
        name: the name in counts and displays.
        now: the clock, in seconds.
        on_violation: called if the gate breaks its own contract.
    """

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
        """The number of shares."""
        return self._limit

    @property
    def taken(self) -> int:
        """The number of shares that are out."""
        return self._taken

    def set_limit(self, limit: int) -> None:
        """Change the number of shares."""
        whole("limit", limit)

        def change() -> bool:
            self._limit = limit
            return True

        self.change(WakeSource.CONFIG_RELOAD, change)

    def look(self) -> Hold | None:
        """Return the hold while all shares are out."""
        if self._taken < self._limit:
            return None
        reason = f"{self.name}: {self._taken} of {self._limit} are taken"
        return Hold(HoldKey(self.number, 0), reason, _SOURCES, self.clock_ns, Busy(reason))

    def take(self) -> object:
        """Take a share."""
        self._taken += 1
        return True

    def undo(self, receipt: object) -> bool:
        """Put a share back."""
        return self.release(receipt, None)

    def release(self, receipt: object, error: BaseException | None) -> bool:
        """Put a share back, however the work ended."""
        del receipt, error
        self._taken -= 1
        return self._taken < self._limit
