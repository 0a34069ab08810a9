"""What users get wrong, and what happens then: a clear word at once, nothing stored, nobody else disturbed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import (
    App,
    Config,
    InvalidArguments,
    PayloadTooLarge,
    RunFailed,
    StepFailed,
    UnknownEntry,
    wait_for,
)
from support.stories import drain, play, quick

LIMIT = 1000
BIG = "x" * LIMIT  # with its quotes two bytes over


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


# What JSON cannot hold exactly, and what is said about it.
UNFIT = [
    pytest.param(object(), "object is not JSON", id="object"),
    pytest.param({("a", 1): 1}, "Only dicts with str-like or number-like keys", id="keys"),
    pytest.param({"a": [1.0, float("nan")]}, "it holds nan", id="nan"),
    pytest.param(float("-inf"), "it holds -inf", id="infinity"),
    pytest.param({"a": "\ud800"}, r"it holds '\\ud800', which is no Unicode text", id="surrogate"),
    pytest.param(nested(62), "it nests deeper than 60 levels", id="deep"),
    pytest.param(nested(100_000), "it holds itself, or nests too deep", id="very deep"),
    pytest.param(itself(), "it holds itself, or nests too deep", id="holds itself"),
]
BY_VALUE = pytest.mark.parametrize(("value", "said"), UNFIT)


@pytest.fixture
def small(url: str) -> Any:
    made = App("shop", config=quick(url, payload_bytes_max=LIMIT))
    yield made
    made.close()


async def ended(app: App, job: Any, *args: Any) -> Any:
    """Run a job to its end: its result, or the text of its failure. One attempt must do."""
    handle = await app.astart(job, *args)
    await drain(app)
    assert (await app.averify()) == {}
    claims = [event for event in await handle.aevents() if event.type == "job_running"]
    assert len(claims) <= 2, "a value that cannot be kept is no crash"
    try:
        return await handle.aresult(timeout=5)
    except RunFailed as failure:
        return str(failure)


# Names and arguments


def test_an_unknown_entry_is_refused_with_the_names_there_are_and_nothing_is_stored(app: App) -> None:
    with pytest.raises(UnknownEntry, match="there is no job 'work'; there are: none"):
        app.start("work")

    @app.job
    async def work() -> None:
        pass

    with pytest.raises(UnknownEntry, match="there is no job 'wrok'; there are: work"):
        app.start_many("wrok", [{}])
    assert app.list() == []


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "work: missing a required argument: 'sku'"),
        (("A1", 2, 3), {}, "work: too many positional arguments"),
        ((), {"sku": "A1", "colour": "red"}, "work: got an unexpected keyword argument 'colour'"),
        ((5,), {}, "work: sku: Expected `str`, got `int`"),
        (("A1", "two"), {}, "work: count: Expected `int`, got `str`"),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_nothing_is_stored(app: App, args: Any, kwargs: Any, said: str) -> None:
    @app.job
    async def work(sku: str, count: int = 1) -> None:
        pass

    with pytest.raises(InvalidArguments, match=said):
        app.start(work, *args, **kwargs)
    assert app.list() == []


def test_one_wrong_among_many_starts_none(app: App) -> None:
    @app.job
    async def work(n: int) -> None:
        pass

    with pytest.raises(InvalidArguments, match="work: n: Expected `int`, got `str`"):
        app.start_many(work, [{"n": 1}, {"n": "two"}, {"n": 3}])
    assert app.list() == []


def test_wrong_arguments_of_a_step_fail_the_job_at_once_and_name_the_step(app: App) -> None:
    @app.step(retries=5)
    async def price(sku: str) -> int:
        raise AssertionError(f"called with {sku!r}")

    @app.job(retries=5)
    async def work() -> int:
        return await price(7)  # type: ignore[arg-type]

    assert "price: sku: Expected `str`, got `int`" in play(ended(app, work))


# Values that cannot be kept


@BY_VALUE
def test_arguments_that_json_cannot_hold_are_refused_and_nothing_is_stored(app: App, value: Any, said: str) -> None:
    @app.job
    async def work(given: Any, **more: Any) -> None:
        pass

    with pytest.raises(InvalidArguments, match=f"work: given cannot be kept as JSON: {said}"):
        app.start(work, value)
    with pytest.raises(InvalidArguments, match=f"work: other cannot be kept as JSON: {said}"):
        app.start(work, 1, other=value)
    assert app.list() == []


@BY_VALUE
def test_a_steps_result_that_json_cannot_hold_fails_the_step_once_and_the_job_may_go_on(
    app: App, value: Any, said: str
) -> None:
    calls: list[int] = []

    @app.step(retries=5)
    async def give() -> Any:
        calls.append(1)
        return value

    @app.step
    async def take(given: Any) -> str:
        raise AssertionError(f"called with {given!r}")

    @app.job
    async def work() -> list[str]:
        with pytest.raises(StepFailed, match=f"InvalidResult: the result of give cannot be kept: {said}"):
            await give()
        with pytest.raises(InvalidArguments, match=f"take: given cannot be kept as JSON: {said}"):
            await take(value)
        return ["went on"]

    assert play(ended(app, work)) == ["went on"]
    assert calls == [1], "trying again is no use"


@BY_VALUE
def test_a_jobs_result_that_json_cannot_hold_fails_the_job_with_that_reason(app: App, value: Any, said: str) -> None:
    @app.job(retries=5)
    async def work() -> Any:
        return value

    story = ended(app, work)
    with pytest.raises(RunFailed, match=f"the result of work cannot be kept: {said}"):
        raise RunFailed(play(story))


@BY_VALUE
def test_a_signal_that_json_cannot_hold_is_refused_and_the_job_waits_on(app: App, value: Any, said: str) -> None:
    @app.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        with pytest.raises(
            InvalidArguments, match=f"the payload of the signal 'go': it cannot be kept as JSON: {said}"
        ):
            await handle.asignal("go", value)
        assert await app.store().inbox(handle.id) == []
        with pytest.raises(InvalidArguments, match=f"the result of charge: it cannot be kept as JSON: {said}"):
            await app.aresolve(handle.id, "charge", done=value)
        assert await handle.asignal("go", "now") == "delivered"
        await drain(app)
        assert await handle.aresult() == "now"

    play(story())


def test_a_signal_that_cannot_be_kept_disturbs_none_that_is_sent_beside_it(app: App) -> None:
    """Writes of one moment share a transaction: a bad one must not take the others with it."""

    @app.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        runs = [await app.astart(work) for _ in range(3)]
        sent = [run.asignal("go", payload) for run, payload in zip(runs, [1, object(), 3], strict=True)]
        first, second, third = await asyncio.gather(*sent, return_exceptions=True)
        assert (first, third) == ("kept", "kept")
        assert isinstance(second, InvalidArguments)

    play(story())


def test_what_is_sent_is_kept_as_it_was_whatever_the_sender_does_with_it_later(app: App) -> None:
    @app.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        handle = await app.astart(work)
        payload = {"list": [1]}
        await handle.asignal("go", payload)
        payload["list"].append(2)
        await drain(app)
        assert await handle.aresult() == {"list": [1]}

    play(story())


# Values that are too large

TOO_LARGE = "1,002 bytes of JSON, and 1,000 are allowed: keep the data elsewhere and pass a reference to it, or raise"


def test_arguments_over_the_limit_are_refused_and_nothing_is_stored(small: App) -> None:
    @small.job
    async def work(text: str, more: str = "") -> int:
        return len(text + more)

    with pytest.raises(PayloadTooLarge, match=f"the arguments of work: {TOO_LARGE}") as refused:
        small.start(work, BIG)
    assert (refused.value.size, refused.value.limit) == (LIMIT + 2, LIMIT)
    with pytest.raises(PayloadTooLarge):
        small.start(work, BIG[: LIMIT // 2], BIG[: LIMIT // 2])
    with pytest.raises(PayloadTooLarge):
        small.start_many(work, [{"text": "a"}, {"text": BIG}])
    assert small.list() == []
    assert play(ended(small, work, BIG[:-2])) == LIMIT - 2, "what just fits is taken"


def test_a_steps_result_over_the_limit_fails_the_step_for_good_and_the_job_may_go_on(small: App) -> None:
    calls: list[int] = []

    @small.step(retries=5)
    async def give() -> str:
        calls.append(1)
        return BIG

    @small.tool
    async def act() -> str:
        return BIG

    @small.job
    async def work() -> str:
        with pytest.raises(StepFailed, match=f"PayloadTooLarge: the result of give: {TOO_LARGE}"):
            await give()
        with pytest.raises(StepFailed, match=f"PayloadTooLarge: the result of act: {TOO_LARGE}"):
            await act()
        return "went on"

    async def story() -> None:
        handle = await small.astart(work)
        await drain(small)
        assert await handle.aresult() == "went on"
        failed = [event.payload for event in await handle.aevents() if event.type == "node_finished"]
        assert [told["result_type"] for told in failed] == ["permanent_failure"] * 2
        assert all("1,002 bytes" in told["reason"] for told in failed)

    play(story())
    assert calls == [1]


def test_arguments_of_a_step_or_child_over_the_limit_fail_the_job_before_anything_is_called(small: App) -> None:
    @small.step
    async def take(text: str) -> None:
        raise AssertionError(f"called with {text}")

    @small.job
    async def child(text: str) -> None:
        raise AssertionError(f"started with {text}")

    @small.job(retries=5)
    async def work() -> None:
        with pytest.raises(PayloadTooLarge, match=f"the arguments of child: {TOO_LARGE}"):
            await child(BIG)
        await take(BIG)

    assert f"the arguments of take: {TOO_LARGE}" in play(ended(small, work))
    assert [record.entry_id for record in small.list()] == ["work"]


def test_a_jobs_result_over_the_limit_fails_the_job_with_that_reason(small: App) -> None:
    @small.job(retries=5)
    async def work() -> str:
        return BIG

    assert f"the result of work: {TOO_LARGE}" in play(ended(small, work))


def test_a_signal_over_the_limit_is_refused_and_the_job_waits_on(small: App) -> None:
    @small.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        handle = await small.astart(work)
        with pytest.raises(PayloadTooLarge, match=f"the payload of the signal 'go': {TOO_LARGE}"):
            await handle.asignal("go", BIG)
        with pytest.raises(PayloadTooLarge, match=f"the result of charge: {TOO_LARGE}"):
            await small.aresolve(handle.id, "charge", done=BIG)
        assert await small.store().inbox(handle.id) == []
        await handle.asignal("go", "small")
        await drain(small)
        assert await handle.aresult() == "small"

    play(story())


def test_the_limit_is_a_mebibyte_unless_said() -> None:
    assert Config().payload_bytes_max == 1024 * 1024
    assert Config.read(None, {"HOLDFAST_PAYLOAD_BYTES_MAX": "5"}).payload_bytes_max == 5
    for wrong in (0, 9 * 1024 * 1024):
        with pytest.raises(ValueError, match="payload_bytes_max must be from 1 to 8,388,608"):
            Config(payload_bytes_max=wrong)


def test_the_largest_limit_that_can_be_set_can_be_used(url: str) -> None:
    """A value at the limit and all that is written beside it fit into one event: of a child's end, twice."""
    app = App("shop", config=quick(url, payload_bytes_max=8 * 1024 * 1024))

    @app.job
    async def child(text: str) -> str:
        return text

    @app.job
    async def work() -> int:
        return len(await child("x" * (8 * 1024 * 1024 - 2)))

    assert play(ended(app, work)) == 8 * 1024 * 1024 - 2
    app.close()
