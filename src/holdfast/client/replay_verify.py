"""Runs a recorded history through an app's code as it is now, without calling anything, and says whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.engine.replay_check import Rehearsal, Rehearsed
from holdfast.errors import UnknownEntry
from holdfast.machines import Event

if TYPE_CHECKING:
    from holdfast.client.app import App

__all__ = ["Rehearsed", "rehearse"]


async def rehearse(app: App, events: Sequence[Event]) -> Rehearsed:
    """Rehearse a job with the code of its app.

    Raises:
        UnknownEntry: this app has no such job.
    """
    said = events[0].payload
    function = app.entries.get((said.get("plugin"), said.get("entry")))  # type: ignore[arg-type]  # - None is no name
    if function is None:
        known = [".".join(name) for name in app.entries]
        raise UnknownEntry(f"{said.get('plugin')}.{said.get('entry')}", known)
    return await Rehearsal(events, function).run()
