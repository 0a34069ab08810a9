"""Claims jobs for a worker: behind the ends of others, in the transaction that has them, if its gate says so (SPEC S7).

A slot is free when its job's code has ended. The claim that fills it goes behind that end, in one transaction, whatever
the worker's loop is waiting for at that moment. So a place in a queue that runs so many at once is handed on while
nobody else can have it, and is never empty. How much is claimed is decided when the transaction begins: by then more
slots may be free, and one claim fills them all.

What can go wrong: the claim fails. Whoever waits for it is told, or else the worker, and it claims again when the store
is back.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from holdfast.engine.worker_gate import WorkGate
from holdfast.journal import Journal
from holdfast.machines.ready import ReadyState
from holdfast.store import Claim, Claims

__all__ = ["Claiming"]

CLAIM_MAX = 500  # jobs taken by one claim: a claim costs little more for many than for one


class Claiming:
    """The claims of one worker, on its loop.

    Args:
        gate: the worker's.
        journal: through which everything is written.
        make: gives the claim for so many jobs.
        took: is called with the answer, and how many were asked for.
        failed: is called when nobody knows what was claimed, and nobody waits for it.
    """

    def __init__(
        self,
        gate: WorkGate,
        journal: Journal,
        make: Callable[[int], Claim],
        took: Callable[[Claims, int], None],
        failed: Callable[[], None],
    ) -> None:
        self._gate = gate
        self._journal = journal
        self._make = make
        self._took = took
        self._failed = failed
        self._asked: asyncio.Future[Any] | None = None
        self._gathers = False  # whether what was asked for last is not under way yet
        self._awaited = False  # whether somebody waits for it
        self._limit = 0
        self._context = contextvars.copy_context()  # jobs begin in the worker's, and not in that of the job before them

    @property
    def under_way(self) -> bool:
        """Whether the answer to a claim is still to come."""
        return self._asked is not None

    def claim(self) -> asyncio.Future[Any]:
        """Claim with the next transaction; the future ends when the jobs have been taken."""
        future = self._ask()
        self._awaited = True
        return future

    def claim_if_ready(self) -> None:
        """Claim with the next transaction if the gate says so, and that is not to be done anyway."""
        if not self._gathers and self._gate.poll_ready().state is ReadyState.READY:
            self._ask()

    async def settle(self) -> None:
        """Wait until no answer is to come."""
        while self._asked is not None:
            await asyncio.wait([self._asked])

    def _ask(self) -> asyncio.Future[Any]:
        future = self._journal.trail(self._made)
        if future is not self._asked:
            self._asked, self._gathers, self._awaited = future, True, False
            future.add_done_callback(self._answered, context=self._context)
        return future

    def _made(self) -> Claim | None:
        self._gathers = False
        self._limit = min(self._gate.slots - self._gate.busy, CLAIM_MAX)
        if self._limit <= 0:
            return None
        self._gate.fresh = False  # what is heard of from here on may come too late for this claim
        return self._make(self._limit)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        awaited = self._awaited or future is not self._asked
        if future is self._asked:
            self._asked = None
        if future.cancelled():
            return
        if future.exception() is not None:
            self._gate.fresh = True
            if not awaited:
                self._failed()
        elif (answer := future.result()) is not None:
            self._took(answer, self._limit)
