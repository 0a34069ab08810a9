"""A job on a server: its name, and the options of the runs that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.authoring.functions import check_options
from holdfast.authoring.signature import payload_for_server
from holdfast.client.run_handle import RunHandle
from holdfast.client.views import CREATION_OPTIONS, Creation
from holdfast.durations import seconds
from holdfast.errors import shown_url

if TYPE_CHECKING:
    from holdfast.client.remote.client import RemoteClient
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

AUTO = "auto:"  # prefix of keys that this client generates


class RemoteJob:
    """A job on a server, by name, with the options of the runs that it starts."""

    def __init__(
        self,
        client: RemoteClient,
        name: str,
        options: Mapping[str, Any] | None = None,
        plan: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.chosen = dict(options or {})
        self.plan = plan
        self._client = client

    def options(self, **options: Any) -> RemoteJob:
        """Return this job with other options for its runs.

        Args:
            options: ``key``, ``priority``, ``queue``, ``deadline``, ``delay``, ``group``, ``attributes``, ``budget``.
        """
        check_options(options, CREATION_OPTIONS)
        return RemoteJob(self._client, self.name, options, self.plan)

    def given(self, plan: Plan | Draft | dict[str, Any]) -> RemoteJob:
        """Return this job with your plan for its runs. The server refuses it unless the entry is open to plans."""
        return RemoteJob(self._client, self.name, self.chosen, plan_dict(plan))

    def start(self, **arguments: Any) -> RunHandle:
        """Start a run of this job and return its handle. When this returns, the run is durable."""
        return self._client.start(self, **arguments)

    async def astart(self, **arguments: Any) -> RunHandle:
        """Start a run of this job and return its handle. When this returns, the run is durable."""
        return await self._client.astart(self, **arguments)

    def __repr__(self) -> str:
        return f"<job {self.name} at {shown_url(self._client.url)}>"

    def creation(self, plugin: str, name: str, arguments: dict[str, Any]) -> Creation:
        """Build the request that creates a run."""
        options = {CREATION_OPTIONS[name]: value for name, value in self.chosen.items() if value is not None}
        for time in {"deadline", "delay"} & options.keys():
            options[time] = seconds(options[time])
        args = payload_for_server(name, arguments)
        return Creation(plugin_id=plugin, entry_id=name, args=args, plan=self.plan, **options)


def plan_dict(plan: Plan | Draft | dict[str, Any]) -> dict[str, Any]:
    """Return a plan as the dict that is sent to the server."""
    if isinstance(plan, dict):
        return plan
    whole: Plan = plan if isinstance(plan, msgspec.Struct) else plan.plan()
    return whole.to_dict()
