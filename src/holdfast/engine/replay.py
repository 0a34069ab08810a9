"""What a job has done already, by its stream, ready to be handed to its code again (SPEC E3, E8).

A call's identity (its *node*) is its name, the hash of its arguments and its number among equals. An explicit key takes
the place of the hash, and inside a plan the id of its node does.

- Outcomes (results, final failures, ends of waits and children, cut-offs) are kept in the order of the stream. Each is
  handed out once. Next to each are the numbers of the native work that the code had seen before it.
- A tool that was started and has no recorded end is *in doubt*. An operator's answer to it is here, too.
- A call whose failure ended a run is made again when an operator has the job tried again. If it had ended well, and its
  plan refused the result, it is made under the next number among equals.
- A plan is here as it was recorded. What was recorded before it was for making it, and is not asked for again.
- A recorded value (the time, a random number) has no arguments: it is known by the calls of its branch before it.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import msgspec

from holdfast.authoring.conductor import EXTENSION, place
from holdfast.authoring.signature import fingerprint
from holdfast.machines import Event, HistoryEvent, JobEvent
from holdfast.machines.rules import is_failure
from holdfast.machines.run_fields import DEADLINE

__all__ = ["CutOff", "Ended", "Failure", "Outcome", "Recorded", "Replay", "Success"]


ENDED = ":ended"  # how the name of a value ends that records how a wait ended while its job ran
CUT_OFF = "cut_off"  # the outcome of a wait, and the kind of a failure, that the code itself has cut off
_NUMBER = re.compile(r"(?<!#)#\d+\Z")  # of a call among equals
ENGINE_WAITS = ("budget:",)  # how the nodes of waits begin that the engine makes, and not the code
ENGINE_KEYS = ("holdfast:doubt:", "holdfast:retry:", "holdfast:budget", "holdfast:pause")  # and their keys
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


class Ended(msgspec.Struct, frozen=True):
    """How a wait ended: its outcome and its payload."""

    completed: dict[str, Any]


class CutOff(msgspec.Struct, frozen=True, gc=False):
    """The code itself stopped waiting for this call: by a timeout of its own, or because a sibling failed (E15)."""


Outcome = Success | Failure | Ended | CutOff


class Recorded:
    """One place in the order of the stream: native work that the code saw, then an outcome; the last may have none."""

    __slots__ = ("asked", "natives", "node", "outcome", "taken")

    def __init__(self, node: str, outcome: Outcome | None, natives: list[int], asked: int) -> None:
        self.node = node
        self.outcome = outcome
        self.natives = natives
        self.asked = asked  # how many calls the code had made by then, where that is not plain from the order
        self.taken = False


class Replay:
    """A job's past, handed to its code piece by piece."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.order: deque[Recorded] = deque()  # of the stream; what was taken is passed over
        self._recorded: dict[str, Recorded] = {}  # by node, what was not taken yet
        self._names: dict[str, str] = {}
        self._arguments: dict[str, Any] = {}  # of calls, as they were declared
        self._natives: list[int] = []  # that the code saw after the last outcome
        self._seen: defaultdict[str, int] = defaultdict(int)
        self._cut_tools: dict[str, int] = {}  # tools that the code has cut off → attempt that started them
        self.undeclared: set[str] = set()  # tools in doubt whose last try has an end: they are declared again
        self.in_doubt: dict[str, int] = {}  # node of a tool → attempt that started it
        self.answers: dict[str, dict[str, Any]] = {}  # node of a tool → the operator's answer
        self.completed_waits: dict[str, dict[str, Any]] = {}
        self.values: dict[str, Any] = {}
        self.waited_for: set[str] = set()  # keys of all waits: the job was suspended there, so its children are started
        self.tries: defaultdict[str, int] = defaultdict(int)
        self.failed_tries: defaultdict[str, int] = defaultdict(int)
        self.postponed: defaultdict[str, int] = defaultdict(int)  # node → times it was asked to come back later
        self.held: defaultdict[str, int] = defaultdict(
            int
        )  # node → times the job was given back because a gate held it
        self.retry_at: dict[str, float] = {}  # node whose next try is not due before this time
        self.traces: dict[str, str] = {}  # node of a call that failed for good → where, for people
        self.plan: dict[str, Any] | None = None
        self.failures = 0  # of the job's own code, in this run
        self._ended_by: list[str] = []  # nodes whose failure ended the last run
        for event in events:
            self._read(event)
        if self._natives:
            self.order.append(Recorded("", None, self._natives, 0))

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

    def recorded(self, node: str) -> Recorded | None:
        """Give the outcome of a call that was recorded and not taken yet, with its place in the order."""
        return self._recorded.get(node)

    def take(self, node: str) -> Outcome | None:
        """Hand out a recorded outcome, once."""
        item = self._recorded.pop(node, None)
        if item is None:
            return None
        item.taken = True
        return item.outcome

    def drop(self, node: str) -> None:
        """Pass over a cut-off that the code no longer makes. A tool may have acted by then: it is in doubt (E5)."""
        self.take(node)
        if node in self._cut_tools:
            self.in_doubt[node] = self._cut_tools.pop(node)
            self.undeclared.add(node)

    @property
    def unused(self) -> bool:
        """Whether there are recorded outcomes that were not taken."""
        return bool(self._recorded)

    def head(self) -> Recorded | None:
        """Give what comes next in the order of the stream."""
        order = self.order
        while order and order[0].taken:
            order.popleft()
        return order[0] if order else None

    def unasked(self, name: str | None = None) -> list[str]:
        """List the calls and children, of this name or all, whose outcome was recorded and not taken."""
        return [
            node
            for node, item in self._recorded.items()
            if not isinstance(item.outcome, CutOff) and node in self._names and name in {None, self._names[node]}
        ]

    def describe(self, node: str) -> str:
        """Give a recorded call as people read it: its name and arguments."""
        name = self._names.get(node) or node.partition(":")[0]
        return call_text(name, self._arguments.get(node), node)

    def _read(self, event: Event) -> None:
        natives = event.payload.get("natives")
        if natives:
            self._natives += natives
        if event.type in _HISTORY:
            self._read_call(event, event.payload, event.payload.get("node") or "")
        elif event.type == JobEvent.WAIT_COMPLETED:
            self._complete(event.payload)
        elif event.type == JobEvent.WAITING:
            places = [event.payload, *(event.payload.get("also") or ())]
            self.waited_for.update(place.get("correlation_key") or "" for place in places)
        elif event.type == JobEvent.REQUEUED:
            retried = event.payload.get("reason") == "retry"
            self.failures = 0 if event.payload.get("actor") else self.failures + retried
            if event.payload.get("gate"):
                self.held[event.payload.get("node") or ""] += 1
            self._forgive()
        elif event.type == JobEvent.FAILED:
            self._ended_by = event.payload.get("nodes") or self._failed_of_plan()
            self._natives = []  # another run sees others
            self.values = {name: value for name, value in self.values.items() if not name.startswith(OF_A_RUN)}

    def _failed_of_plan(self) -> list[str]:
        """List what of a plan had failed when something else ended its run, a deadline perhaps: no code caught it."""
        if self.plan is None:
            return []
        outcomes = {node: item.outcome for node, item in self._recorded.items()}
        failed = [node for node, outcome in outcomes.items() if isinstance(outcome, Failure)]
        decided = {name.removeprefix(EXTENSION): why for name, why in self.values.items() if name.startswith(EXTENSION)}
        refused = {name for name, why in decided.items() if why is not None}
        calls = {_NUMBER.sub("", node) for node in outcomes}
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
        item = self._recorded.get(newest)
        if item is None or not isinstance(item.outcome, Success):
            return False
        self.take(newest)
        self._seen[node] += 1
        self.values.pop(f"{EXTENSION}{node.partition(':')[2]}", None)
        return True

    def _read_call(self, event: Event, payload: dict[str, Any], node: str) -> None:
        match event.type:
            case HistoryEvent.NODE_STARTED:
                self.tries[node] += 1
                self._declared(node, payload)
            case HistoryEvent.TOOL_STARTED:
                self.tries[node] += 1
                self.in_doubt[node] = event.attempt or 0
                self.answers.pop(node, None)  # it was about an earlier try; this one has a doubt of its own
                self._declared(node, payload)
            case HistoryEvent.COMMAND_COMMITTED:
                self._keep(node, payload, Success(payload.get("result")))
            case HistoryEvent.TOOL_FINISHED:
                self.in_doubt.pop(node, None)
                self.answers.pop(node, None)
                if payload.get("kind") == CUT_OFF:
                    self._cut_tools[node] = event.attempt or 0
                if not is_failure(payload):
                    self._keep(node, payload, Success(payload.get("result")))
            case HistoryEvent.NODE_FINISHED if is_failure(payload):
                self._failed_try(node, payload)
            case HistoryEvent.VALUE_RECORDED:
                self._value(node, payload)
            case HistoryEvent.PLAN_GENERATED:
                self.plan = payload.get("plan")
                self.order.clear()
                self._recorded.clear()
                self._natives = []
            case _:
                pass

    def _declared(self, node: str, payload: dict[str, Any]) -> None:
        self._names.setdefault(node, payload.get("name") or node.split(":", 1)[0])
        self._arguments[node] = payload.get("args")

    def _failed_try(self, node: str, payload: dict[str, Any]) -> None:
        if payload.get("kind") == CUT_OFF:
            self._keep(node, payload, CutOff())
            return
        (self.postponed if payload.get("postponed") else self.failed_tries)[node] += 1
        self.retry_at[node] = payload.get("retry_at") or 0.0
        if payload.get("final"):
            if payload.get("traceback"):
                self.traces[node] = payload["traceback"]
            self._keep(node, payload, Failure(payload.get("kind") or "", payload.get("reason") or ""))

    def _value(self, node: str, payload: dict[str, Any]) -> None:
        value = payload.get("value")
        self.values[node] = value
        if node.endswith(ENDED) and isinstance(value, dict):
            self._end_wait(node.removesuffix(ENDED), payload, value)

    def _keep(self, node: str, payload: dict[str, Any], outcome: Outcome) -> None:
        if isinstance(outcome, (Success, Failure)):
            self._names.setdefault(node, payload.get("name") or node.split(":", 1)[0])
        item = Recorded(node, outcome, self._natives, payload.get("asked") or 0)
        self._natives = []
        self._recorded[node] = item
        self.order.append(item)

    def _end_wait(self, node: str, payload: dict[str, Any], ended: dict[str, Any]) -> None:
        if node.startswith(ENGINE_WAITS):
            return
        if node.startswith("job."):
            self._names.setdefault(node, node.split(":", 1)[0])
        cut_off = ended.get("outcome") == CUT_OFF
        self._keep(node, payload, CutOff() if cut_off else Ended(ended))

    def _complete(self, payload: dict[str, Any]) -> None:
        node = payload.get("node")
        if node is None or payload.get("outcome") == DEADLINE:
            return  # a pause has no place in the code; a wait that its run's deadline cut off has not ended
        if payload.get("outcome") == "resolved":
            self.answers[node] = payload.get("payload") or {}
            return
        self.completed_waits[node] = payload
        if not (payload.get("correlation_key") or "").startswith(ENGINE_KEYS):
            self._end_wait(node, payload, payload)


def call_text(name: str, arguments: Any, node: str) -> str:
    """Give a call as people read it."""
    if not isinstance(arguments, dict):
        return node
    listed = ", ".join(f"{key}={value!r:.80}" for key, value in arguments.items())
    return f"{name}({listed:.300})"
