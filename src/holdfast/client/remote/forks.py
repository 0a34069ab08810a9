"""Runs that begin where others were, through a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.client.interface import Client
from holdfast.client.remote.remote_job import AUTO, as_plain
from holdfast.client.remote.transport import Wire, at_run
from holdfast.client.run_handle import RunHandle
from holdfast.ids import new_id
from holdfast.machines import RunRecord

if TYPE_CHECKING:
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan

__all__ = ["RemoteForks"]


class RemoteForks(Client):
    """These verbs, through a server."""

    _wire: Wire

    async def afork(
        self,
        run_id: str | RunHandle,
        *,
        from_node: str | None = None,
        from_step: str | None = None,
        plan: Plan | Draft | dict[str, Any] | None = None,
        key: str | None = None,
    ) -> RunHandle:
        """Start a run anew from where another was; see `Client.afork`. It has a key, so a lost request is repeated."""
        said = {
            "from_node": from_node,
            "from_step": from_step,
            "plan": as_plain(plan) if plan is not None else None,
            "idempotency_key": key if key is not None else f"{AUTO}{new_id()}",
        }
        body = {name: value for name, value in said.items() if value is not None}
        name = run_id.id if isinstance(run_id, RunHandle) else run_id
        _, record = await self._wire.ask("POST", at_run(name, "fork"), RunRecord, body=body, again=True, about=name)
        return RunHandle(self, record.run_id)
