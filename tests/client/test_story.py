"""The story of a run: applied up to any event, its patches give what the fold knows at that event, on every store."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, example
from hypothesis import strategies as st

from holdfast import App, Plan, StepFailed, sleep, wait_for
from holdfast.client.overview import story_cache
from holdfast.client.overview.story import Story, StoryEvent
from holdfast.errors import UnknownJob
from holdfast.machines import Event, Fold, fold, runs, seal
from holdfast.plans.node_history import NodeHistory
from holdfast.plans.node_states import NodeStates
from holdfast.store.memory import MemoryStore
from holdfast.store.rows import Job, rebuilt
from support.planned import Witness, calculator, random_plan, signals_of
from support.stories import drain, play, quick
from support.streams import Author, sealed
from support.timeless import given, settings

SEEDS = st.integers(0, 2**32 - 1)
OPEN = {"running", "lost", "in_doubt"}


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch, as RFC 7396 section 2 writes it."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def check_every_position(events: list[Event], told: list[StoryEvent]) -> None:
    """Compare the view at every event with the strict readers of the stream up to there."""
    assert [item.seq for item in told] == [event.seq for event in events]
    view: dict[str, Any] = {}
    whole = Story()
    for count, (event, item) in enumerate(zip(events, told, strict=True), 1):
        view = merge(view, item.changes)
        whole.push(event)
        assert view == whole.view, f"the patches up to event {count} give the view"
        known, record = fold(events[:count]), runs(events[:count])[-1]
        assert view["state"] == known.state
        assert view.get("attempt", 0) == known.attempt
        run = view["run"]
        assert (run["id"], run["number"], run["status"]) == (record.run_id, known.run, record.status)
        assert run.get("stage") == record.stage
        assert item.run_id == record.run_id
        places = known.wait.places() if known.wait is not None else ()
        waiting = view.get("waiting", {})
        if places:
            assert set(waiting) == {place.correlation_key for place in places}
        else:
            assert set(waiting) <= {"retry", "gate"}
            assert bool(waiting) is (known.not_before is not None)
        calls = view.get("calls", {})
        unfinished = {name: call for name, call in calls.items() if call["status"] in OPEN}
        assert set(unfinished) == set(known.open_steps)
        here = known.state == "running" and known.purpose is None
        for name, call in unfinished.items():
            step = known.open_steps[name]
            left = "in_doubt" if step.tool else "lost"
            assert call["status"] == ("running" if here and step.attempt == known.attempt else left)
        assert {name for name, call in calls.items() if call["status"] == "done"} >= known.committed
        assert ("worker" in view) is here
        assert "cancel" not in view or known.cancel is not None
        past = NodeHistory(events[:count])
        if past.plan is not None:
            states = NodeStates(Plan.from_dict(past.plan), past)
            shown = {name: node["status"] for name, node in view.get("nodes", {}).items()}
            assert shown == {name: state.replace(" ", "_") for name, state in states.states.items()}
            items = {name: sum(node["items"].values()) for name, node in view["nodes"].items() if "items" in node}
            assert items == {name: len(each) for name, each in states.items.items() if each}


@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(seed=SEEDS)
def test_the_view_at_every_event_of_a_legal_stream_is_what_the_fold_knows(seed: int) -> None:
    events = sealed(Author(random.Random(seed)).write(30))
    check_every_position(events, [*map(Story().push, events)])


@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([
                "job_created", "job_running", "job_waiting", "wait_completed", "job_requeued", "job_completed",
                "job_failed", "job_leased", "node_started", "node_finished", "command_committed", "value_recorded",
                "tool_invocation_started", "tool_invocation_finished", "plan_generated", "cancel_requested", "newer",
            ]),
            st.fixed_dictionaries({}, optional={
                "node": st.sampled_from(["a", "job.k:1", "job.k:1:id", "wait:x", "wait:x:ended", "sleep:1:until", 3]),
                "correlation_key": st.sampled_from(["k", "holdfast:child:job.k:1", None, 7]),
                "value": st.sampled_from([None, "run-1", 4, {"outcome": "done", "payload": 3}, {"outcome": "cut_off"}]),
                "outcome": st.sampled_from(["signal", "expired", "resolved", 5]),
                "payload": st.sampled_from([None, {"answer": "done"}, {"state": "failed"}, "x"]),
                "also": st.sampled_from([None, 3, [4], [{"node": "wait:x", "correlation_key": "x"}]]),
                "plan": st.sampled_from([None, {}, {"nodes": 3}, {"nodes": [{"id": "a", "call": "f"}]}]),
                "result_type": st.sampled_from(["success", "retryable_failure", 4]),
                "try": st.sampled_from([1, 2, 0, "x"]), "retry_at": st.sampled_from([5.0, "x"]),
                "reason": st.sampled_from(["lease_expired", 5]), "worker": st.sampled_from(["w", 5]),
                "not_before": st.sampled_from([9.0, "x"]), "purpose": st.sampled_from(["pause", "cancel", 5]),
            }),
        ),
        max_size=30,
    ),
)  # fmt: skip
def test_a_damaged_stream_has_a_story_whose_patches_give_its_view(letters: list[tuple[str, dict[str, Any]]]) -> None:
    events: list[Event] = []
    for name, payload in letters:
        events.append(seal(events[-1] if events else None, name, payload, at=5.0, attempt=1, job="j"))
    story = Story()
    view: dict[str, Any] = {}
    for event in events:
        view = merge(view, story.push(event).changes)
        assert view == story.view
        assert None not in view.values()
        assert {} not in view.values()


async def planned(data: dict[str, Any], *, retry: bool = False) -> list[Event]:
    app = calculator(MemoryStore(), quick("memory:"), Witness())
    run = await app.plan("random", Plan.from_dict(data)).astart()
    for key, payload in signals_of(data).items():
        await run.asignal(key, payload)
    await drain(app)
    if retry and (await run.arecord()).status == "failed":
        await app.aretry(run.id, actor="ana", reason="again")
        await drain(app)
    events: list[Event] = await run.aevents()
    return events


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=SEEDS)
@example(seed=12)  # a map without items
def test_the_nodes_of_a_plan_have_at_every_event_the_states_that_the_plan_says(seed: int) -> None:
    events = play(planned(random_plan(seed, 12), retry=True))
    check_every_position(events, [*map(Story().push, events)])


def everything(app: App) -> None:
    """Declare a job that does all that a story can tell."""

    @app.step(retries=1)
    async def flaky(n: int) -> int:
        if not seen:
            seen.append(n)
            raise ValueError("no luck")
        return n

    seen: list[int] = []

    @app.tool
    async def charge(card: str) -> str:
        raise RuntimeError(f"refused {len(card)}")

    @app.job
    async def child(n: int) -> int:
        return n

    @app.job
    async def main() -> int:
        await flaky(1)
        with contextlib.suppress(StepFailed):
            await charge("4242 4242 4242 4242")
        await sleep(0.001)
        await child(2)
        return int(await wait_for("go", timeout="1h"))


def test_on_every_store_the_pages_of_a_story_give_the_run_at_every_event_and_no_payload(app: App) -> None:
    everything(app)

    async def story() -> None:
        run = await app.astart("main")
        await drain(app)
        begun = await app.astory(run.id)
        await run.asignal("go", 77_001)
        await drain(app)
        events = await run.aevents()
        whole = await app.astory(run.id)
        assert whole[: len(begun)] == begun, "a story only grows"
        paged: list[StoryEvent] = []
        while page := await app.astory(run.id, after=paged[-1].seq if paged else 0, limit=4):
            paged += page
        assert paged == whole
        check_every_position(events, whole)
        assert "4242" not in str(whole)
        assert "77001" not in str(whole)
        view: dict[str, Any] = {}
        for item in whole:
            view = merge(view, item.changes)
        calls = {call["name"]: call for call in view["calls"].values()}
        assert {name: (call["kind"], call["status"]) for name, call in calls.items()} == {
            "flaky": ("step", "done"), "charge": ("tool", "failed"), "0.001": ("sleep", "done"),
            "child": ("child", "done"), "go": ("wait", "done"),
        }  # fmt: skip
        assert [each["status"] for each in calls["flaky"]["tries"].values()] == ["failed", "done"]
        assert calls["flaky"]["tries"]["1"]["error"] == "ValueError: no luck"
        assert view["children"] == {
            calls["child"]["run"]: {
                "entry": "child",
                "status": "completed",
                "call": f"{next(iter(view['children'].values()))['call']}",
            }
        }
        assert [lease["how"] for lease in view["leases"].values()][-1] == "completed"
        with pytest.raises(UnknownJob):
            await app.astory("missing")

    play(story())


def test_a_try_in_doubt_ends_with_its_worker_and_is_settled_by_the_answer() -> None:
    events = sealed([
        ("job_created", {}), ("job_running", {"worker": "w"}),
        ("tool_invocation_started", {"node": "charge:1", "name": "charge", "try": 1}),
        ("node_started", {"node": "look:1", "name": "look", "try": 1}),
        ("job_requeued", {"reason": "lease_expired"}), ("job_running", {"worker": "v"}),
        ("job_waiting", {"node": "charge:1", "correlation_key": "holdfast:doubt:charge:1", "wait_type": "human"}),
        ("wait_completed", {"node": "charge:1", "correlation_key": "holdfast:doubt:charge:1", "outcome": "resolved",
                            "payload": {"answer": "done", "result": "ch_1", "actor": "ana"}}),
        ("job_running", {"worker": "v"}),
        ("tool_invocation_finished", {"node": "charge:1", "name": "charge", "result": "ch_1"}),
    ])  # fmt: skip
    story = Story()
    for event in events:
        story.push(event)
    call = story.view["calls"]["charge:1"]
    assert call["answer"] == {"answer": "done", "by": "ana", "at": 1008.0}
    assert call["tries"] == {
        "1": {"from": 1003.0, "to": 1005.0, "settled": 1010.0, "status": "done", "attempt": 1, "worker": "w"}
    }
    assert story.view["calls"]["look:1"]["status"] == "lost"
    assert story.view["leases"]["1"] == {"worker": "w", "from": 1002.0, "to": 1005.0, "how": "lost"}


def test_a_wait_names_who_answered_and_another_wait_for_the_same_key_begins_later() -> None:
    wait = {"node": "wait:ok", "correlation_key": "ok", "wait_type": "human"}
    again = {"node": "wait:ok#2", "correlation_key": "ok", "wait_type": "signal"}
    events = sealed([
        ("job_created", {}), ("job_running", {"worker": "w"}), ("job_waiting", wait),
        ("wait_completed", {**wait, "outcome": "signal", "payload": 1, "signal": "s", "actor": "ana"}),
        ("job_running", {"worker": "w"}), ("job_waiting", again),
        ("wait_completed", {"node": "holdfast", "correlation_key": "ok", "outcome": "signal"}),
        ("job_running", {"worker": "w"}), ("job_waiting", {**again, "also": [{**wait, "node": "wait:ok#3"}]}),
    ])  # fmt: skip
    story = Story()
    for event in events:
        story.push(event)
    assert story.view["calls"]["wait:ok"]["answer"] == {"by": "ana", "at": 1004.0}
    assert "answer" not in story.view["calls"]["wait:ok#2"]
    assert story.view["waiting"]["ok"]["since"] == 1006.0


def long_stream(calls: int) -> list[Event]:
    """Write a stream of two events per call, after its first two."""
    letters: list[tuple[str, dict[str, Any]]] = [("job_created", {}), ("job_running", {"worker": "w"})]
    for number in range(calls):
        letters.append(("node_started", {"node": f"f:{number}", "name": "f", "try": 1, "args": {"n": number}}))
        letters.append(("command_committed", {"node": f"f:{number}", "name": "f", "result": number}))
    return sealed(letters)


def map_stream(items: int) -> list[Event]:
    plan = {"name": "p", "nodes": [{"id": "m", "map": "f", "over": list(range(items)), "args": {}}]}
    letters: list[tuple[str, dict[str, Any]]] = [("job_created", {}), ("plan_generated", {"plan": plan})]
    letters.append(("job_running", {"worker": "w"}))
    for number in range(items):
        letters.append(("node_started", {"node": f"f:m[{number}]", "name": "f", "try": 1}))
        letters.append(("command_committed", {"node": f"f:m[{number}]", "name": "f", "result": number}))
    return sealed(letters)


def chain_stream(nodes: int) -> list[Event]:
    listed = [{"id": f"n{n}", "call": "f", "after": [f"n{n - 1}"] if n else []} for n in range(nodes)]
    letters: list[tuple[str, dict[str, Any]]] = [("job_created", {}), ("plan_generated", {"plan": {"nodes": listed}})]
    letters.append(("job_running", {"worker": "w"}))
    for number in range(nodes):
        letters.append(("node_started", {"node": f"f:n{number}", "name": "f", "try": 1}))
        letters.append(("command_committed", {"node": f"f:n{number}", "name": "f", "result": number}))
    return sealed(letters)


@pytest.mark.parametrize("stream", [long_stream, map_stream, chain_stream])
def test_a_story_costs_the_same_per_event_however_long_it_is(stream: Callable[[int], list[Event]]) -> None:
    short, long = stream(50), stream(600)

    def cost(events: list[Event]) -> float:
        story, began = Story(), time.process_time()
        for event in events:
            story.push(event)
        return (time.process_time() - began) / len(events)

    ratio = min(cost(long) for _ in range(3)) / min(cost(short) for _ in range(5))
    assert ratio < 4, "an event costs as much in a long story, and not twelve times as much"


class Counting(MemoryStore):
    """A store that counts the events that were read, and says how often the loop was free meanwhile."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__()
        self.stream, self.read, self.largest = events, 0, 0

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Event]:
        del job
        page = self.stream[after : after + (limit or len(self.stream))]
        self.read, self.largest = self.read + len(page), max(self.largest, len(page))
        return page


def row_of(events: list[Event]) -> Any:
    """Return the row of a job with this stream."""
    return rebuilt(Job(id=events[0].job, created_at=0.0, plugin="p", entry="e"), events)


def test_the_next_page_of_a_story_reads_only_its_own_events_and_other_tasks_run_meanwhile() -> None:
    events = long_stream(1000)
    store, cache, row = Counting(events), story_cache.StoryCache(), row_of(events)

    async def story() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        pages = [await cache.read(store, row, after, 500) for after in range(0, 2002, 500)]
        assert turns >= len(events) / story_cache.TURN / 2
        other.cancel()
        assert [event.seq for page in pages for event in page] == list(range(1, 2003))
        assert store.read <= len(events) + story_cache.READ_MAX, "no event was read twice"
        again = await asyncio.gather(*(cache.read(store, row, 500, 500) for _ in range(20)))
        assert all(page == pages[1] for page in again)
        assert await cache.read(store, row, 10**15, 500) == await cache.read(store, row, len(events), 500) == []
        assert store.read <= len(events) + story_cache.READ_MAX

    play(story())


def test_large_events_are_read_few_at_a_time() -> None:
    big = sealed([("job_created", {}), *[("trace_noted", {"text": "x" * 300_000})] * 60])
    store = Counting(big)
    play(story_cache.StoryCache().read(store, row_of(big), 0, 100))
    assert store.largest == story_cache.READ_MIN


def test_kept_stories_are_bounded_and_a_restored_store_is_not_told_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_cache, "CACHE_BYTES", 120 * story_cache.EVENT_BYTES)
    cache = story_cache.StoryCache()
    letters: list[tuple[str, dict[str, Any]]] = [("job_created", {}), *[("trace_noted", {"n": 1})] * 19]

    async def story() -> None:
        for number in range(20):
            events = sealed(letters, f"job-{number}")
            await cache.read(Counting(events), row_of(events), 0, 100)
        assert 1 < len(cache._kept) <= 6
        events = sealed([*letters[:-1], ("trace_noted", {"n": 2})], "job-19")
        store = Counting(events)
        told = await cache.read(store, row_of(events), 0, 100)
        assert (len(told), store.read) == (20, 20)
        long = sealed([("job_created", {}), *[("trace_noted", {"n": 1})] * 99], "long")
        store = Counting(long)
        pages = [await cache.read(store, row_of(long), after, 80) for after in (0, 80)]
        assert (sum(map(len, pages)), store.read) == (100, 100), "the state is kept where the events are too many"
        assert len(await cache.read(store, row_of(long), 0, 10)) == 10

    play(story())


def test_a_fold_is_lenient_where_a_story_is() -> None:
    reader = Fold()
    assert reader.push("job_completed") is not None
    assert Story().push(seal(None, "job_completed", {}, at=1.0, attempt=1, job="j")).changes["state"] == "completed"
