"""Natural mistakes of new users: each message says what happened and what to do."""

from __future__ import annotations

import pytest

from holdfast import App, InvalidArguments, UnknownJob, wait_for
from support.stories import drain, play


def test_an_option_of_a_start_that_is_given_as_an_argument_is_named() -> None:
    app = App("shop", "memory:")

    @app.job
    async def checkout(sku: str, card: str) -> None:
        pass

    told = (
        r"unexpected keyword argument 'queue'; options of a start are chosen with checkout\.options\(queue=…\)\.start"
    )
    with pytest.raises(InvalidArguments, match=told):
        checkout.start("A1", "4242", queue="mail")  # type: ignore[call-arg]  # - the mistake
    with pytest.raises(InvalidArguments, match="missing a required argument: 'card'; it takes sku, card"):
        checkout.start("A1")  # type: ignore[call-arg]  # - the mistake


def test_a_run_that_no_worker_takes_says_that_it_needs_one(app: App) -> None:
    @app.job
    async def work() -> None:
        pass

    async def story() -> None:
        run = await app.astart(work)
        with pytest.raises(TimeoutError, match="it is queued; it continues when a worker takes it"):
            await run.aresult(timeout=0.01)

    play(story())


def test_a_signal_under_another_key_is_explained(app: App) -> None:
    @app.job
    async def work() -> None:
        await wait_for("approval")

    async def story() -> None:
        run = await app.astart(work)
        await drain(app)
        await app.asignal(run.id, "aproval", 1)
        explained = (await app.aexplain(run.id)).explanation
        assert "It waits for the signal 'approval', without a time limit." in explained
        assert "Signals came that it does not wait for: 'aproval'." in explained

    play(story())


def test_a_run_that_is_not_there_is_looked_for_in_the_list(app: App) -> None:
    with pytest.raises(UnknownJob, match="no job has the id 'nope': check the id and the store; `holdfast runs` lists"):
        play(app.aget("nope"))
