"""The list of workers shows what each runs, and reads only the events of running attempts."""

from __future__ import annotations

from typing import Any

from holdfast.client.worker_status import EVENTS, workers
from holdfast.machines import Event
from holdfast.store import Append, Claim, SendSignal, Submit
from holdfast.store.commands import PutWorker
from holdfast.store.memory import MemoryStore
from holdfast.store.rows import WorkerCard
from support.stories import play


class Counting(MemoryStore):
    """A store that counts the events that were read."""

    read = 0

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Event]:
        found = await super().events(job, after, limit)
        self.read += len(found)
        return found


def call(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Give the events of a call that has ended."""
    node = f"f:{number}"
    return [
        ("node_started", {"node": node, "name": "f", "try": 1}),
        ("command_committed", {"node": node, "name": "f", "result": number}),
        ("node_finished", {"node": node, "result_type": "success"}),
    ]


def test_what_a_worker_runs_is_found_from_the_end_of_a_long_history() -> None:
    async def story() -> None:
        store = Counting()
        claim = Claim(worker="w", entries=frozenset({("p", "e")}), queues=None, limit=1, lease_seconds=3600)
        await store.commit([Submit(job="a", plugin="p", entry="e", args={})])
        await store.commit([claim])
        long = [event for number in range(500) for event in call(number)]
        wait = ("job_waiting", {"node": "wait:k", "correlation_key": "k", "wait_type": "signal"})
        await store.commit([Append("a", 1, (*long, wait))])
        await store.commit([SendSignal("a", "k", None, "s")])
        await store.commit([claim])
        card = WorkerCard("w", "host", 1, 4, None, ("p.e",), 3600.0)
        await store.commit([PutWorker(card)])
        for calls in (1, EVENTS):
            more = [event for number in range(calls) for event in call(1000 * calls + number)]
            open_call = ("tool_invocation_started", {"node": f"pay:{calls}", "name": "pay", "try": 1})
            await store.commit([Append("a", 2, (*more, open_call))])
            store.read = 0
            (seen,) = await workers(store)
            assert store.read <= 3 * 3 * calls + EVENTS, "the 1,500 events of the attempt before are not read"
            (job,) = seen.running
            assert (job.attempt, job.entry, job.steps[-1].node, job.steps[-1].tool) == (2, "p.e", f"pay:{calls}", True)
            claimed = next(event for event in reversed(await store.events("a")) if event.type == "job_running")
            assert job.since == claimed.at
        assert [step.node for step in job.steps] == ["pay:1", f"pay:{EVENTS}"]

    play(story())
