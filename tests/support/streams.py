"""Streams for the tests: sealed from letters, or drawn at random by rules that are not the code's."""

from __future__ import annotations

import random
from typing import Any

from holdfast.machines import Event, seal

FENCED = {
    "job_waiting",
    "job_completed",
    "job_failed",
    "node_started",
    "node_finished",
    "command_committed",
    "tool_invocation_started",
    "tool_invocation_finished",
}


def sealed(letters: list[tuple[str, dict[str, Any]]], job: str = "job-1") -> list[Event]:
    """Seal a stream, with the attempts that a real engine would write."""
    events: list[Event] = []
    attempt = 0
    for seq, (name, payload) in enumerate(letters, 1):
        held = bool(events) and _holder(events)
        claim = name in {"job_running", "job_leased"}
        attempt += claim
        fenced = claim or name in FENCED or (held and name in {"job_cancelled", "job_requeued"})
        after = events[-1] if events else None
        events.append(seal(after, name, payload, at=1000.0 + seq, attempt=attempt if fenced else None, job=job))
    return events


def _holder(events: list[Event]) -> bool:
    moves = [event.type for event in events if event.type.startswith("job_") or event.type == "wait_completed"]
    return moves[-1] in {"job_running", "job_leased"}


class Author:
    """Writes one legal stream of a job that does everything: claims, waits, steps, tools, retries, cancels."""

    def __init__(self, rng: random.Random, *, unknown_events: bool = True) -> None:
        self._rng = rng
        self._unknown = unknown_events
        self.letters: list[tuple[str, dict[str, Any]]] = []
        self._nodes = 0
        self._open: dict[str, bool] = {}

    def write(self, length: int) -> list[tuple[str, dict[str, Any]]]:
        """Write about `length` events; the job may end for good only in the last fifth of them."""
        self._length = length
        self._put("job_created", plugin="shop", entry="checkout", idempotency_key="k1")
        place = "queued"
        while len(self.letters) < length and place != "end":
            place = getattr(self, f"_{place}")()
        return self.letters

    def _may_end(self) -> bool:
        return len(self.letters) >= self._length * 0.8

    def _put(self, name: str, **payload: Any) -> None:
        self.letters.append((name, payload))

    def _queued(self) -> str:
        roll = self._rng.random()
        if roll < 0.55:
            self._put("job_running", worker=f"w{self._rng.randrange(3)}")
            return "running"
        if roll < 0.65:
            return self._aside("queued")
        if roll < 0.75:
            self._put("job_requeued", reason="moved", not_before=self._rng.random() * 1e9)
            return "queued"
        if roll < 0.78:
            self._put("wait_completed", correlation_key="repeat")
            return "queued"
        return self._administrative()

    def _administrative(self) -> str:
        roll = self._rng.random()
        if roll < 0.1 and self._may_end():
            self._put("job_leased", purpose="cancel")
            self._put("job_cancelled", reason="operator")
            return "end"
        if roll < 0.3:
            self._put("job_leased", purpose="fail")
            self._put("job_failed", reason=self._rng.choice(["poison", "deadline"]))
            return "failed"
        self._put("job_leased", purpose="pause")
        self._wait(wait_type="human", park=True)
        return "waiting"

    def _running(self) -> str:
        roll = self._rng.random()
        if roll < 0.55:
            self._step()
            return "running"
        if roll < 0.62:
            return self._aside("running")
        if roll < 0.72:
            self._wait(
                wait_type=self._rng.choice(["signal", "timer", "webhook", "child"]), park=self._rng.random() < 0.5
            )
            return "waiting"
        if roll < 0.92:
            reasons = ["lease_expired", "worker_shutdown", "retry"]
            self._put("job_requeued", reason=self._rng.choice(reasons), not_before=self._rng.choice([None, 5e9]))
            return "queued"
        if roll < 0.97 or not self._may_end():
            self._put("job_failed", reason=self._rng.choice(["deadline", "gave up"]), message="no luck")
            return "failed"
        self._put(*self._rng.choice([("job_completed",), ("job_cancelled",)]))
        return "end"

    def _waiting(self) -> str:
        roll = self._rng.random()
        if roll < 0.2:
            return self._aside("waiting")
        if roll < 0.25 and self._may_end():
            self._put("job_cancelled", reason="tired of waiting")
            return "end"
        outcome = self._rng.choice([None, "expired", "overridden"])
        self._put("wait_completed", correlation_key=self._key, outcome=outcome)
        return "queued"

    def _failed(self) -> str:
        if self._unknown and self._rng.random() < 0.2:
            self._put("audit_noted", by="a newer release")
            return "failed"
        self._put("job_requeued", actor="ana", reason="fixed the card")
        return "queued"

    def _aside(self, place: str) -> str:
        if self._unknown and self._rng.random() < 0.5:
            self._put("trace_noted", text="é – 漢字")
        else:
            self._put("cancel_requested", reason=f"r{len(self.letters)}")
        return place

    def _wait(self, *, wait_type: str, park: bool) -> None:
        self._key = f"key-{len(self.letters)}"
        self._put("job_waiting", node="w", correlation_key=self._key, wait_type=wait_type, park=park, deadline=None)

    def _step(self) -> None:
        if self._open and self._rng.random() < 0.8:
            self._end_step()
            return
        self._nodes += 1
        node, tool = f"n{self._nodes}", self._rng.random() < 0.4
        self._put("tool_invocation_started" if tool else "node_started", node=node)
        self._open[node] = tool

    def _end_step(self) -> None:
        node = self._rng.choice(sorted(self._open))
        tool = self._open.pop(node)
        if self._rng.random() < 0.3:
            failure = self._rng.choice(["retryable_failure", "permanent_failure"])
            self._put("tool_invocation_finished" if tool else "node_finished", node=node, result_type=failure)
            return
        self._put("tool_invocation_finished" if tool else "command_committed", node=node, result=self._rng.random())
        self._put("node_finished", node=node, result_type="success")
