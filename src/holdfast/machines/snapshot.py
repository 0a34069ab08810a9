"""The values that `fold` returns: what is known of a job at one point of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.machines.job_table import JobState
from holdfast.machines.keys import BUDGET_KEY, CHILD_KEY, DEPLOY, DOUBT_KEY, HUMAN, is_reserved


class WaitPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place in a job's code that waits: where it is, and the key of the signal that ends it.

    `wait_type` is set for a question to a person that is not the first place of its wait.
    """

    node: str | None = None
    correlation_key: str | None = None
    wait_type: str | None = None


class OpenWait(msgspec.Struct, frozen=True, dict=True):
    """The wait of a blocked job. Fields are None where the stream has bare names.

    `deadline` belongs to the place named first, which ends before all others. Where several branches of a job wait,
    `also` names the other places. A signal for any of them completes the wait.
    """

    node: str | None = None
    correlation_key: str | None = None
    wait_type: str | None = None
    deadline: float | None = None
    park: bool = False
    also: tuple[WaitPlace, ...] = ()

    def places(self) -> tuple[WaitPlace, ...]:
        """Return every place that waits; the one that time ends first comes first."""
        return (WaitPlace(self.node, self.correlation_key), *self.also)

    def place(self, key: str | None, node: str | None = None) -> WaitPlace | None:
        """Return the first place that a signal with this key ends, or None. With a `node`, only the place there."""
        if node is not None:
            same = (place for place in self.places() if (place.correlation_key, place.node) == (key, node))
            return next(same, None)
        if not self.also:
            return WaitPlace(self.node, self.correlation_key) if self.correlation_key == key else None
        return self.by_key.get(key)

    @property
    def by_key(self) -> Mapping[str | None, WaitPlace]:
        """Map keys to places; of equal keys the first. Cached: a wait for many children is asked once for each."""
        kept: dict[str, Any] = vars(self)  # pyright: ignore[reportAssignmentType] - of an instance
        if "by_key" not in kept:
            kept["by_key"] = {place.correlation_key: place for place in reversed(self.places())}
        places: Mapping[str | None, WaitPlace] = kept["by_key"]
        return places

    def asks_person(self, key: str) -> bool:
        """Return whether a person answers the wait for a key of the code, and not another program."""
        if is_reserved(key):
            return False
        if key == self.correlation_key:
            return self.wait_type == HUMAN
        place = self.place(key)
        return place is not None and place.wait_type == HUMAN

    @property
    def waits_for_person(self) -> bool:
        """Return whether a person has to end it: a human wait, a doubt, a misfit, a spent budget, or a pause."""
        if self.wait_type in {HUMAN, DEPLOY} or self.in_doubt:
            return True
        return any(place.wait_type == HUMAN or place.correlation_key == BUDGET_KEY for place in self.also)

    @property
    def in_doubt(self) -> bool:
        """Return whether a place waits for an operator's answer about a call in doubt."""
        kept: dict[str, Any] = vars(self)  # pyright: ignore[reportAssignmentType] - of an instance
        if "in_doubt" not in kept:
            keys = [self.correlation_key, *(place.correlation_key for place in self.also)]
            kept["in_doubt"] = any(key is not None and key.startswith(DOUBT_KEY) for key in keys)
        return bool(kept["in_doubt"])

    @property
    def child_keys(self) -> frozenset[str]:
        """Return the keys of the places that wait for children."""
        kept: dict[str, Any] = vars(self)  # pyright: ignore[reportAssignmentType] - of an instance
        if "child_keys" not in kept:
            kept["child_keys"] = frozenset(key for key in self.by_key if key is not None and key.startswith(CHILD_KEY))
        keys: frozenset[str] = kept["child_keys"]
        return keys


class OpenStep(msgspec.Struct, frozen=True):
    """A call that was begun and has no recorded outcome. A tool whose attempt is over is in doubt (E5)."""

    node: str
    tool: bool
    attempt: int
    since: float


class CancelRequest(msgspec.Struct, frozen=True):
    """The first request to cancel the current run; later ones change nothing."""

    reason: str | None
    at: float


class Snapshot(msgspec.Struct, frozen=True):
    """What the rules need to know of a job.

    Attributes:
        length: number of events read: the version of the stream.
        state: the table's state, never a qualifier; see `shown` for the state to show.
        attempt: the newest fencing token, 0 before the first claim.
        attempts: claims that count against the job in this run: each start of user code, less those that ended in a
            wait or a worker's shutdown. Crashes count (J14).
        run: number of the current run, from 1; an operator's retry of a failed job opens the next (R4).
        started: user code was started in this run.
        purpose: why an administrative claim was taken, while it is open (J8).
        wait: the open wait of a blocked job.
        not_before: when a requeued job becomes due.
        cancel: the first cancel request of this run.
        committed: nodes whose result is recorded.
        open_steps: nodes begun and not finished, by node.
    """

    length: int
    state: JobState
    attempt: int
    attempts: int
    run: int
    started: bool
    purpose: str | None
    wait: OpenWait | None
    not_before: float | None
    cancel: CancelRequest | None
    committed: frozenset[str]
    open_steps: dict[str, OpenStep]

    @property
    def blocked(self) -> bool:
        """Return whether only a wait's end or a cancel can move the job; it is never claimed or reclaimed (J7)."""
        return self.state is JobState.WAITING

    @property
    def parked(self) -> bool:
        """Return whether the open wait is shown as parked (J4)."""
        return self.wait is not None and self.wait.park

    def shown(self, now: float) -> JobState:
        """Return the state to show at `now`: parked and retrying where they apply (J4)."""
        if self.parked:
            return JobState.PARKED
        if self.state is JobState.QUEUED and self.not_before is not None and now < self.not_before:
            return JobState.RETRYING
        return self.state
