"""What a job's past hands to its code."""

from __future__ import annotations

from typing import Any

from holdfast.engine.replay import Replay
from holdfast.machines import Event, seal

CHARGE = {"node": "charge:1", "name": "charge", "args": {}}


def stream(*events: tuple[str, dict[str, Any], int | None]) -> list[Event]:
    made = [seal(None, "job_created", {}, job="j", at=1.0)]
    for kind, payload, attempt in events:
        made.append(seal(made[-1], kind, payload, at=1.0, attempt=attempt))
    return made


def answered(answer: str) -> tuple[str, dict[str, Any], int | None]:
    said = {"node": "charge:1", "correlation_key": "holdfast:doubt:charge:1", "outcome": "resolved"}
    return "wait_completed", {**said, "payload": {"answer": answer}}, None


def test_an_answer_is_about_the_try_it_was_asked_for_and_not_about_the_next() -> None:
    asked = [("tool_invocation_started", CHARGE, 1), answered("not_done")]
    assert Replay(stream(*asked)).answers == {"charge:1": {"answer": "not_done"}}
    again = Replay(stream(*asked, ("tool_invocation_started", CHARGE, 2)))
    assert "charge:1" in again.in_doubt
    assert again.answers == {}, "the second try is in doubt, too, and nobody has answered for it"
