"""What Holdfast must reach beside its peers, as ratios within one run."""

from __future__ import annotations

from dataclasses import dataclass

from compare.results import Results


@dataclass(frozen=True)
class Floor:
    """A figure of ours over a figure of a peer, and the least or the most that it may be."""

    what: str
    ours: tuple[str, str, str]  # row, column, key
    peer: tuple[str, str, str]
    limit: float
    at_most: bool = False


@dataclass(frozen=True)
class Verdict:
    """A floor, and what a run says about it."""

    floor: Floor
    ours: float | None
    peer: float | None

    @property
    def ratio(self) -> float | None:
        """Our figure over the peer's."""
        return self.ours / self.peer if self.ours is not None and self.peer else None

    @property
    def met(self) -> bool | None:
        """Whether the floor is met; None if a figure is missing."""
        if self.ratio is None:
            return None
        return self.ratio <= self.floor.limit if self.floor.at_most else self.ratio >= self.floor.limit

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return {True: "met", False: "missed", None: "not measured"}[self.met]

    def line(self) -> str:
        """The verdict in a line."""
        due = f"{'at most' if self.floor.at_most else 'at least'} {self.floor.limit:g}"
        ratio = "no figure" if self.ratio is None else f"{self.ratio:.2f}"
        return f"{self.word:12} {self.floor.what}: {ratio}, {due} is due"


def _latency(store: str, name: str, column: str, limit: float) -> list[Floor]:
    row, words = f"holdfast-{store}", {"start": "start → code", "result": "start → result", "signal": "signal → code"}
    return [
        Floor(f"{words[column]}, {name}, p50 over that of Restate", (row, column, "p50"), ("restate", column, "p50"),
              limit, at_most=True),
        Floor(f"{words[column]}, {name}, p99 over the p50 of Restate", (row, column, "p99"), ("restate", column, "p50"),
              2 * limit, at_most=True),
    ]  # fmt: skip


FLOORS = (
    Floor("drain on PostgreSQL, one process, over pgqueuer", ("holdfast-postgres", "drain", "rate"),
          ("pgqueuer", "drain", "rate"), 0.8),
    Floor("drain on PostgreSQL, two processes, over pgqueuer", ("holdfast-postgres", "drain2", "rate"),
          ("pgqueuer", "drain2", "rate"), 0.8),
    Floor("drain on SQLite, one process, over huey", ("holdfast-sqlite", "drain", "rate"), ("huey", "drain", "rate"),
          6.0),
    Floor("drain on SQLite, two processes, over huey", ("holdfast-sqlite", "drain2", "rate"),
          ("huey", "drain2", "rate"), 6.0),
    Floor("tools on PostgreSQL, 1 job at a time, over steps of Absurd", ("holdfast-postgres:tools", "c1", "rate"),
          ("absurd", "c1", "rate"), 1.0),
    Floor("tools on PostgreSQL, 1 job at a time, over steps of Restate", ("holdfast-postgres:tools", "c1", "rate"),
          ("restate", "c1", "rate"), 1.0),
    *_latency("postgres", "PostgreSQL", "start", 1.75),
    *_latency("postgres", "PostgreSQL", "result", 1.5),
    *_latency("postgres", "PostgreSQL", "signal", 0.75),
    *_latency("sqlite", "SQLite", "start", 0.87),
    *_latency("sqlite", "SQLite", "result", 0.85),
    *_latency("sqlite", "SQLite", "signal", 0.37),
)  # fmt: skip


def judge(results: Results) -> list[Verdict]:
    """Return what a run says about every floor."""
    return [
        Verdict(
            floor,
            results.cell(*floor.ours[:2]).median(floor.ours[2]),
            results.cell(*floor.peer[:2]).median(floor.peer[2]),
        )
        for floor in FLOORS
    ]
