"""What code says about how much of something it uses: a service that wants to be left alone, an amount that was spent.

`spend` counts against the budget that the run was started with, ``options(budget={"tokens": 100_000})``. What was spent
is recorded with the job: a replay does not spend it again. A run that has spent more than its budget is parked at its
next call, and goes on when somebody grants it more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.authoring.conductor import external
from holdfast.authoring.reports import reporter
from holdfast.durations import LONGEST_SECONDS
from holdfast.errors import HoldfastError, InvalidArguments, NotInsideJob

__all__ = ["RetryAfter", "amounts", "spend"]

UNITS_MAX = 16  # of one budget
UNIT_MAX = 64  # characters of a unit's name
MILLIONTHS = 1_000_000


class RetryAfter(HoldfastError):
    """Raise it in a step or tool when the other side asks to be left alone: it is tried again after so many seconds.

    The gate that the step or tool shares with others is closed for all of them meanwhile, and no retry is used up. A
    tool that raises it says that it has not acted.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        given: object = seconds  # what it is, nobody has checked
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= LONGEST_SECONDS:
            said = "it takes seconds, over 0 and a hundred years at most"
            raise InvalidArguments("RetryAfter", f"{said}, got {given!r:.60}")
        self.seconds = float(given)
        super().__init__(reason or f"asked to come back after {seconds:g} s")


def amounts(what: str, given: Mapping[Any, Any]) -> dict[str, int]:
    """Count amounts in millionths, or refuse them: ten times 0.1 is 1."""
    if not given or len(given) > UNITS_MAX:
        raise InvalidArguments(what, f"name from 1 to {UNITS_MAX} units, as in tokens=1200, usd=0.02")
    counted: dict[str, int] = {}
    for unit, amount in given.items():
        if not isinstance(unit, str) or not 0 < len(unit) <= UNIT_MAX or not unit.isidentifier():
            raise InvalidArguments(what, f"a unit is a name such as tokens or usd, got {unit!r:.80}")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 2**53 / MILLIONTHS:
            raise InvalidArguments(what, f"{unit} is a number, 0 or more and under 9e9, got {amount!r:.80}")
        counted[unit] = round(amount * MILLIONTHS)
    return counted


def spend(**given: float) -> None:
    """Say what was used, inside a job, a step or a tool: ``spend(tokens=1200, usd=0.02)``.

    It counts at once, however the step or tool ends, and if its process dies. It never raises because of the budget:
    what was used was used.

    Raises:
        NotInsideJob: nobody keeps the amount.
        InvalidArguments: an amount that is none.
    """
    running, call = reporter.get(), external.get()
    if running is None:
        raise NotInsideJob
    running.spent(call[0] if call is not None else None, amounts("spend", given))
