"""What jobs report and produce while they run, on every store (R9, R10)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Config, InvalidArguments, PayloadTooLarge, export, progress, wait_for
from holdfast.errors import UnknownJob
from holdfast.store import Progress
from support.stories import quick


def told(app: App) -> list[dict[str, Any]]:
    """What was written of progress, in order."""
    written: list[dict[str, Any]] = []
    store = app.store()
    commit = store.commit

    async def watched(batch: Any) -> list[Any]:
        written.extend(command.report for command in batch if isinstance(command, Progress))
        return await commit(batch)

    store.commit = watched  # type: ignore[method-assign]  # - looked at, and passed on
    return written


def test_the_last_report_is_kept_and_many_are_few_writes(app: App) -> None:
    @app.job
    async def work() -> None:
        for number in range(1000):
            progress(number / 1000, step=number, step_total=1000, metrics={"n": number})
            if number % 100 == 0:
                await asyncio.sleep(0)
        progress(message="done")

    written = told(app)
    run = work.start()
    app.worker().run(until_idle=True)
    record = run.record()
    assert (record.step, record.step_total, record.message, record.metrics) == (999, 1000, "done", {"n": 999})
    assert record.progress == 1.0, "it has succeeded"
    assert 1 <= len(written) <= 20
    assert not [event for event in run.events() if "progress" in event.type]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_steps_report_too_from_loops_and_threads(app: App, kind: str) -> None:
    async def waiting(share: float) -> None:
        progress(share, stage="in a step")
        export(f"at {share}", "note")

    def plain(share: float) -> None:
        progress(share, stage="in a step")
        export(f"at {share}", "note")

    step: Any = app.step(name="part")(waiting if kind == "async" else plain)

    @app.job
    async def work() -> None:
        await step(0.25)
        await step(0.5)
        raise RuntimeError("half way")

    run = work.start()
    app.worker().run(until_idle=True)
    record = run.record()
    assert (record.status, record.progress, record.stage) == ("failed", 0.5, "in a step")
    assert [one.value for one in app.exports(run.id)] == ["at 0.25", "at 0.5"]
    assert all(one.provisional for one in app.exports(run.id))
    assert record.result_refs == []


def test_a_replay_reports_nothing_that_was_said_before(app: App) -> None:
    @app.step
    async def part(number: int) -> int:
        return number

    @app.job
    async def work() -> int:
        progress(0.1)
        await part(1)
        progress(0.9)
        await wait_for("go")
        return await part(2)

    run = work.start()
    app.worker().run(until_idle=True)
    written = told(app)
    assert run.record().progress == 0.9
    run.signal("go")
    app.worker().run(until_idle=True)
    assert run.record().status == "succeeded"
    assert 0.1 not in [said["progress"] for said in written]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": 1.1}, {"value": -0.1}, {"value": float("nan")}, {"value": "half"}, {"value": True},
        {"stage": "x" * 129}, {"message": "x" * 513}, {"step": 3, "step_total": 2}, {"step": -1}, {"step": 1.5},
        {"eta_seconds": float("inf")},
        {"eta_seconds": -1}, {"metrics": ["rows"]}, {"metrics": {"x": "y" * 20_000}}, {"metrics": {"x": float("nan")}},
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused_and_the_job_may_go_on(wrong: dict[str, Any]) -> None:
    app = App("shop", config=quick("memory:"))
    caught: list[str] = []

    @app.job
    async def work() -> str:
        progress(0.5, step=1, step_total=2)
        try:
            progress(**wrong)
        except (InvalidArguments, PayloadTooLarge) as error:
            caught.append(str(error))
        raise RuntimeError("stop here")

    run = work.start()
    app.worker().run(until_idle=True)
    assert len(caught) == 1
    assert (run.record().progress, run.record().step) == (0.5, 1)
    app.close()


def test_a_step_beyond_a_total_that_was_said_before_is_refused() -> None:
    app = App("shop", config=quick("memory:"))

    @app.job
    async def work() -> None:
        progress(step_total=2)
        progress(step=3)

    run = work.start()
    app.worker().run(until_idle=True)
    error = run.record().error
    assert error is not None
    assert "greater than step_total, got 3 of 2" in error.message
    app.close()


def test_outside_a_job_both_check_and_do_nothing() -> None:
    progress(0.5, stage="here")
    assert asyncio.run(_waited(export("x"))) is None
    with pytest.raises(InvalidArguments):
        progress(2)
    with pytest.raises(InvalidArguments):
        export(object())


async def _waited(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.parametrize("blobs", ["database", "directory"])
def test_things_of_every_kind_and_size_are_listed_in_order_and_read_back(url: str, blobs: str, tmp_path: Path) -> None:
    config = quick(url)
    app = App("shop", config=_with(config, blobs=str(tmp_path / "blobs") if blobs == "directory" else ""))
    file = tmp_path / "table.csv"
    file.write_bytes(b"a,b\n" * 200_000)
    big = {"rows": ["x" * 100] * 2000}

    @app.job
    async def work() -> None:
        export("a line", "text")
        export(file)
        export({"n": [1, None]}, "json")
        await export(big, "big")
        export(b"\0\xff", "bytes")
        export("https://example.org/x", kind="url")
        export("", "empty")

    run = work.start()
    app.worker().run(until_idle=True)
    assert run.record().status == "succeeded", run.record().error
    found = app.exports(run.id)
    assert [(one.number, one.name, one.kind, one.size) for one in found] == [
        (1, "text", "text", 6), (2, "table.csv", "binary", 800_000), (3, "json", "json", 14),
        (4, "big", "json", found[3].size), (5, "bytes", "binary", 2), (6, "url", "url", 21), (7, "empty", "text", 0),
    ]  # fmt: skip
    assert [one.value for one in found] == ["a line", None, {"n": [1, None]}, None, None, "https://example.org/x", ""]
    contents = [b"".join(app.content(run.id, number)) for number in range(1, 8)]
    assert contents[1] == file.read_bytes()
    assert contents[4] == b"\0\xff"
    assert contents[0] == b"a line"
    assert contents[6] == b""
    assert len(contents[3]) == found[3].size > 200_000
    assert found[1].media_type == "text/csv"
    assert not any(one.provisional for one in found)
    assert run.record().result_refs == [f"{run.id}/exports/{number}" for number in range(1, 8)]
    assert [one.number for one in app.exports(run.id, after=2, limit=3)] == [3, 4, 5]
    with pytest.raises(UnknownJob):
        list(app.content(run.id, 8))
    assert app.purge(older_than=0) == 1
    assert not list((tmp_path / "blobs").glob("*")) if blobs == "directory" else True
    app.close()


def _with(config: Config, **fields: Any) -> Config:
    import msgspec

    return msgspec.structs.replace(config, **fields)


def test_a_replay_exports_nothing_twice_and_a_retry_begins_with_what_there_was(app: App) -> None:
    mended: list[bool] = []

    @app.step
    async def inside() -> None:
        export("from a step", "inner")

    @app.job
    async def work() -> None:
        export("first", "outer")
        await inside()
        await wait_for("go")
        export("second", "outer")
        if not mended:
            raise RuntimeError("broken")

    run = work.start()
    app.worker().run(until_idle=True)
    run.signal("go")
    app.worker().run(until_idle=True)
    assert [one.value for one in app.exports(run.id)] == ["first", "from a step", "second"]
    mended.append(True)
    again = app.retry(run.id, actor="ana", reason="mended")
    app.worker().run(until_idle=True)
    record = app.get(again.run_id)
    assert record.status == "succeeded"
    assert [one.value for one in app.exports(again.run_id)] == ["first", "from a step", "second"]
    assert record.result_refs == [f"{again.run_id}/exports/{number}" for number in (1, 2, 3)]
    assert [one.provisional for one in app.exports(run.id)] == [True] * 3
    assert app.verify() == {}


def test_a_directory_of_blobs_may_be_named_by_a_url(tmp_path: Path) -> None:
    app = App("shop", config=_with(quick("memory:"), blobs=f"file://{tmp_path / 'blobs'}"))

    @app.job
    async def work() -> None:
        export(b"x" * 100, "bytes")

    run = work.start()
    app.worker().run(until_idle=True)
    assert b"".join(app.content(run.id, 1)) == b"x" * 100
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [run.id]
    app.close()


def test_limits_of_exports_are_told_to_the_code(url: str) -> None:
    app = App("shop", config=_with(quick(url), exports_max=2, export_bytes_max=10))
    caught: list[Exception] = []

    @app.job
    async def work() -> None:
        for value in ("x" * 11, "a", "b"):
            try:
                export(value, value)
            except (InvalidArguments, PayloadTooLarge) as error:
                caught.append(error)
        with pytest.raises(InvalidArguments):
            export("ftp://x", kind="url")
        with pytest.raises(InvalidArguments):
            export("x", kind="binary")
        with pytest.raises(InvalidArguments):
            export(Path("/nowhere/at/all"))

    run = work.start()
    app.worker().run(until_idle=True)
    assert run.record().status == "succeeded", run.record().error
    assert [type(error) for error in caught] == [PayloadTooLarge, InvalidArguments]
    assert [one.value for one in app.exports(run.id)] == ["a"]
    app.close()


@pytest.mark.parametrize(
    ("keep", "left"), [({"keep_runs": 2}, 2), ({"keep_seconds": 1e-6}, 0), ({"keep_seconds": 60.0}, 5)]
)
def test_workers_remove_what_the_settings_do_not_keep(url: str, keep: dict[str, Any], left: int) -> None:
    app = App("shop", config=_with(quick(url), **keep))

    @app.job
    async def work(number: int) -> int:
        return number

    @app.job
    async def patient() -> Any:
        return await wait_for("never")

    names = app.start_many("work", [{"number": number} for number in range(5)])
    waiting = app.start("patient")
    app.worker().run(until_idle=True)
    ended = [record.run_id for record in app.list() if record.finished_at is not None]
    assert ended == names[::-1][:left], "the newest stay"
    assert app.get(waiting.id).finished_at is None
    app.close()
