"""Attempts that did not end as they should: lost to an outage of the store, or ended and never concluded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection

from holdfast.engine.attempt import Attempt
from holdfast.errors import StaleAttempt, UnknownJob
from holdfast.journal import Journal
from holdfast.machines import JobEvent
from holdfast.store import Append

__all__ = ["LostAttempts"]

LOST_MAX = 1000  # attempts remembered whose code has not ended yet

_log = logging.getLogger("holdfast.worker")


class LostAttempts:
    """Sees to it that the jobs of such attempts go on; on the worker's loop.

    Args:
        drop: is called with an attempt that cannot even be failed; its lease was given up and will expire.
    """

    def __init__(self, drop: Callable[[Attempt], None]) -> None:
        self.lost: list[Attempt] = []  # whose lease was lost, or whose last write was never confirmed
        self._stranded: set[Attempt] = set()  # that were so at the last look
        self._drop = drop

    @property
    def unwinding(self) -> bool:
        """Whether calls of lost attempts have still to end, before their jobs can be given back."""
        return any(attempt.under_way for attempt in self.lost)

    async def give_back(self, journal: Journal) -> None:
        """Return jobs that were lost to an outage of the store, unless another worker has them: an outage is no crash.

        Whether the last write before the outage counts is not known. The next attempt goes on from what the store has.
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
        """Fail attempts that have ended without being concluded, once two looks in a row have found them so (L11)."""
        stranded = {attempt for attempt in unsettled if attempt.is_stranded}
        for attempt in stranded & self._stranded:
            _log.error("attempt %d at job %s has ended and was not concluded: it fails", attempt.attempt, attempt.job)
            try:
                attempt.conclude_stranded()
            except Exception:  # whatever it is, the lease must not be kept: it expires
                _log.exception("job %s is left until its lease expires", attempt.job)
                attempt.lease.give_up()
                self._drop(attempt)
        self._stranded = stranded
