"""Attempts that did not end normally: lost in an outage of the store, or ended and never concluded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection

from holdfast.engine.job_attempt import Attempt
from holdfast.errors import StaleAttempt, UnknownJob
from holdfast.group_commit import Journal
from holdfast.machines import JobEvent
from holdfast.store import Append

LOST_MAX = 1000  # attempts kept whose code has not ended yet

_log = logging.getLogger("holdfast.worker")


class LostAttempts:
    """Requeues or fails the jobs of such attempts. Runs on the worker's loop.

    Args:
        drop: called with an attempt that cannot even be failed. Its lease was given up and will expire.
    """

    def __init__(self, drop: Callable[[Attempt], None]) -> None:
        self.lost: list[Attempt] = []  # attempts whose lease was lost or whose last write was never confirmed
        self._stranded: set[Attempt] = set()  # attempts that were stranded at the last check
        self._drop = drop

    @property
    def unwinding(self) -> bool:
        """Return whether calls of lost attempts must still end before their jobs can be requeued."""
        return any(attempt.under_way for attempt in self.lost)

    async def give_back(self, journal: Journal) -> None:
        """Requeue jobs that were lost in an outage of the store, unless another worker has them.

        An outage is not a crash. Whether the last write before the outage counts is unknown. The next attempt continues
        from what the store has.
        """
        if not self.lost:
            return
        for attempt in [attempt for attempt in self.lost if attempt.unwound()]:
            back = Append(attempt.job, attempt.attempt, ((JobEvent.REQUEUED.value, {"reason": "store_outage"}),))
            with contextlib.suppress(StaleAttempt, UnknownJob):  # another worker has taken it, or it has ended
                await journal.write(back)
            self.lost.remove(attempt)
        self.lost = [attempt for attempt in self.lost if not attempt.unwound()][-LOST_MAX:]

    def conclude_stranded(self, unsettled: Collection[Attempt]) -> None:
        """Fail attempts that ended without being concluded, if two checks in a row found them so (L11)."""
        stranded = {attempt for attempt in unsettled if attempt.is_stranded}
        for attempt in stranded & self._stranded:
            _log.error("attempt %d at job %s has ended and was not concluded: it fails", attempt.attempt, attempt.job)
            try:
                attempt.conclude_stranded()
            except Exception:  # after any error the lease must not be kept: it expires
                _log.exception("job %s is left until its lease expires", attempt.job)
                attempt.lease.give_up()
                self._drop(attempt)
        self._stranded = stranded
