"""What a run of the comparison has found: figures by row and column, the machine, and the versions.

A row is a system, or the tools of a system: `holdfast-sqlite`, `holdfast-sqlite:tools`. A cell has the figures of every
repetition, or the reason why there is none.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

Figures = dict[str, float]


class Cell(msgspec.Struct, omit_defaults=True):
    """One system in one column."""

    figures: list[Figures] = msgspec.field(default_factory=list)  # one for each repetition
    unsupported: str = ""
    failures: list[str] = msgspec.field(default_factory=list)
    overdue: bool = False  # it took too long once, and is not tried again

    def median(self, key: str) -> float | None:
        """Return the median of all repetitions; None if there is no figure."""
        found = [figures[key] for figures in self.figures if key in figures]
        return statistics.median(found) if found else None

    def range(self, key: str) -> tuple[float, float]:
        """Return the lowest and the highest figure."""
        found = [figures[key] for figures in self.figures]
        return min(found), max(found)


class Machine(msgspec.Struct, frozen=True):
    """The shape of the machine, without its name."""

    cores: int
    processor: str
    memory_gb: float
    system: str
    python: str
    postgres: str
    sqlite: str
    commits: dict[str, float]  # single-row commits a second on one connection, by database


class Results(msgspec.Struct):
    """One run."""

    day: str
    quick: bool
    repetitions: int
    seconds: float
    drain_jobs_max: int
    samples: int
    waiting: int
    machine: Machine
    versions: dict[str, str]  # by system
    remarks: list[str] = msgspec.field(default_factory=list)  # what a reader must know of this run alone
    cells: dict[str, dict[str, Cell]] = msgspec.field(default_factory=dict)  # by row, then by column

    def cell(self, row: str, column: str) -> Cell:
        """Return a cell, empty if nothing was measured."""
        return self.cells.get(row, {}).get(column, Cell(unsupported="not measured"))

    def save(self, path: Path) -> None:
        """Write the results to a file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read the results from a file."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
