"""Values that a job asks for, recorded so that a replay gives the same (SPEC E9); and the plan it follows (E11)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from holdfast.authoring import plain_values
from holdfast.authoring.signature import payload
from holdfast.machines import HistoryEvent

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt

__all__ = ["Values"]


class Values:
    """An attempt, as its code asks it for values."""

    def value(self, kind: str) -> Any:
        """Give the time, a random number or a name; on replay the same."""
        attempt = cast("Attempt", self)
        make: dict[str, Callable[[], Any]] = {
            "now": attempt.now,
            "random": random.random,
            "uuid4": lambda: str(uuid.uuid4()),
        }
        node = attempt.replay.value_node(kind)
        if attempt.in_loop():
            return self._value(node, make[kind])
        return attempt.code.on_host(self._value, node, make[kind])

    def _value(self, node: str, make: Callable[[], Any]) -> Any:
        """Code that is being closed gets a value, too, but it is not recorded: the attempt writes no more."""
        attempt = cast("Attempt", self)
        return attempt.recorded(node, make) if attempt.may_record() else make()

    def recorded(self, node: str, make: Callable[[], Any]) -> Any:
        """Give a value that was recorded, or make it and record it."""
        attempt = cast("Attempt", self)
        if node not in attempt.replay.values:
            attempt.replay.values[node] = make()
            attempt.record((HistoryEvent.VALUE_RECORDED.value, {"node": node, "value": attempt.replay.values[node]}))
            attempt.decided_events = attempt.recorded_events
        return plain_values.as_recorded(attempt.replay.values[node])

    def known(self, node: str) -> Any:
        """Give a value that was recorded, if it was."""
        return plain_values.as_recorded(cast("Attempt", self).replay.values.get(node))

    def known_names(self, beginning: str) -> list[str]:
        """List the names of recorded values that begin so, in the order in which they were recorded."""
        return [node for node in cast("Attempt", self).replay.values if node.startswith(beginning)]

    def plan(self, made: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Give the recorded plan; without one, record the one that was made, once and for all (E11)."""
        attempt = cast("Attempt", self)
        if attempt.replay.plan is None and made is not None:
            plain = payload("the plan", made, attempt.config.payload_bytes_max)
            attempt.record((HistoryEvent.PLAN_GENERATED.value, {"plan": plain}))
            attempt.replay.plan = plain
        return cast("dict[str, Any] | None", plain_values.as_recorded(attempt.replay.plan))
