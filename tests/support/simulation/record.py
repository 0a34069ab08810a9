"""The record of a long campaign: written while it runs, so that one that was stopped counts, and can go on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from support.run_facts import commit, machine
from support.simulation.campaign import Tally


class Record(msgspec.Struct):
    """What a campaign has done so far. All of it was played with one commit."""

    begun: datetime
    commit: str
    machine: str
    first: int
    asked: int  # seeds
    seconds: float
    tally: Tally

    def save(self, path: Path) -> None:
        """Write the record. A reader sees this one or the one before it."""
        written = path.with_name(f"{path.name}.new")
        written.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        written.replace(path)


def load(path: Path) -> Record:
    """Read a record."""
    return msgspec.json.decode(path.read_bytes(), type=Record, dec_hook=lambda kind, value: kind(value))


def begun_or_continued(path: Path | None, first: int, asked: int) -> Record:
    """Return the record of a campaign that begins, or that goes on after a stop.

    Raises:
        ValueError: The record at this path is of other seeds, or of another commit.
    """
    new = Record(datetime.now(UTC), commit(), machine(), first, asked, 0.0, Tally())
    if path is None or not path.exists():
        return new
    old = load(path)
    if (old.commit, old.first, old.asked) != (new.commit, first, asked):
        raise ValueError(f"{path} is of {old.asked} seeds from {old.first} on at {old.commit}; name another file")
    return old
