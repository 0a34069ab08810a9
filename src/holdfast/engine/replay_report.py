"""What a replay check has found: its verdict, its reasons, and the line of the code (SPEC E8)."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from holdfast.authoring.reports import Nothing, Product
from holdfast.errors import InvalidArguments, InvalidResult, SecretUnavailable

_LIBRARY = Path(asyncio.__file__).parents[1]
_NOT_USERS = (
    *(str(_LIBRARY / name) for name in ("asyncio", "concurrent", "contextlib.py", "functools.py", "threading.py")),
    str(Path(__file__).parents[1]),
    "<frozen",
)


class Verdict(StrEnum):
    """What a check of a run has found."""

    FITS = "fits"
    UNUSED = "unused"  # it fits, and some recorded results are not asked for; another call of their names would stop it
    OTHER_END = "other_end"  # the run has ended, and this code would end it otherwise
    STOPS = "stops"  # the engine would refuse the code, or the code fails where the history goes on
    UNDECODABLE = "undecodable"  # arguments or results do not have the types that the code declares
    KEY_MISSING = "key_missing"  # a secret cannot be revealed in this process
    GONE = "gone"  # no job has this name

    @property
    def is_failure(self) -> bool:
        """Whether a run with this verdict would not go on."""
        return self in {self.STOPS, self.UNDECODABLE, self.KEY_MISSING, self.GONE}


class Misfit(NamedTuple):
    """Why code does not fit: in one word, in words, and at which line of the code."""

    verdict: Verdict
    reason: str
    line: str | None = None


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay check.

    Attributes:
        fits: the engine would continue with this code, and an ended history would end the same.
        reasons: why it does not fit; empty if it does.
        answered: number of recorded calls, waits and children that the code made.
        unasked: recorded calls that it did not make.
        beyond: unrecorded calls that it made: where it would continue.
        verdict: what was found, in one word.
        line: the line of the code, as file:line, that makes the call at which the run stops, or would continue.
        marks: the changes that it asked for, and whether the run is on the new side of each.
        signals: waits that a signal has ended, and that it did not make before it rests at another wait or ends.
        names: the names under which the calls of the history were made, sorted.
    """

    fits: bool
    reasons: list[str]
    answered: int
    unasked: list[str]
    beyond: list[str]
    verdict: Verdict
    line: str | None = None
    marks: dict[str, bool] = {}
    signals: list[str] = []
    names: list[str] = []


class NoReports:
    """Takes what the code of a check reports, and keeps nothing."""

    def progress(self, fields: dict[str, Any]) -> None:
        """Report nothing."""

    def export(self, product: Product) -> Nothing:
        """Keep nothing."""
        del product
        return Nothing()

    def spent(self, call: str | None, amounts: dict[str, int]) -> None:
        """Count nothing: the history has what was spent."""


VERDICTS: dict[type[BaseException], Verdict] = {
    InvalidArguments: Verdict.UNDECODABLE,
    InvalidResult: Verdict.UNDECODABLE,
    SecretUnavailable: Verdict.KEY_MISSING,
}


def line_of_caller() -> str | None:
    """Return the line of the user's code that makes the call under way, as file:line."""
    return line_of_frame(sys._getframe(2))  # noqa: SLF001 - as `warnings` does


def line_of_frame(frame: FrameType | None) -> str | None:
    """Return the innermost line of the user's code in a stack, as file:line."""
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else None


def raised_at(error: BaseException | None) -> str | None:
    """Return the last line of the user's code in the traceback of an error."""
    line, trace = None, error.__traceback__ if error is not None else None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_NOT_USERS):
            line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line
