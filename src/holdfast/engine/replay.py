"""What a job has done already, by its stream, ready to be handed to its code again (SPEC E3, E8).

A call's identity (its *node*) is its name, the hash of its arguments and its number among equals. Order does not
count: concurrent branches may ask in any order, and a new call in the code shifts no other. An explicit key takes the
hash's place, and inside a plan the id of its node does.

- A recorded result is handed out once, to the call that asks for it; until then it is owed.
- A tool that was started and has no recorded end is *in doubt*; an operator's answer to it is here, too.
- A wait that was completed is handed out by its node.
- A call whose failure ended a run is made again when an operator has the job tried again. If it had ended well, and its
  plan refused what it gave, it is made under the next number among equals.
- A plan is here as it was recorded. What was recorded before it was for making it, and is not asked for again.
- A recorded value (the time, a random number) has no arguments: it is known by what its branch has asked for before.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import msgspec

from holdfast.authoring.context import EXTENSION, place
from holdfast.authoring.signature import fingerprint
from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.course import DEADLINE
from holdfast.machines.rules import is_failure

__all__ = ["Failure", "Replay", "Success"]


PATIENCE_PARTS = 10  # in which patience is had: while the whole process stands still, one passes, and not all
_NUMBER = re.compile(r"(?<!#)#\d+\Z")  # of a call among equals
OF_A_RUN = "run:"  # how the names of values begin that hold for one run and not for the next
_HISTORY = frozenset(kind.value for kind in HistoryEvent)
_trail: ContextVar[int] = ContextVar("holdfast_trail", default=0)  # what a branch has asked for so far, in one number


class Success(msgspec.Struct, frozen=True, gc=False):
    """A recorded result."""

    result: Any


class Failure(msgspec.Struct, frozen=True):
    """A recorded failure that was final."""

    kind: str
    reason: str


class Replay:
    """A job's past, handed to its code piece by piece."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._outcomes: dict[str, Success | Failure] = {}
        self._names: dict[str, str] = {}
        self._owed: defaultdict[str, dict[str, None]] = defaultdict(dict)  # name → its nodes, in order
        self._seen: defaultdict[str, int] = defaultdict(int)
        self.in_doubt: dict[str, int] = {}  # node of a tool → attempt that started it
        self.answers: dict[str, dict[str, Any]] = {}  # node of a tool → the operator's answer
        self.completed_waits: dict[str, dict[str, Any]] = {}
        self.values: dict[str, Any] = {}
        self.tries: defaultdict[str, int] = defaultdict(int)
        self.failed_tries: defaultdict[str, int] = defaultdict(int)
        self.postponed: defaultdict[str, int] = defaultdict(int)  # node → times it was asked to come back later
        self.held: defaultdict[str, int] = defaultdict(
            int
        )  # node → times the job was given back because a gate held it
        self.retry_at: dict[str, float] = {}  # node whose next try is not due before this time
        self.plan: dict[str, Any] | None = None
        self.failures = 0  # of the job's own code, in this run
        self._ended_by: list[str] = []  # nodes whose failure ended the last run
        for event in events:
            self._read(event)

    def node(self, name: str, arguments: dict[str, Any], key: str | None) -> str:
        """Give the identity of the next call of this name with these arguments."""
        at = place.get()
        key = at.node if at is not None else key
        # A number among equals stands behind a `#`: those of a key are doubled, so that "x#2" is not the second "x".
        label = f"{name}:{key.replace('#', '##') if key is not None else fingerprint(arguments)[:12]}"
        _trail.set(crc32(label.encode(), _trail.get()))
        return self._numbered(label)

    def value_node(self, kind: str) -> str:
        """Give the identity of the next value of this kind: its number among those that came to it the same way.

        Branches may come by in another order than before. What a branch has asked for until then is the same.
        """
        trail = _trail.get()
        return self._numbered(f"{kind}:{trail:08x}" if trail else f"{kind}:value")

    def _numbered(self, label: str) -> str:
        self._seen[label] += 1
        return label if self._seen[label] == 1 else f"{label}#{self._seen[label]}"

    def take(self, node: str) -> Success | Failure | None:
        """Hand out a recorded outcome, once."""
        outcome = self._outcomes.pop(node, None)
        if outcome is not None:
            del self._owed[self._names[node]][node]
        return outcome

    @property
    def owed(self) -> bool:
        """Whether there are recorded outcomes that nobody has asked for yet."""
        return bool(self._outcomes)

    def owed_of(self, name: str) -> list[str]:
        """List the nodes of this name with such an outcome; every new call asks, so it looks at no others."""
        return list(self._owed[name])

    def unasked(self) -> list[str]:
        """List every node with such an outcome."""
        return list(self._outcomes)

    def _read(self, event: Event) -> None:
        if event.type in _HISTORY:
            self._read_call(event, event.payload, event.payload.get("node") or "")
        elif event.type == JobEvent.WAIT_COMPLETED:
            self._complete(event.payload)
        elif event.type == JobEvent.REQUEUED:
            retried = event.payload.get("reason") == "retry"
            self.failures = 0 if event.payload.get("actor") else self.failures + retried
            if event.payload.get("gate"):
                self.held[event.payload.get("node") or ""] += 1
            self._forgive()
        elif event.type == JobEvent.FAILED:
            self._ended_by = event.payload.get("nodes") or self._failed_of_plan()
            self.values = {name: value for name, value in self.values.items() if not name.startswith(OF_A_RUN)}

    def _failed_of_plan(self) -> list[str]:
        """List what of a plan had failed when something else ended its run, a deadline perhaps: no code caught it."""
        if self.plan is None:
            return []
        failed = [node for node, outcome in self._outcomes.items() if isinstance(outcome, Failure)]
        decided = {name.removeprefix(EXTENSION): why for name, why in self.values.items() if name.startswith(EXTENSION)}
        refused = {name for name, why in decided.items() if why is not None}
        calls = {_NUMBER.sub("", node) for node in self._outcomes}
        return failed + [node for node in calls if node.partition(":")[2] in refused]

    def _forgive(self) -> None:
        """An operator has the job tried again: what it failed of is called again, and has all its retries (R4)."""
        for node in self._ended_by:
            if self._refused(node):
                continue
            self.take(node)
            self.completed_waits.pop(node, None)
            self.failed_tries.pop(node, None)
            self.retry_at.pop(node, None)
            for wait in ("ended", "until"):
                self.values.pop(f"{node}:{wait}", None)
        self._ended_by = []

    def _refused(self, node: str) -> bool:
        """A node of a plan gave what its plan did not take: a committed call stands (E1), so another is made (R4)."""
        newest = f"{node}#{self._seen[node] + 1}" if self._seen[node] else node
        if not isinstance(self._outcomes.get(newest), Success):
            return False
        self.take(newest)
        self._seen[node] += 1
        self.values.pop(f"{EXTENSION}{node.partition(':')[2]}", None)
        return True

    def _read_call(self, event: Event, payload: dict[str, Any], node: str) -> None:
        match event.type:
            case HistoryEvent.NODE_STARTED:
                self.tries[node] += 1
            case HistoryEvent.TOOL_STARTED:
                self.tries[node] += 1
                self.in_doubt[node] = event.attempt or 0
                self.answers.pop(node, None)  # it was about an earlier try; this one has a doubt of its own
            case HistoryEvent.COMMAND_COMMITTED:
                self._keep(node, payload, Success(payload.get("result")))
            case HistoryEvent.TOOL_FINISHED:
                self.in_doubt.pop(node, None)
                self.answers.pop(node, None)
                if not is_failure(payload):
                    self._keep(node, payload, Success(payload.get("result")))
            case HistoryEvent.NODE_FINISHED if is_failure(payload):
                (self.postponed if payload.get("postponed") else self.failed_tries)[node] += 1
                self.retry_at[node] = payload.get("retry_at") or 0.0
                if payload.get("final"):
                    self._keep(node, payload, Failure(payload.get("kind") or "", payload.get("reason") or ""))
            case HistoryEvent.VALUE_RECORDED:
                self.values[node] = payload.get("value")
            case HistoryEvent.PLAN_GENERATED:
                self.plan = payload.get("plan")
                self._outcomes.clear()
                self._owed.clear()
            case _:
                pass

    def _keep(self, node: str, payload: dict[str, Any], outcome: Success | Failure) -> None:
        self._outcomes[node] = outcome
        name = self._names.setdefault(node, payload.get("name") or node.split(":", 1)[0])
        self._owed[name][node] = None

    def _complete(self, payload: dict[str, Any]) -> None:
        node = payload.get("node")
        if node is None or payload.get("outcome") == DEADLINE:
            return  # a pause has no place in the code; a wait that its run's deadline cut off has not ended
        if payload.get("outcome") == "resolved":
            self.answers[node] = payload.get("payload") or {}
        else:
            self.completed_waits[node] = payload
