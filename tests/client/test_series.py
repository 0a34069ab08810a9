"""Series for charts: each number is what a slow count over the records of runs gives, on every store."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, InvalidArguments
from holdfast.client.overview import series
from holdfast.client.overview.series import Series
from support.stories import drain, play


def jobs(app: App) -> None:
    """Declare a job that succeeds and one that fails."""

    @app.job
    async def good() -> None:
        return None

    @app.job
    async def bad() -> None:
        raise ValueError("no")


def test_the_last_minutes_are_counted_from_the_runs_themselves_on_every_store(app: App) -> None:
    jobs(app)

    async def story() -> None:
        for name in ("good", "good", "bad"):
            await app.astart(name)
        await drain(app)
        other = [await app.astart(app.entry("good").options(queue="mail")) for _ in range(2)]
        await app.astart(app.entry("good").options(delay="1h"))
        canceled = await app.astart("good")
        await app.acancel(canceled.id)
        whole = await app.aseries(minutes=5)
        assert [len(values) for values in (whole.starts, whole.ends, whole.depth, whole.oldest_seconds)] == [5] * 4
        assert (sum(whole.starts), sum(whole.ends), sum(whole.failures)) == (3, 4, 1)
        assert whole.complete
        assert whole.depth[-1] == len(other), "a delayed run does not wait yet, and an ended one no longer"
        record = await other[0].arecord()
        assert whole.oldest_seconds[-1] == pytest.approx(whole.now - record.created_at, abs=1e-3)
        assert whole.start <= whole.now < whole.start + 5 * 60
        mail = await app.aseries(minutes=5, queue="mail")
        assert (sum(mail.starts), mail.depth[-1], mail.queue) == (0, 2, "mail")
        await drain(app)
        assert (await app.aseries(minutes=5)).depth[-1] == 0
        day = await app.aseries(minutes=1440)
        assert (day.bucket_seconds, len(day.starts), sum(day.starts)) == (360.0, 240, 5)
        for minutes in (0, 1441):
            with pytest.raises(InvalidArguments, match="minutes"):
                await app.aseries(minutes=minutes)

    play(story())


def test_what_is_not_known_is_null(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs(app)
    monkeypatch.setattr(series, "RUNS_MAX", 2)

    async def story() -> Series:
        await asyncio.gather(*(app.astart("good") for _ in range(4)))
        return await app.aseries(minutes=2)

    read = play(story())
    assert (read.complete, read.depth, read.oldest_seconds) == (False, [None, None], [None, None])
