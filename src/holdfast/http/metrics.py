"""Metrics in the Prometheus text format. All names begin with ``holdfast_``.

The module writes the format itself, because that takes a few lines and saves a dependency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.client.views import Stats
from holdfast.client.worker_status import GateView
from holdfast.http.connections import Connections
from holdfast.ready import GateCounts
from holdfast.store.rows import GateCard

Samples = Iterable[tuple[dict[str, str], float]]


class Metrics:
    """Counts requests, and formats the counts together with the figures of the store."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()

    def count(self, route: str, method: str, status: int) -> None:
        """Count a request by its route. Paths have ids in them, and would give an unbounded number of series."""
        self._requests[route, method if method in _METHODS else "other", status] += 1

    def text(
        self,
        stats: Stats | None,
        own: Sequence[GateCounts],
        streams: int,
        dropped: int,
        gates: Sequence[GateView] = (),
        connections: Connections | None = None,
    ) -> str:
        """Return all metrics as text.

        Args:
            stats: figures of the store, or None if the store does not answer; they are then left out.
            own: gates of the server process itself.
            streams: number of open streams.
            dropped: number of streams that the server dropped.
            gates: gates of the workers, as last reported.
            connections: connections of the server, if it is Holdfast's own.
        """
        told = [_Told({"gate": one.gate}, one) for one in own]
        told += [_Told({"gate": one.gate.name, "worker": one.worker}, one.gate) for one in gates]
        parts = [
            _family(
                "http_requests_total", "counter", "Requests, by route, method and status.",
                [({"route": route, "method": method, "code": str(code)}, number)
                 for (route, method, code), number in sorted(self._requests.items())],
            ),
            _family("http_streams", "gauge", "Open streams.", [({}, streams)]),
            _family("http_streams_dropped_total", "counter", "Streams whose client read nothing.", [({}, dropped)]),
            _family("ready_state", "gauge", "1 for the current state of each gate.",
                    [({**one.labels, "state": str(one.counts.state)}, 1) for one in told]),
            _family("store_up", "gauge", "1 if the store answers, else 0.", [({}, int(stats is not None))]),
        ]  # fmt: skip
        if connections is not None:
            parts += [
                _family("http_connections", "gauge", "Open connections.", [({}, len(connections))]),
                _family("http_refused_total", "counter", "Connections and requests refused before they had a route.",
                        [({}, connections.refused)]),
            ]  # fmt: skip
        if stats is not None:
            queues = [
                ({"queue": queue, "kind": kind}, number)
                for queue, kinds in sorted(stats.queues.items())
                for kind, number in sorted(kinds.items())
            ]
            parts += [
                _family("runs", "gauge", "Newest run of each job, by status.",
                        [({"status": status}, number) for status, number in sorted(stats.runs.items())]),
                _family("queue_jobs", "gauge", "Open jobs, by queue and kind.", queues),
                _family("oldest_due_seconds", "gauge", "Seconds since the oldest due job became due.",
                        [({}, stats.oldest_due_seconds or 0.0)]),
                _family("schedule_lag_seconds", "gauge", "Seconds since the oldest tick without an outcome became due.",
                        [({}, stats.schedule_lag_seconds or 0.0)]),
                _family("runs_in_doubt", "gauge", "Runs with a call in doubt, up to 1000.", [({}, stats.asks)]),
                _family("workers", "gauge", "Workers with a recent heartbeat.", [({}, stats.workers)]),
            ]  # fmt: skip
        return "".join(parts + _gates(told))


class _Told(NamedTuple):
    """The counts of a gate, and the labels of their samples."""

    labels: dict[str, str]
    counts: GateCounts | GateCard


def _gates(told: Sequence[_Told]) -> list[str]:
    """Return the metrics of gates. Workers' gates have the counts of their last report."""

    def each(label: str, field: str) -> Samples:
        return [
            ({**one.labels, label: name}, number)
            for one in told
            for name, number in sorted(getattr(one.counts, field).items())
        ]

    return [
        _family("wake_total", "counter", "Wakes of each gate, by source.", each("source", "wakes")),
        _family("ready_polls_total", "counter", "Polls of each gate, by returned state.", each("state", "polls")),
        _family("ready_seconds_total", "counter", "Seconds of each gate in each state.", each("state", "seconds")),
        _family("ready_waiting", "gauge", "Callers that wait at each gate.",
                [(one.labels, one.counts.waiting) for one in told]),
        _family("ready_violations_total", "counter", "Violations of the readiness contract: bugs of a gate.",
                [(one.labels, one.counts.violations) for one in told]),
    ]  # fmt: skip


_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}


def _family(name: str, kind: str, text: str, samples: Samples) -> str:
    lines = [f"# HELP holdfast_{name} {text}", f"# TYPE holdfast_{name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"holdfast_{name}{{{inside}}} {value}" if inside else f"holdfast_{name} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
