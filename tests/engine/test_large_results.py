"""Results that are too large for an event: blobs, which a replay, a client, a move and a purge treat as the result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, InvalidArguments, RunFailed, StepFailed, wait_for
from holdfast.client.verify import check_replay
from holdfast.engine import job_attempt
from holdfast.errors import PayloadTooLarge
from holdfast.group_commit import Events, Journal, Writer
from holdfast.store import Store
from holdfast.store.result_blobs import FIELD
from support.stories import drain, play, quick

LIMIT = 1000  # bytes of an event's result
MOST = 1_000_000


def text(size: int) -> str:
    """Text whose JSON has so many bytes."""
    return "x" * (size - 2)


@pytest.fixture(params=["in the store", "in a directory"])
def large(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[App]:
    blobs = str(tmp_path / "blobs") if request.param == "in a directory" else ""
    config = quick(url, payload_bytes_max=LIMIT, result_bytes_max=MOST, blobs=blobs)
    app = App("shop", config=config)
    yield app
    app.close()


async def blobs_of(app: App, job: str) -> list[str]:
    """The blobs that the events of a job name."""
    return [event.payload[FIELD]["blob"] for event in await app.aevents(job) if FIELD in event.payload]


async def has(app: App, job: str, blob: str) -> bool:
    """Whether a blob is there."""
    store: Store = app.store()
    if await store.blob(job, blob, 1) is not None:
        return True
    return bool(app.config.blobs) and (Path(app.config.blobs) / job / blob).exists()


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 700_000, MOST])
def test_a_result_up_to_its_limit_is_the_result(large: App, size: int) -> None:
    @large.job
    async def give() -> str:
        return text(size)

    async def story() -> None:
        run = await large.astart("give")
        await drain(large)
        assert await run.aresult() == text(size)
        assert len(await blobs_of(large, run.id)) == int(size > LIMIT)
        assert await large.averify(run.id) == {}

    play(story())


def test_a_replay_has_the_large_results_of_steps_and_tools_and_makes_no_call_again(large: App) -> None:
    made: list[str] = []

    @large.step
    async def read(name: str) -> list[str]:
        made.append(name)
        return [name, text(2 * LIMIT)]

    @large.tool
    async def send(size: int) -> dict[str, Any]:
        made.append("send")
        return {"sent": text(size)}

    @large.job
    async def copy() -> int:
        pages = [await read("a"), await read("b")]
        receipt = await send(400_000)
        await wait_for("go")
        return sum(len(page[1]) for page in pages) + len(receipt["sent"])

    async def story() -> None:
        run = await large.astart("copy")
        await drain(large)
        assert made == ["a", "b", "send"]
        assert len(await blobs_of(large, run.id)) == 3
        await large.asignal(run.id, "go")
        await drain(large)
        assert await run.aresult() == 2 * (2 * LIMIT - 2) + 400_000 - 2
        assert made == ["a", "b", "send"]
        events = await large.awith_results(await large.aevents(run.id))
        assert (await check_replay(large, events)).fits
        with pytest.raises(InvalidArguments, match=r"the result of read:[0-9a-f]+ has 2,006 bytes, which a fork"):
            await large.afork(run.id, from_step="wait:go")
        again = await large.afork(run.id, from_step="read")
        await large.asignal(again.id, "go")
        await drain(large)
        assert await again.aresult() == await run.aresult()

    play(story())


def test_a_result_over_its_limit_is_refused_with_the_name_of_the_option(large: App) -> None:
    @large.step
    async def read() -> str:
        return text(MOST + 1)

    @large.job
    async def give() -> str:
        try:
            await read()
        except StepFailed as error:
            assert "1,000,001 bytes of JSON; the limit is 1,000,000" in error.reason
            assert "raise result_bytes_max (HOLDFAST_RESULT_BYTES_MAX)" in error.reason
        return text(MOST + 1)

    async def story() -> None:
        run = await large.astart("give")
        await drain(large)
        with pytest.raises(RunFailed, match=r"the result of give: 1,000,001 bytes of JSON; .* raise result_bytes_max"):
            await run.aresult()
        assert await blobs_of(large, run.id) == []

    play(story())


def test_the_result_of_a_child_has_the_limit_of_an_event_in_its_parents_history(large: App) -> None:
    @large.job
    async def child() -> str:
        return text(LIMIT + 1)

    @large.job
    async def parent() -> str:
        try:
            return await child()
        except StepFailed as error:
            return error.reason

    async def story() -> None:
        run = await large.astart("parent")
        await drain(large)
        assert "raise payload_bytes_max" in await run.aresult()

    play(story())


def test_a_purge_removes_the_results_with_the_run(large: App) -> None:
    @large.job
    async def give() -> str:
        return text(500_000)

    async def story() -> None:
        kept, gone = await large.astart("give"), await large.astart("give")
        await drain(large)
        (blob,) = await blobs_of(large, gone.id)
        assert await has(large, gone.id, blob)
        assert await large.apurge(older_than=0, limit=1) == 1
        left = {run.run_id for run in await large.alist()}
        assert len(left) == 1
        for run in (kept, gone):
            assert await has(large, run.id, blob) is (run.id in left)

    play(story())


def test_the_refusal_of_an_export_names_its_own_option() -> None:
    error = PayloadTooLarge("the export 'page'", 3, 2, "export_bytes_max")
    assert "raise export_bytes_max (HOLDFAST_EXPORT_BYTES_MAX)" in str(error)


def test_the_loop_goes_on_while_a_large_result_is_written(large: App) -> None:
    """The pieces of a result are separate writes, so that other jobs write between them."""

    @large.job
    async def give() -> str:
        return text(MOST)

    @large.step
    async def tick(number: int) -> int:
        return number

    @large.job
    async def count() -> int:
        return sum([await tick(number) for number in range(3)])

    async def story() -> None:
        runs = [await large.astart(name) for name in ("give", "count", "give", "count")]
        await drain(large)
        results = await asyncio.gather(*(run.aresult() for run in runs))
        assert results == [text(MOST), 3, text(MOST), 3]

    play(story())


def test_code_with_large_results_is_not_far_ahead_of_the_disk(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most, size, jobs = 50_000, 10_000, 4
    monkeypatch.setattr(job_attempt, "BYTES_UNDER_WAY_MAX", most)
    append, journals, seen = Journal.append, set(), []

    def watched(journal: Journal, writer: Writer, events: Events) -> None:
        append(journal, writer, events)
        journals.add(journal)
        seen.append(journal.bytes_under_way)

    monkeypatch.setattr(Journal, "append", watched)
    app = App("shop", config=quick(url))

    @app.step
    async def make(number: int) -> str:
        return f"{number % 10}" * size

    @app.job
    async def many() -> int:
        return sum([len(await make(number)) for number in range(20)])

    async def story() -> None:
        await app.astart_many(many, [{} for _ in range(jobs)])
        await drain(app)
        assert (await app.astats()).runs == {"succeeded": jobs}

    play(story())
    app.close()
    assert size < max(seen) <= most + jobs * 2 * size, "each job may be in a step when the limit is reached"
    assert {journal.bytes_under_way for journal in journals} == {0}
