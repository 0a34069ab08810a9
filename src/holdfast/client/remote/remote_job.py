"""A job on a server: a name, and the options for the runs that are started from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.signature import payload_for_server
from holdfast.client.run_handle import RunHandle
from holdfast.client.views import Creation
from holdfast.durations import seconds

if TYPE_CHECKING:
    from holdfast.client.remote.client import RemoteClient
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

__all__ = ["AUTO", "RemoteJob", "as_plain"]

_OPTIONS = frozenset({"attributes", "budget", "deadline", "delay", "group", "key", "priority", "queue"})
AUTO = "auto:"  # how a key begins that this client made up


class RemoteJob:
    """A job on a server, by name, with the options for the runs started from it."""

    def __init__(
        self,
        client: RemoteClient,
        name: str,
        chosen: Mapping[str, Any] | None = None,
        plan: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.chosen = dict(chosen or {})
        self.plan = plan
        self._client = client

    def options(self, **chosen: Any) -> RemoteJob:
        """Choose ``key``, ``priority``, ``queue``, ``deadline``, ``delay``, ``group``, ``attributes``, ``budget``."""
        unknown = sorted(set(chosen) - _OPTIONS)
        if unknown:
            raise TypeError(f"unknown options {', '.join(unknown)}; there are {', '.join(sorted(_OPTIONS))}")
        return RemoteJob(self._client, self.name, chosen, self.plan)

    def given(self, plan: Plan | Draft | dict[str, Any]) -> RemoteJob:
        """Give this job with a plan of one's own for the runs that are started from the result, if it takes such."""
        return RemoteJob(self._client, self.name, self.chosen, as_plain(plan))

    def start(self, **arguments: Any) -> RunHandle:
        """Start a run of this job and return its handle."""
        return self._client.start(self, **arguments)

    async def astart(self, **arguments: Any) -> RunHandle:
        """Start a run of this job and return its handle."""
        return await self._client.astart(self, **arguments)

    def __repr__(self) -> str:
        return f"<job {self.name} at {self._client.url}>"

    def creation(self, plugin: str, name: str, arguments: dict[str, Any]) -> Creation:
        """Put together what a server is asked for."""
        chosen = self.chosen
        deadline, delay = chosen.get("deadline"), chosen.get("delay")
        return Creation(
            plugin_id=plugin,
            entry_id=name,
            args=payload_for_server(name, arguments),
            idempotency_key=chosen.get("key"),
            deadline=seconds(deadline) if deadline is not None else None,
            priority=chosen.get("priority", 0),
            delay=seconds(delay) if delay is not None else None,
            queue=chosen.get("queue"),
            group=chosen.get("group"),
            attributes=dict(chosen.get("attributes") or {}),
            budget=chosen.get("budget"),
            plan=self.plan,
        )


def as_plain(plan: Plan | Draft | dict[str, Any]) -> dict[str, Any]:
    """Give a plan as it is sent."""
    if isinstance(plan, dict):
        return plan
    made: Plan = plan if isinstance(plan, msgspec.Struct) else plan.plan()
    return made.to_dict()
