"""The recorded history of a job, ready to be replayed to its code (SPEC E3, E8).

A call's identity (its *node*) is its name, the hash of its arguments and its number among equal calls. An explicit key
replaces the hash. Inside a plan, the id of the plan's node replaces it.

A renamed function has its earlier names as aliases. A call that was recorded under one of them keeps that identity. A
new call of it is recorded under the first alias, outside plans. So code from before the rename finds the call. Its
event has the new name, too. So code that has dropped the alias finds the call by that.

- Outcomes are kept in the order of the stream: results, final failures, ends of waits and children, and cut-offs. Each
  is handed out once. With each is the native work that the code had seen before it.
- A tool that was started and has no recorded end is *in doubt*. The operator's answer to it is kept here, too.
- If an operator retries a job, the call whose failure ended the run is made again. If that call had succeeded, and its
  plan refused the result, the call is made under the next number among equal calls.
- The recorded plan is kept here. Outcomes recorded before it were for making it, and the code does not ask for them.
- A recorded value (the time, a random number) has no arguments. Its identity is the calls of its branch before it.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol
from zlib import crc32

import msgspec

from holdfast.authoring.conductor import place
from holdfast.authoring.redaction import MARK, redacted
from holdfast.authoring.secrets import is_kept
from holdfast.authoring.signature import fingerprint
from holdfast.machines import HistoryEvent, JobEvent
from holdfast.machines.keys import (
    BUDGET_KEY,
    CHANGED,
    DEPLOY,
    DEPLOY_KEY,
    DOUBT_KEY,
    ENDED,
    EXTENSION,
    GRANTED,
    OF_RUN,
    PAUSE_KEY,
    RETRY_KEY,
    SPENT,
)
from holdfast.machines.rules import is_failure
from holdfast.machines.run_projection import DEADLINE
from holdfast.store.result_blobs import ResultBlob, reference_in
from holdfast.store.stream_writer import FORK

CUT_OFF = "cut_off"  # outcome of a wait, and kind of a failure, that the code itself cut off
_NUMBER = re.compile(r"(?<!#)#\d+\Z")  # number of a call among equal calls
ENGINE_WAITS = (GRANTED,)  # node prefixes of waits that the engine makes, not the code
ENGINE_KEYS = (DEPLOY_KEY, DOUBT_KEY, RETRY_KEY, BUDGET_KEY, PAUSE_KEY)  # key prefixes of those waits
_OF_ENGINE = (CHANGED, EXTENSION, GRANTED, OF_RUN, SPENT)  # names of values that the code does not ask for by a call
_OF_CALL = re.compile(r":(?:until|ended|id)(?:\.\d+)?\Z")  # end of the name of a value that belongs to a call
_ID = re.compile(r"((?:job|start)\..*):id(?:\.\d+)?", re.DOTALL)  # the id of a child or of a run that was started
_OF_RUNS = ("job.", "start.")  # how the nodes of children and of starts begin
Seen = tuple[int, str]  # the number and the label of native work that was handed over
_NO_NATIVES: Sequence[Seen] = ()
_trail: ContextVar[int] = ContextVar("holdfast_trail", default=0)  # checksum of the calls that a branch has made so far


def begin_trail() -> None:
    """Start the checksum of a job's main branch. The context of the caller may have one of other calls."""
    if _trail.get():
        _trail.set(0)


class Success(msgspec.Struct, frozen=True, gc=False):
    """A recorded result."""

    result: Any


class Failure(msgspec.Struct, frozen=True):
    """A recorded final failure."""

    kind: str
    reason: str


class Ended(msgspec.Struct, frozen=True):
    """How a wait ended: its outcome and its payload."""

    completed: dict[str, Any]


class CutOff(msgspec.Struct, frozen=True, gc=False):
    """The code itself stopped waiting for this call: its own timeout expired, or a sibling failed (E15)."""


Outcome = Success | Failure | Ended | CutOff
_OF_CALLS = (Success, Failure)
_OF_CHILDREN = (Success, Failure, Ended)


class Past(Protocol):
    """An event of the history. Its payload is read once: it may be decoded for that."""

    @property
    def type(self) -> str:
        """Return its name."""
        ...

    @property
    def attempt(self) -> int | None:
        """Return the attempt that wrote it."""
        ...

    @property
    def payload(self) -> dict[str, Any]:
        """Return its data."""
        ...


class Recorded(msgspec.Struct, eq=False, gc=False):
    """One position in the order of the stream: native work that the code saw, then an outcome.

    The last position may have no outcome.
    """

    node: str
    outcome: Outcome | None
    natives: Sequence[Seen]
    calls_made: int  # number of calls the code had made by then, where the order does not show it
    taken: bool = False


class Replay:
    """A job's history, replayed to its code piece by piece."""

    def __init__(self, events: Iterable[Past]) -> None:
        self.order: deque[Recorded] = deque()  # the stream's order; taken items are skipped
        self._recorded: dict[str, Recorded] = {}  # by node, items not taken yet
        self._names: dict[str, str] = {}  # names of calls, where the node does not begin with it
        self._declared: dict[str, Past] = {}  # declarations of calls: their arguments are read for errors alone
        self._aliases: dict[str, str] = {}  # earlier names of functions that the code has called → their names
        self._renamed: dict[str, str] = {}  # names with an identity → those under which such calls were recorded
        self._started_runs: set[str] = set()  # nodes of children and starts
        self._begun_runs: dict[str, None] = {}  # those that have not ended, and that the code has not asked for
        self._natives = _NO_NATIVES  # native work that the code saw after the last outcome
        self._seen: defaultdict[str, int] = defaultdict(int)
        self._cut_tools: dict[str, int] = {}  # tool that the code has cut off → attempt that started it
        self.undeclared: set[str] = set()  # tools in doubt whose last try has an end: they are declared again
        self.in_doubt: dict[str, int] = {}  # node of a tool → attempt that started it
        self.builds: dict[int, str | None] = {}  # attempt → the build of its worker
        self.handed_to: set[str] = set()  # builds to which the job was given because the code did not fit
        self._left_unused: set[str] = set()  # calls whose outcome an operator has agreed not to use
        self.answers: dict[str, dict[str, Any]] = {}  # node of a tool → the operator's answer
        self.completed_waits: dict[str, dict[str, Any]] = {}
        self.values: dict[str, Any] = {}
        self._numbering = threading.Lock()  # threads of the code may make calls at the same time
        self._waited_at: set[str] = set()  # nodes of all waits
        self.waited_for: set[str] = set()  # keys of all waits: the job was suspended there, so its children are started
        self.tries: defaultdict[str, int] = defaultdict(int)
        self.failed_tries: defaultdict[str, int] = defaultdict(int)
        self.postponed: defaultdict[str, int] = defaultdict(int)  # node → times its gate's other side postponed it
        self.held: defaultdict[str, int] = defaultdict(int)  # node → times that its gate had the job requeued
        self.retry_at: dict[str, float] = {}  # node → earliest time of its next try
        self.traces: dict[str, str] = {}  # node of a call that failed finally → its traceback
        self.plan: dict[str, Any] | None = None
        self.is_fork = False  # whether it begins with results of another job, without the native work between them
        self.failures = 0  # failures of the job's own code in this run
        self._ended_by: list[str] = []  # nodes whose failure ended the last run
        self.large: list[tuple[Recorded, ResultBlob]] = []  # results that must be read before they are handed out
        for event in events:
            payload = event.payload
            if natives := payload.get("natives"):
                labels = payload.get("native_labels") or [""] * len(natives)  # histories of earlier releases have none
                self._natives = [*self._natives, *zip(natives, labels, strict=True)]
            read = self._readers.get(event.type)
            if read is not None:
                read(self, event, payload, payload.get("node") or "")
        if self._natives:
            self.order.append(Recorded("", None, self._natives, 0))

    def node(self, name: str, arguments: dict[str, Any], key: str | None, aliases: Sequence[str] = ()) -> str:
        """Return the identity of the next call with this name, or one of its earlier names, and these arguments."""
        at = place.get()
        key = at.node if at is not None else key
        # The number among equal calls follows a `#`. A `#` in a key is doubled, so "x#2" is not the second "x".
        identity = key.replace("#", "##") if key is not None else fingerprint(arguments)[:12]
        label = f"{name}:{identity}"
        with self._numbering:
            if aliases or self._renamed:
                label, node = self._of_renamed(name, identity, aliases, in_plan=at is not None)
            else:
                node = self._numbered(label)
        self._begun_runs.pop(node, None)
        _trail.set(crc32(label.encode(), _trail.get()))
        return node

    def _of_renamed(self, name: str, identity: str, aliases: Sequence[str], *, in_plan: bool) -> tuple[str, str]:
        """Return the label and the identity of a call that may be recorded under another name of its function."""
        self._aliases.update(dict.fromkeys(aliases, name))
        labels = [f"{each}:{identity}" for each in (*aliases, name)]
        labels += [self._renamed[label] for label in labels if label in self._renamed]
        number = max(self._seen[label] for label in labels) + 1
        self._seen.update(dict.fromkeys(labels, number))
        suffix = f"#{number}" if number > 1 else ""
        new = f"{name}:{identity}" if in_plan else labels[0]
        label = next((label for label in labels if self.has(f"{label}{suffix}")), new)
        return label, f"{label}{suffix}"

    def has(self, node: str) -> bool:
        """Return whether a call was started or has an outcome."""
        return node in self._declared or node in self._recorded or node in self._started_runs

    def value_node(self, kind: str) -> str:
        """Return the identity of the next value of this kind: its number among those with the same preceding calls.

        Branches may run in another order than before. The calls that a branch has made until then are the same.
        """
        trail = _trail.get()
        return self._numbered(f"{kind}:{trail:08x}" if trail else f"{kind}:value")

    def _numbered(self, label: str) -> str:
        number = self._seen[label] = self._seen[label] + 1
        return label if number == 1 else f"{label}#{number}"

    def recorded(self, node: str) -> Recorded | None:
        """Return the recorded outcome of a call that was not taken yet, with its position in the order."""
        return self._recorded.get(node)

    def take(self, node: str) -> Outcome | None:
        """Return a recorded outcome, once."""
        item = self._recorded.pop(node, None)
        if item is None:
            return None
        item.taken = True
        return item.outcome

    def drop(self, node: str) -> None:
        """Skip a cut-off that the code no longer makes. A tool may have acted by then, so it is in doubt (E5)."""
        self.take(node)
        if node in self._cut_tools:
            self.in_doubt[node] = self._cut_tools.pop(node)
            self.undeclared.add(node)

    @property
    def may_be_unasked(self) -> bool:
        """Return whether recorded calls may be left that the code has not made."""
        return bool(self._recorded or self.in_doubt or self._begun_runs)

    def head(self) -> Recorded | None:
        """Return the next position in the order of the stream."""
        order = self.order
        while order and order[0].taken:
            order.popleft()
        return order[0] if order else None

    @property
    def goes_further(self) -> bool:
        """Return whether the history has anything that the code has not asked for so far.

        That is an outcome, or the mere beginning of a call or a wait: a tool may have acted by then.
        """
        if self.head() is not None:
            return True
        values = {_OF_CALL.sub("", name) for name in self.values if not name.startswith(_OF_ENGINE)}
        return any(not self._asked(node) for node in {*self._declared, *self._waited_at, *values})

    def _asked(self, node: str) -> bool:
        number = _NUMBER.search(node)
        label = node if number is None else node[: number.start()]
        if not node or node.startswith(ENGINE_WAITS):
            return True
        return self._seen.get(label, 0) >= (1 if number is None else int(number.group()[1:]))

    def unasked(self, name: str | None = None) -> list[str]:
        """List the calls and children whose recorded outcome was not taken: all, or those of this name.

        A tool or a child that was started and has no outcome counts, too: it may have acted. Those of a name leave out
        the calls that an operator has agreed not to use.
        """
        ended = [
            node
            for node, item in self._recorded.items()
            if isinstance(item.outcome, _OF_CHILDREN if node.startswith(_OF_RUNS) else _OF_CALLS)
        ]
        begun = [node for node in self.in_doubt if node not in self._recorded and not self._asked(node)]
        begun += self._begun_runs
        return [
            node
            for node in (*ended, *begun)
            if name is None or (name in self._names_of(node) and node not in self._left_unused)
        ]

    def forgotten(self) -> list[str]:
        """List the tools that were begun, whose end is unknown, and that the code has not asked for again."""
        begun = (node for node in self.in_doubt if node not in self._recorded and not self._asked(node))
        return [node for node in begun if node not in self._left_unused]

    def unused_signals(self) -> list[str]:
        """List the waits that a signal has ended and that the code has not asked for: it does not get the signal."""
        return [
            node
            for node, item in self._recorded.items()
            if node.startswith("wait:")
            and isinstance(item.outcome, Ended)
            and item.outcome.completed.get("outcome") == "signal"
        ]

    def _names_of(self, node: str) -> set[str]:
        """Return the names of a recorded call: that of its identity, that of its function, and what they are now."""
        names = {self._name(node), _prefix(node)}
        return names | {self._aliases[name] for name in names if name in self._aliases}

    def unknown(self, node: str, knows: Callable[[str], bool]) -> list[str]:
        """List the tools and children with the identity of a call, under names that the code does not have.

        Such a function was perhaps renamed. It has acted, so the call may be made only if someone agrees.
        """
        identity = node.partition(":")[2]
        return [
            other
            for other in self.unasked()
            if other.partition(":")[2] == identity
            and other != node
            and other not in self._left_unused
            and (other.startswith(_OF_RUNS) or self._is_tool(other))
            and not any(map(knows, self._names_of(other)))
        ]

    def _is_tool(self, node: str) -> bool:
        declared = self._declared.get(node)
        return declared is not None and declared.type == HistoryEvent.TOOL_STARTED

    def names(self) -> set[str]:
        """Return the names of the functions whose calls were recorded, as they were then."""
        return {self._name(node) for node in (*self._declared, *self._started_runs)}

    def describe(self, node: str) -> str:
        """Return a recorded call as people read it: its name and arguments."""
        declared = self._declared.get(node)
        return call_text(self._name(node), declared.payload.get("args") if declared is not None else None, node)

    def build_of(self, nodes: Sequence[str]) -> str | None:
        """Return the build that recorded the first of these calls; None if it is not known."""
        attempts = [event.attempt for node in nodes if (event := self._declared.get(node)) is not None]
        known = [self.builds.get(attempt or 0) for attempt in attempts] + list(
            reversed(list(self.builds.values())[:-1])
        )
        return next((build for build in known if build is not None), None)

    # Events

    def _running(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del node
        self.builds[event.attempt or 0] = payload.get("build")

    def _waiting(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event, node
        places = [payload, *(payload.get("also") or ())]
        self.waited_for.update(place.get("correlation_key") or "" for place in places)
        keyed = ((place.get("correlation_key") or "", place.get("node") or "") for place in places)
        self._waited_at.update(node for key, node in keyed if not key.startswith(DEPLOY_KEY))

    def _requeued(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event
        retried = payload.get("reason") == "retry"
        if payload.get("reason") == DEPLOY:
            self.handed_to.add(str(payload.get("build")))
        self.is_fork = self.is_fork or payload.get("reason") == FORK
        self.failures = 0 if payload.get("actor") else self.failures + retried
        if payload.get("gate"):
            self.held[node] += 1
        self._forgive()

    def _failed(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event, node
        self._ended_by = payload.get("nodes") or self._failed_of_plan()
        self._natives = _NO_NATIVES  # another run sees other native work
        self._begun_runs.clear()  # they were cancelled, and another run has its own
        self.values = {name: value for name, value in self.values.items() if not name.startswith(OF_RUN)}

    def _failed_of_plan(self) -> list[str]:
        """List the failed calls of a plan whose run something else ended, such as a deadline. No code caught them."""
        if self.plan is None:
            return []
        outcomes = {node: item.outcome for node, item in self._recorded.items()}
        failed = [node for node, outcome in outcomes.items() if isinstance(outcome, Failure)]
        decided = {name.removeprefix(EXTENSION): why for name, why in self.values.items() if name.startswith(EXTENSION)}
        refused = {name for name, why in decided.items() if why is not None}
        calls = {_NUMBER.sub("", node) for node in outcomes}
        return failed + [node for node in calls if node.partition(":")[2] in refused]

    def _forgive(self) -> None:
        """Forget the failures that ended the run: an operator retries the job, with all retries of these calls (R4)."""
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
        """Return whether a plan refused the result of its node.

        A committed call stays (E1), so another call is made under the next number (R4).
        """
        newest = f"{node}#{self._seen[node] + 1}" if self._seen[node] else node
        item = self._recorded.get(newest)
        if item is None or not isinstance(item.outcome, Success):
            return False
        self.take(newest)
        self._seen[node] += 1
        self.values.pop(f"{EXTENSION}{node.partition(':')[2]}", None)
        return True

    # Calls

    def _started(self, event: Past, payload: dict[str, Any], node: str) -> None:
        self.tries[node] += 1
        self._named(node, payload)
        self._declared[node] = event

    def _named(self, node: str, payload: dict[str, Any]) -> None:
        name = payload.get("name")
        if not name or _prefix(node) == name:
            return
        self._names.setdefault(node, name)
        if not node.startswith(f"{name}:"):  # it is an alias of the function
            label = _NUMBER.sub("", node)
            self._renamed[f"{name}:{label.partition(':')[2]}"] = label

    def _name(self, node: str) -> str:
        return self._names.get(node) or _prefix(node)

    def _tool_started(self, event: Past, payload: dict[str, Any], node: str) -> None:
        self._started(event, payload, node)
        self.in_doubt[node] = event.attempt or 0
        self.answers.pop(node, None)  # the answer was about an earlier try; this one has its own doubt

    def _committed(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event
        self._keep_result(node, payload)

    def _tool_finished(self, event: Past, payload: dict[str, Any], node: str) -> None:
        self.in_doubt.pop(node, None)
        self.answers.pop(node, None)
        if payload.get("kind") == CUT_OFF:
            self._cut_tools[node] = event.attempt or 0
        if not is_failure(payload):
            self._keep_result(node, payload)

    def _node_finished(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event
        if is_failure(payload):
            self._failed_try(node, payload)

    def _plan_generated(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event, node
        self.plan = payload.get("plan")
        self.order.clear()
        self._recorded.clear()
        self._declared.clear()
        self._started_runs.clear()
        self._begun_runs.clear()
        self._waited_at.clear()
        self.large.clear()
        self._natives = _NO_NATIVES

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

    def _value(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event
        value = payload.get("value")
        self.values[node] = value
        if (started := _ID.fullmatch(node)) is not None:
            self._started_runs.add(started[1])
            self._begun_runs[started[1]] = None
            self._named(started[1], payload)
        if node.endswith(ENDED) and isinstance(value, dict):
            self._end_wait(node.removesuffix(ENDED), payload, value)

    def _keep_result(self, node: str, payload: dict[str, Any]) -> None:
        self._keep(node, payload, Success(payload.get("result")))
        self.tries.pop(node, None)  # it is never called again
        large = reference_in(payload)
        if large is not None:
            self.large.append((self._recorded[node], large))

    def _keep(self, node: str, payload: dict[str, Any], outcome: Outcome) -> None:
        if isinstance(outcome, (Success, Failure)):
            self._named(node, payload)
        earlier = self._recorded.get(node)
        if earlier is not None:  # such as a cut-off: a retry of the job has made the call again, and only that counts
            earlier.node, earlier.outcome = "", None
        item = Recorded(node, outcome, self._natives, payload.get("asked") or 0)
        self._natives = _NO_NATIVES
        self._recorded[node] = item
        self.order.append(item)

    def _end_wait(self, node: str, payload: dict[str, Any], ended: dict[str, Any]) -> None:
        if node.startswith(ENGINE_WAITS):
            return
        cut_off = ended.get("outcome") == CUT_OFF
        self._begun_runs.pop(node, None)
        self._keep(node, payload, CutOff() if cut_off else Ended(ended))

    def _complete(self, event: Past, payload: dict[str, Any], node: str) -> None:
        del event
        if payload.get("node") is None or payload.get("outcome") == DEADLINE:
            return  # a pause has no node; a wait that its run's deadline cut off has not ended
        if (payload.get("correlation_key") or "").startswith(DEPLOY_KEY):
            answer = payload.get("payload") or {}
            self._left_unused.update(answer.get("nodes") or () if answer.get("answer") == "accept" else ())
            return
        if payload.get("outcome") == "resolved":
            self.answers[node] = payload.get("payload") or {}
            return
        self.completed_waits[node] = payload
        if not (payload.get("correlation_key") or "").startswith(ENGINE_KEYS):
            self._end_wait(node, payload, payload)

    # On the class: each reads the events of one type.
    _readers: ClassVar[Mapping[str, Callable[..., None]]] = {
        HistoryEvent.NODE_STARTED.value: _started,
        HistoryEvent.TOOL_STARTED.value: _tool_started,
        HistoryEvent.COMMAND_COMMITTED.value: _committed,
        HistoryEvent.TOOL_FINISHED.value: _tool_finished,
        HistoryEvent.NODE_FINISHED.value: _node_finished,
        HistoryEvent.VALUE_RECORDED.value: _value,
        HistoryEvent.PLAN_GENERATED.value: _plan_generated,
        JobEvent.RUNNING.value: _running,
        JobEvent.WAITING.value: _waiting,
        JobEvent.WAIT_COMPLETED.value: _complete,
        JobEvent.REQUEUED.value: _requeued,
        JobEvent.FAILED.value: _failed,
    }


def _prefix(node: str) -> str:
    """Return the name in an identity."""
    return node.partition(":")[0]


def call_text(name: str, arguments: Any, node: str) -> str:
    """Return a call as people read it."""
    if not isinstance(arguments, dict):
        return node
    listed = ", ".join(f"{key}={_shown(value)!r:.80}" for key, value in arguments.items())
    return redacted(f"{name}({listed:.300})")


def _shown(value: Any) -> Any:
    """Return an argument for people, without its secrets."""
    if is_kept(value):
        return MARK
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
