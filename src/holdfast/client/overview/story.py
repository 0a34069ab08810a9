"""The story of a run: what was known of it after each event of its job.

A `Story` reads the events of a job one by one, and keeps a view: a JSON object with what the events have said so far.
For each event it returns the JSON merge patch (RFC 7396) that turns the view before the event into the view after it.
So a page that has the patches can show the run as it was at any event.

The view follows the readers that the engine uses: `Fold` for the state, the waits and the open calls, the projection of
runs for the status, and `NodeStates` for the nodes of a plan. It has no arguments, results or payloads. It has no empty
parts, so null in a patch always removes a part. A damaged stream has a story, too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any

import msgspec

from holdfast.client.overview.patched_view import PatchedView
from holdfast.errors import InvalidPlan, InvalidRunTransition
from holdfast.machines import TERMINAL_JOB_STATES, Event, Fold, HistoryEvent, JobEvent, JobState
from holdfast.machines.job_table import TARGETS
from holdfast.machines.keys import BUDGET_KEY, ENDED, UNTIL, parse_key
from holdfast.machines.rules import is_failure
from holdfast.machines.run_projection import RunFields, run_name
from holdfast.plans.model import Plan
from holdfast.plans.node_history import NodeHistory
from holdfast.plans.node_states import NodeStates
from holdfast.store.rows import course_after

STORY_PAGE = 500  # default number of events
STORY_MAX = 2000  # events of one read
ERROR_MAX = 300  # characters of an error in the view

_ID = re.compile(r"(.*):id(?:\.\d+)?", re.DOTALL)  # the name of the value that records the id of a child
_KINDS = {"job": "child", "start": "start", "signal": "signal", "wait": "wait", "sleep": "sleep"}
_HOW = {"lease_expired": "lost"}


class StoryEvent(msgspec.Struct, frozen=True):
    """One event of a run's story.

    Attributes:
        seq: The number of the event.
        at: When it was written, in UTC epoch seconds.
        type: What happened.
        run_id: The run that it belongs to. An operator's retry opens another run of the same job.
        changes: The JSON merge patch (RFC 7396) from the view before the event to the view after it.
    """

    seq: int
    at: float
    type: str
    run_id: str
    changes: dict[str, Any]


class Story:
    """Reads the events of one job. `view` is what is known after the last one."""

    def __init__(self) -> None:
        self.seq = 0
        self.head = ""
        self._view = PatchedView()
        self._job = Fold()
        self._course = RunFields()
        self._running: dict[str, None] = {}  # calls with a try under way
        self._waits: dict[str, None] = {}  # waits, children and other acts that have not ended
        self._lease: str | None = None
        self._since: dict[str, float] = {}  # node, or key without one → when the job began to wait there
        self._past = NodeHistory(())
        self._nodes: NodeStates | None = None

    @property
    def view(self) -> dict[str, Any]:
        """Return what is known after the last event."""
        return self._view.value

    @property
    def nodes(self) -> NodeStates | None:
        """Return the states of the nodes, if the job has a plan. Then this object keeps their results."""
        return self._nodes

    def push(self, event: Event) -> StoryEvent:
        """Read the next event."""
        illegal = self._job.push(event)
        self.seq, self.head = event.seq, event.hash
        moves = event.type in TARGETS
        if moves or event.type == HistoryEvent.CANCEL_REQUESTED:  # no other event changes a run
            self._follow_run(event)
        if self._lease is not None and (self._job.state is not JobState.RUNNING or event.type == JobEvent.RUNNING):
            self._end_attempt(event)
        self._read(event, event.payload, _text(event.payload.get("node")) or "")
        if moves:
            self._view.set(("state",), self._job.state.value if self._job.state is not None else None)
            self._show_waits(event)
            if self._job.state in TERMINAL_JOB_STATES:
                self._end_waits(event.at)
        if illegal is not None:
            self._nodes = None  # the states of nodes are known for legal streams only
        self._follow_plan(event)
        return StoryEvent(event.seq, event.at, event.type, run_name(event.job, self._job.run), self._view.patch())

    def _read(self, event: Event, payload: dict[str, Any], node: str) -> None:
        match event.type:
            case HistoryEvent.NODE_STARTED | HistoryEvent.TOOL_STARTED:
                self._call_started(event, payload, node)
            case HistoryEvent.COMMAND_COMMITTED | HistoryEvent.TOOL_FINISHED | HistoryEvent.NODE_FINISHED:
                self._call_ended(event, payload, node)
            case HistoryEvent.VALUE_RECORDED:
                self._value(event, payload, node)
            case JobEvent.RUNNING:
                self._begin_attempt(event, payload)
            case JobEvent.WAITING:
                self._waiting(event, payload)
            case JobEvent.WAIT_COMPLETED:
                self._wait_completed(event, payload, node)
            case _:
                pass

    # Run, attempt and waits

    def _follow_run(self, event: Event) -> None:
        job = self._job
        if job.state is None:
            return
        with contextlib.suppress(InvalidRunTransition):  # a damaged stream: `verify` names the event
            self._course = course_after(self._course, job, event)
        course, error = self._course, self._course.error
        failure = {"error": _cut(f"{error.code}: {error.message}")} if error is not None else {}
        stage = {"stage": course.stage} if course.stage is not None else {}
        run = {"id": run_name(event.job, job.run), "number": job.run, "status": course.status.value, **stage, **failure}
        self._view.set(("run",), run)
        self._view.set(("attempt",), job.attempt or None)
        cancel = job.cancel
        asked = None if cancel is None else _without_none({"reason": _cut(cancel.reason), "at": cancel.at})
        self._view.set(("cancel",), asked)

    def _begin_attempt(self, event: Event, payload: dict[str, Any]) -> None:
        worker = _text(payload.get("worker"))
        self._lease = str(self._job.attempt)
        self._view.set(("worker",), worker)
        held = {"worker": worker, "from": event.at, "build": _text(payload.get("build"))}
        self._view.set(("leases", self._lease), _without_none(held))

    def _end_attempt(self, event: Event) -> None:
        """End the lease of an attempt that is over, and the tries that it has left."""
        path = ("leases", self._lease or "")
        reason = _text(event.payload.get("reason")) if event.type == JobEvent.REQUEUED else None
        how = _HOW.get(reason or "", reason) or (self._job.state or JobState.QUEUED).value
        self._view.set(path, {**self._view.get(path), "to": event.at, "how": _cut(how)})
        self._view.set(("worker",), None)
        self._lease = None
        for node in list(self._running):
            left = "in_doubt" if self._view.get(("calls", node)).get("kind") == "tool" else "lost"
            self._end_try(node, event.at, left)
            self._view.set(("calls", node, "status"), left)

    def _end_waits(self, at: float) -> None:
        """End the waits of a job that has ended."""
        for node in list(self._waits):
            self._end_try(node, at, "cut_off")
            self._view.set(("calls", node, "status"), "cut_off")

    def _show_waits(self, event: Event) -> None:
        """Show what a job that does not run waits for."""
        waits: dict[str, dict[str, Any]] = {}
        wait = self._job.wait
        if wait is not None:
            for number, place in enumerate(wait.places()):
                key = place.correlation_key or ""
                shown: dict[str, Any] = {"kind": _kind_of_wait(key, wait.wait_type if not number else None), "key": key}
                shown |= {"node": place.node, "since": self._since.setdefault(place.node or key, event.at)}
                waits.setdefault(key, _without_none({**shown, "until": None if number else wait.deadline}))
        elif self._job.state is JobState.QUEUED and self._job.not_before is not None:
            gate, node = _text(event.payload.get("gate")), _text(event.payload.get("node"))
            kind = "gate" if gate is not None else "retry"
            shown = {"kind": kind, "key": gate, "node": node, "since": event.at, "until": self._job.not_before}
            waits[kind] = _without_none(shown)
        for key in [*self.view.get("waiting", {})]:
            if key not in waits:
                self._view.set(("waiting", key), None)
        for key, shown in waits.items():
            self._view.set(("waiting", key), shown)

    # Calls

    def _call_started(self, event: Event, payload: dict[str, Any], node: str) -> None:
        tool = event.type == HistoryEvent.TOOL_STARTED
        name = _text(payload.get("name")) or node.partition(":")[0]
        self._begin_try(event, node, name, "tool" if tool else "step", payload.get("try"))

    def _begin_try(self, event: Event, node: str, name: str, kind: str, number: object = None) -> None:
        tries = self._view.get(("calls", node, "tries"))
        if not isinstance(number, int) or number < 1 or str(number) in tries:
            number = len(tries) + 1
        waits = kind in _KINDS.values()  # then it outlives the attempt
        (self._waits if waits else self._running)[node] = None
        status = "waiting" if waits else "running"
        self._view.set(("calls", node, "name"), name)
        self._view.set(("calls", node, "kind"), kind)
        self._view.set(("calls", node, "status"), status)
        self._view.set(("calls", node, "retry_at"), None)
        holder = {} if waits else {"attempt": self._job.attempt, "worker": self.view.get("worker")}
        begun = _without_none({"from": event.at, "status": status, **holder})
        self._view.set(("calls", node, "tries", str(number)), begun)

    def _end_try(self, node: str, at: float, status: str, error: str | None = None) -> None:
        """End the newest try of a call."""
        self._running.pop(node, None)
        self._waits.pop(node, None)
        tries = self._view.get(("calls", node, "tries"))
        number = next(reversed(tries), "1")
        last = tries.get(number, {"from": at})
        ended = {"settled": at} if "to" in last else {"to": at}  # a try in doubt ended when its worker died
        failure = {"error": _cut(error)} if error else {}
        self._view.set(("calls", node, "tries", number), {**last, **ended, "status": status, **failure})

    def _call_ended(self, event: Event, payload: dict[str, Any], node: str) -> None:
        """Read the result or the failure of a call."""
        if node in self._job.open_steps or not node:
            return
        name = _text(payload.get("name")) or node.partition(":")[0]
        if "name" not in self._view.get(("calls", node)):
            kind = "tool" if event.type == HistoryEvent.TOOL_FINISHED else "step"
            self._begin_try(event, node, name, kind)
        if not is_failure(payload):
            if event.type != HistoryEvent.NODE_FINISHED:  # which repeats it
                self._end_try(node, event.at, "done")
                self._view.set(("calls", node, "status"), "done")
                self._view.set(("calls", node, "reused"), True if payload.get("reused") is True else None)
            return
        kind, reason = _text(payload.get("kind")) or "", _text(payload.get("reason")) or ""
        retry_at = _number(payload.get("retry_at"))
        status = "cut_off" if kind == "cut_off" else "failed"
        if node in self._running or event.type == HistoryEvent.TOOL_FINISHED:
            self._end_try(node, event.at, status, f"{kind}: {reason}")
        again = status == "failed" and retry_at is not None and payload.get("final") is not True
        self._view.set(("calls", node, "status"), "retrying" if again else status)
        self._view.set(("calls", node, "retry_at"), retry_at if again else None)

    # Waits and children, which outlive attempts

    def _value(self, event: Event, payload: dict[str, Any], name: str) -> None:
        value = payload.get("value")
        if name.endswith(ENDED) and isinstance(value, dict):
            self._wait_ended(event, name.removesuffix(ENDED), value)
        elif name.endswith(UNTIL):
            self._begin_wait(event, name.removesuffix(UNTIL))
        elif (found := _ID.fullmatch(name)) is not None and isinstance(value, str):
            self._begin_wait(event, found[1], value, _text(payload.get("name")))

    def _begin_wait(self, event: Event, node: str, run: str | None = None, name: str | None = None) -> None:
        """Show a wait, a child or a start. A child of a renamed job has its name in its event."""
        kind = _kind_of(node)
        if kind is None:
            return
        name = name or node.partition(":")[0]
        if self._view.get(("calls", node)).get("status") != "waiting":
            self._begin_try(event, node, name.partition(".")[2] or node.partition(":")[2], kind)
        if run is not None and kind != "signal":
            self._view.set(("calls", node, "run"), run)
            if kind == "child":
                entry = name.removeprefix("job.")
                self._view.set(("children", run), {"entry": entry, "status": "started", "call": node})

    def _waiting(self, event: Event, payload: dict[str, Any]) -> None:
        others = payload.get("also")
        places = [payload, *(others if isinstance(others, list) else [])]
        for place in places:
            if isinstance(place, dict):
                self._begin_wait(event, _text(place.get("node")) or "")

    def _wait_completed(self, event: Event, payload: dict[str, Any], node: str) -> None:
        key, outcome = _text(payload.get("correlation_key")) or "", payload.get("outcome")
        self._since.pop(node or key, None)
        answer, actor = payload.get("payload"), _cut(_text(payload.get("actor")))
        if outcome == "resolved" and isinstance(answer, dict):
            said = {"answer": _text(answer.get("answer")), "by": _cut(_text(answer.get("actor"))), "at": event.at}
            self._view.set(("calls", node, "answer"), _without_none(said))
        elif node and key != BUDGET_KEY:
            self._wait_ended(event, node, payload)
            if actor is not None:
                self._view.set(("calls", node, "answer"), {"by": actor, "at": event.at})

    def _wait_ended(self, event: Event, node: str, ended: dict[str, Any]) -> None:
        kind = _kind_of(node)
        if kind is None:
            return
        self._since.pop(node, None)
        if "name" not in self._view.get(("calls", node)):
            self._begin_wait(event, node)
        end = ended.get("payload")
        error = None
        match ended.get("outcome"):
            case "refused":
                status, error = "failed", f"{_text(ended.get('kind'))}: {_text(ended.get('reason'))}"
            case "expired" if kind == "wait":
                status = "timed_out"
            case "cut_off" | "deadline":
                status = "cut_off"
            case _ if kind == "child" and isinstance(end, dict) and end.get("state") != "completed":
                status = "failed"
            case _:
                status = "done"
        if self._view.get(("calls", node)).get("status") == "waiting":
            self._end_try(node, event.at, status, error)
        self._view.set(("calls", node, "status"), status)
        run = self._view.get(("calls", node)).get("run")
        if kind == "child" and run is not None:
            state = _text(end.get("state")) if isinstance(end, dict) else None
            child = self._view.get(("children", run))
            self._view.set(("children", run), {**child, "status": state or status})

    # The nodes of a plan

    def _follow_plan(self, event: Event) -> None:
        if event.type == HistoryEvent.PLAN_GENERATED:
            self._past.push(event)
            try:
                self._nodes = NodeStates(Plan.from_dict(self._past.plan), self._past)
            except (InvalidPlan, msgspec.MsgspecError, TypeError, ValueError):
                self._nodes = None  # a plan of a newer release
            self._show_nodes(self._nodes.states if self._nodes is not None else ())
        elif self._nodes is not None:
            self._show_nodes(self._nodes.update(self._past.push(event)))
        elif event.type == JobEvent.CREATED:  # the calls of a planner before its plan are not nodes
            self._past.push(event)

    def _show_nodes(self, names: Collection[str]) -> None:
        nodes = self._nodes
        if nodes is None:
            return
        for name in names:
            shown: dict[str, Any] = {"status": _word(nodes.states[name])}
            if nodes.items.get(name):  # the view omits what is empty
                shown["items"] = {_word(state): count for state, count in nodes.count_items(name).items()}
            self._view.set(("nodes", name), shown)
        if names is nodes.states:  # a refused extension takes its nodes away
            for name in [name for name in self.view.get("nodes", ()) if name not in nodes.states]:
                self._view.set(("nodes", name), None)


def _kind_of(node: str) -> str | None:
    """Return the kind of a wait, child or other act of job code, from its name in events. None for a step or tool."""
    head = node.partition(":")[0]
    kind = _KINDS.get(head.partition(".")[0])
    return kind if (kind in {"child", "start"}) is ("." in head) else None


def _kind_of_wait(key: str, wait_type: str | None) -> str:
    """Return what a job waits for at a key, such as ``signal``, ``human``, ``sleep``, ``child`` or ``doubt``."""
    reserved = parse_key(key)
    if reserved is None:
        return wait_type or "signal"
    return "sleep" if reserved.kind == "timer" else reserved.kind


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if item is not None}


def _word(state: str) -> str:
    return state.replace(" ", "_")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= ERROR_MAX else f"{text[: ERROR_MAX - 1]}…"
