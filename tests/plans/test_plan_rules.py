"""The rules of plans, one per test, in memory. They are quick, because the mutants run them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, InvalidPlan, Plan, RunFailed, extend
from holdfast.plans import Draft, Extension
from holdfast.plans.model import Case
from support.stories import drain, play, quick


@pytest.fixture
def app() -> App:
    made = App("rules", config=quick("memory:"))

    @made.step
    async def give(value: Any = None) -> Any:
        return value

    @made.step
    async def fail() -> None:
        raise ValueError("no")

    return made


def test_true_is_not_one_and_text_is_no_number() -> None:
    equals = Case(then=("a",), equals=1)
    above = Case(then=("a",), above=0)
    assert [equals.holds(value) for value in (1, True, "1", None)] == [True, False, False, False]
    assert [above.holds(value) for value in (1, True, "1", None)] == [True, False, False, False]
    inside = Case(then=("a",), equals=[1, {"x": [0]}])
    assert [inside.holds(value) for value in ([1, {"x": [0]}], [1.0, {"x": [0]}])] == [True, True]
    for other in ([True, {"x": [0]}], [1, {"x": [False]}], [1], [1, {"y": [0]}], {"x": 1}):
        assert not inside.holds(other)
    assert Case(then=("a",), any_of=[[1], True]).holds([True]) is False
    assert Plan.from_dict({"nodes": []}).nodes == ()


async def ended(app: App, job: Any, **given: Any) -> tuple[dict[str, Any], list[Any]]:
    """Run a plan to its end: what it gave, and its events."""
    run = await job.astart(**given)
    await drain(app)
    return await run.aresult(timeout=60), await run.aevents()


def begun(events: list[Any]) -> list[str]:
    return [one.payload["node"].partition(":")[2] for one in events if one.type == "node_started"]


def test_what_depends_on_a_failed_node_is_not_begun(app: App) -> None:
    draft = app.plan("p")
    draft.call("give", id="behind", after=draft.call("fail"))
    draft.call("give", id="beside")

    async def story() -> None:
        run = await draft.astart()
        await drain(app)
        with pytest.raises(RunFailed):
            await run.aresult(timeout=60)
        assert sorted(begun(await run.aevents())) == ["beside", "fail"]

    play(story())


def test_with_fail_fast_nothing_is_begun_after_a_failure(app: App) -> None:
    draft = app.plan("p", policy="fail_fast", limit=1)
    draft.call("fail")
    last = draft.call("give", id="first")
    draft.call("give", id="second", after=last)

    async def story() -> None:
        run = await draft.astart()
        await drain(app)
        with pytest.raises(RunFailed, match="1 of 3 nodes"):
            await run.aresult(timeout=60)
        assert begun(await run.aevents()) == ["fail"]

    play(story())


def test_a_choice_is_recorded_and_what_it_does_not_name_is_skipped(app: App) -> None:
    draft = app.plan("p")
    draft.call("give", id="one")
    draft.call("give", id="other")
    draft.choice(1, [{"equals": 1, "then": ["one"]}], otherwise=["other"], id="which")

    async def story() -> None:
        gave, events = await ended(app, draft)
        assert (gave, begun(events)) == ({"one": None}, ["one"])
        recorded = [one.payload for one in events if one.type == "value_recorded"]
        assert recorded == [{"node": "choice:which", "value": ["one"]}]

    play(story())


def test_an_extension_waits_for_those_that_were_taken_before_it(app: App) -> None:
    heard = asyncio.Event()

    @app.step
    async def more(name: str) -> Extension:
        await (heard.wait() if name == "late" else asyncio.sleep(0))
        added = Draft()
        added.returns(added.call("hear", name=name, id=f"by_{name}"))
        return extend(added)

    @app.tool
    async def hear(name: str) -> str:
        heard.set()
        return name

    draft = app.plan("p")
    draft.call(more, name="late", id="late")
    draft.call(more, name="early", id="early")
    draft.wait("go")

    async def story() -> None:
        run = await draft.astart()
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == "late"

    play(story())


def test_no_more_calls_are_made_at_once_than_the_limit_says(app: App) -> None:
    now, most = 0, 0

    @app.step
    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    draft = app.plan("p", limit=2)
    for place in range(5):
        draft.call(work, id=f"n{place}")

    async def story() -> None:
        await ended(app, draft)
        assert most == 2

    play(story())


def test_a_planner_is_asked_once(app: App) -> None:
    asked: list[int] = []

    @app.planner
    async def plan() -> Draft:
        asked.append(1)
        draft = Draft()
        draft.wait("go")
        return draft

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        await run.asignal("go", 1)
        await drain(app)
        assert (await run.aresult(timeout=60), asked) == ({"go": 1}, [1])

    play(story())


def test_a_literal_is_given_as_it_is(app: App) -> None:
    draft = app.plan("p")
    draft.call("give", value={"$literal": {"$ref": "nowhere"}})

    async def story() -> None:
        assert (await ended(app, draft))[0] == {"give": {"$ref": "nowhere"}}

    play(story())


def test_a_circle_is_refused_before_anything_is_stored(app: App) -> None:
    draft = app.plan("p")
    draft.call("give", id="a", after="b")
    draft.call("give", id="b", after="a")

    async def story() -> None:
        with pytest.raises(InvalidPlan, match="a → b → a"):
            await draft.astart()
        assert await app.alist() == []

    play(story())


def test_what_a_run_follows_is_what_was_recorded_with_it(app: App) -> None:
    draft = app.plan("p")
    draft.call("give", id="first")

    async def story() -> None:
        run = await draft.astart()
        draft.call("give", id="later")
        await drain(app)
        assert await run.aresult(timeout=60) == {"first": None}

    play(story())


def test_a_fork_does_again_what_depends_on_what_is_done_again(app: App) -> None:
    draft = app.plan("p")
    first = draft.call("give", id="first", value=1)
    draft.call("give", id="third", value=draft.call("give", id="second", value=first))

    async def story() -> None:
        run = await draft.astart()
        await drain(app)
        fork = await app.afork(run.id, from_node="second")
        await drain(app)
        events = await fork.aevents()
        behind = events[[one.type for one in events].index("job_requeued") :]
        assert (await fork.aresult(timeout=60), begun(behind)) == ({"third": 1}, ["second", "third"])

    play(story())
