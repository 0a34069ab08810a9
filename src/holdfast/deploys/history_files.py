"""Histories in files: one JSON file per run, for a corpus that code is checked against in CI.

A file is stable: the same history gives the same bytes. Each event is one line, so that a diff shows which one differs.
Large results are in the events. Hashes are not: they follow from the rest.

What can fail: a file that is not a history raises `InvalidHistory`, with its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidEvent
from holdfast.machines import Event
from holdfast.machines.event import seal

FORMAT = 1
_FIELDS = ("seq", "type", "at", "attempt", "payload")


class _Line(msgspec.Struct):
    type: str
    at: float
    attempt: int | None
    payload: dict[str, Any]


class _File(msgspec.Struct):
    job: str
    events: list[_Line]


class InvalidHistory(HoldfastError, ValueError):
    """A file is not a history that `holdfast export` has written. The message names the file."""


def file_name(events: Sequence[Event]) -> str:
    """Return the name of a run's file, with its job's name and id."""
    created = events[0].payload
    entry = f"{created.get('plugin')}.{created.get('entry')}"
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', entry)}-{events[0].job}.json"


def history_text(events: Sequence[Event], *, redacted: bool = False) -> str:
    """Return a history as the text of its file."""
    created = events[0].payload
    head = {
        "holdfast_history": FORMAT,
        "job": events[0].job,
        "entry": f"{created.get('plugin')}.{created.get('entry')}",
        "redacted": redacted,
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}," for name, value in head.items()]
    listed = [json.dumps(_plain(event), ensure_ascii=False) for event in events]
    return "\n".join(
        ["{", *lines, '  "events": [', *(f"    {line}," for line in listed[:-1]), f"    {listed[-1]}", "  ]", "}", ""]
    )


def _plain(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in _FIELDS}


def read_history(path: Path) -> list[Event]:
    """Read the history of a file.

    Raises:
        InvalidHistory: the file is not one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidHistory(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise InvalidHistory(f"{path} is not a history: it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("holdfast_history") != FORMAT:
        raise InvalidHistory(f"{path} is not a history of format {FORMAT}: write it with holdfast export")
    events: list[Event] = []
    try:
        for line in msgspec.convert(document, _File).events:
            last = events[-1] if events else None
            events.append(seal(last, line.type, line.payload, at=line.at, attempt=line.attempt, job=document["job"]))
    except (msgspec.ValidationError, InvalidEvent, TypeError, ValueError) as error:
        raise InvalidHistory(f"{path} is not a history: {error}") from error
    if not events:
        raise InvalidHistory(f"{path} has no events")
    return events


def histories_in(folder: Path) -> Iterator[list[Event]]:
    """Yield the histories of a folder and its subfolders, in the order of their names."""
    for path in sorted(folder.rglob("*.json")):
        yield read_history(path)
