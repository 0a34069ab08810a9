"""The schedules of a server: every operation of `Schedules` over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.client.schedules.schedules_interface import (
    HISTORY,
    LISTED,
    Backfill,
    ScheduleInfo,
    Schedules,
    TickTime,
)
from holdfast.errors import InvalidArguments
from holdfast.machines import Event

if TYPE_CHECKING:
    from holdfast.client.remote.client import RemoteClient


T = TypeVar("T")


class _Fired(msgspec.Struct):
    run_id: str


class _Explanation(msgspec.Struct):
    explanation: str


class RemoteSchedules(Schedules):
    """The schedules of a server. Jobs are named by text."""

    _client: RemoteClient

    async def acreate(
        self,
        name: str,
        job: Any,
        *,
        args: Mapping[str, Any] | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:
        body = {"name": name, "job": _job(job), "args": dict(args or {}), "options": _plain(options)}
        return await self._post("/schedules", ScheduleInfo, {**body, **_given(actor=actor)}, about=name)

    async def alist(
        self, *, after: str | None = None, limit: int = LISTED, outcomes: int = 0
    ) -> builtins.list[ScheduleInfo]:
        cursor = f"~{after}" if after is not None else None
        return await self._client.pages(
            "/schedules", ScheduleInfo, limit, cursor, query=[("outcomes", str(outcomes))] if outcomes else []
        )

    async def aget(self, name: str, *, outcomes: int = 0) -> ScheduleInfo:
        query = f"?outcomes={outcomes:d}" if outcomes else ""
        return await self._client.read(f"{_path(name)}{query}", ScheduleInfo, name)

    async def ahistory(self, name: str, *, before: int | None = None, limit: int = HISTORY) -> builtins.list[Event]:
        cursor = str(before) if before is not None else None
        return await self._client.pages(_path(name, "events"), Event, limit, cursor, about=name)

    async def aticks(
        self, name: str, *, around: datetime | str | None = None, limit: int = 10
    ) -> builtins.list[TickTime]:
        query = [("around", _text(around))] if around is not None else []
        return await self._client.pages(_path(name, "ticks"), TickTime, limit, None, query=query, about=name)

    async def achange(
        self,
        name: str,
        *,
        job: Any = None,
        args: Mapping[str, Any] | None = None,
        actor: str | None = None,
        **options: Any,
    ) -> ScheduleInfo:
        named = _job(job) if job is not None else None
        body = {"options": _plain(options), **_given(job=named, args=args, actor=actor)}
        return await self._post(_path(name, "change"), ScheduleInfo, body, about=name)

    async def apause(self, name: str, note: str | None = None, *, actor: str | None = None) -> ScheduleInfo:
        return await self._post(_path(name, "pause"), ScheduleInfo, _given(note=note, actor=actor), about=name)

    async def aresume(self, name: str, *, actor: str | None = None) -> ScheduleInfo:
        return await self._post(_path(name, "resume"), ScheduleInfo, _given(actor=actor), about=name)

    async def afire(self, name: str, *, allow_overlap: bool = False, actor: str | None = None) -> str:
        body = {"allow_overlap": allow_overlap, **_given(actor=actor)}
        return (await self._post(_path(name, "fire"), _Fired, body, about=name)).run_id

    async def abackfill(
        self,
        name: str,
        start: datetime | str,
        end: datetime | str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Backfill:
        body = {"start": _text(start), "end": _text(end), "dry_run": dry_run, **_given(actor=actor)}
        return await self._post(_path(name, "backfill"), Backfill, body, about=name)

    async def adelete(self, name: str, *, actor: str | None = None) -> None:
        """Delete a schedule. The server records the name of the token; `actor` is for an app."""
        del actor
        await self._client.remove(_path(name), ScheduleInfo, name)

    async def aexplain(self, name: str, at: datetime | str | None = None) -> str:
        query = f"?{urlencode({'at': _text(at)})}" if at is not None else ""
        return (await self._client.read(f"{_path(name, 'explain')}{query}", _Explanation, name)).explanation

    async def _post(self, path: str, kind: type[T], body: dict[str, Any], *, about: str) -> T:
        return await self._client.send(path, kind, body, about)


def _path(name: str, *more: str) -> str:
    return "/".join(["/schedules", quote(name, safe=""), *more])


def _job(job: Any) -> str:
    if not isinstance(job, str):
        raise InvalidArguments(
            "job", f"must be the name of a job on the server, such as 'shop.report', got {job!r:.60}"
        )
    return job


def _text(value: datetime | str) -> str:
    return value if isinstance(value, str) else value.isoformat()


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as JSON values."""
    return {name: _plain_value(value) for name, value in options.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date):
        return value.isoformat()
    return [_plain_value(each) for each in value] if isinstance(value, (list, tuple, set, frozenset)) else value


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
