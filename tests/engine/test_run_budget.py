"""What a run may spend, and what happens when it has spent more."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import App, InvalidArguments, NotInsideJob, RunHandle, spend, wait_for
from holdfast.errors import InvalidTransition
from holdfast.machines import JobEvent, JobState
from holdfast.ready import BudgetGate, raise_violation
from support.stories import drain, play, until


async def row(app: App, handle: RunHandle) -> Any:
    return await app.store().get(handle.id)


def test_a_run_over_its_budget_is_parked_and_goes_on_with_a_grant(app: App) -> None:
    called: list[int] = []

    @app.tool
    async def ask(number: int) -> int:
        called.append(number)
        spend(tokens=60, usd=0.1)
        return number

    @app.job
    async def work() -> list[int]:
        return [await ask(number) for number in range(4)]

    async def story() -> None:
        handle = await work.options(budget={"tokens": 100, "usd": 10}).astart()
        await drain(app)
        assert called == [0, 1]
        assert (await row(app, handle)).state is JobState.WAITING
        last = (await app.store().events(handle.id))[-1]
        assert (last.type, last.payload["wait_type"], last.payload["park"]) == (JobEvent.WAITING, "human", True)
        assert "tokens 120 of 100" in (await app.aexplain(handle.id)).explanation
        assert (await app.aget(handle.id)).metrics["spent"] == {"tokens": 120, "usd": 0.2}
        await app.agrant(handle.id, tokens=50)
        await drain(app)
        assert called == [0, 1, 2], "180 are spent, and 150 granted"
        await app.agrant(handle.id, tokens=100, actor="me")
        await drain(app)
        assert await handle.aresult() == [0, 1, 2, 3]
        assert not await app.averify()

    play(story())


def test_a_resume_of_a_run_over_its_budget_is_refused_until_it_is_granted_more(app: App) -> None:
    called: list[int] = []

    @app.step
    def ask(number: int) -> None:
        called.append(number)
        spend(calls=2)

    @app.job
    def work() -> None:
        for number in range(3):
            ask(number)

    async def story() -> None:
        handle = await work.options(budget={"calls": 1}).astart()
        await drain(app)
        before = await app.aevents(handle.id)
        with pytest.raises(InvalidTransition, match="more than its budget: grant more budget"):
            await app.aresume(handle.id)
        await drain(app)
        assert (called, await app.aevents(handle.id)) == ([0], before), "nothing was written, and nothing called"
        await app.agrant(handle.id, calls=1)
        await drain(app)
        assert called == [0, 1]
        with pytest.raises(InvalidTransition):
            await app.aresume(handle.id)
        assert (await app.apause(handle.id)).status == "running"
        await app.aresume(handle.id)  # takes the pause back, and nothing else
        await app.agrant(handle.id, calls=10)
        await drain(app)
        assert (await app.aget(handle.id)).status == "succeeded"

    play(story())


def test_a_branch_that_waits_for_a_grant_beside_another_wait_is_not_resumed(app: App) -> None:
    @app.step
    async def ask(number: int) -> int:
        spend(tokens=10)
        return number

    @app.job
    async def work() -> list[int]:
        async def two() -> int:
            return await ask(1) + await ask(2)

        return list(await asyncio.gather(wait_for("other"), two()))

    async def story() -> None:
        handle = await work.options(budget={"tokens": 5}).astart()
        await drain(app)
        with pytest.raises(InvalidTransition, match="more than its budget"):
            await app.aresume(handle.id)
        await app.agrant(handle.id, tokens=100)
        await handle.asignal("other", 7)
        await drain(app)
        assert await handle.aresult() == [7, 3]

    play(story())


def test_what_a_call_spends_is_written_before_it_ends_and_not_with_every_word(app: App) -> None:
    go = asyncio.Event()

    @app.step
    async def ask() -> None:
        for _ in range(500):
            spend(tokens=1)
        await go.wait()
        spend(tokens=1)

    @app.job
    async def work() -> None:
        await ask()

    async def story() -> None:
        handle = await work.astart()
        draining = asyncio.create_task(drain(app))

        async def spent() -> list[int]:
            said = [event.payload for event in await app.aevents(handle.id) if event.type == "value_recorded"]
            return [one["value"]["tokens"] for one in said if one["node"].startswith("spent:")]

        async def all_but_one() -> bool:
            return sum(await spent()) == 500_000_000

        await until(all_but_one)
        assert len(await spent()) == 2, "the first at once, the others together"
        go.set()
        await draining
        assert (await app.aget(handle.id)).metrics["spent"] == {"tokens": 501}

    play(story())


def test_a_grant_that_comes_early_counts(app: App) -> None:
    @app.step
    async def ask() -> None:
        spend(tokens=5)

    @app.job
    async def work() -> str:
        await ask()
        await ask()
        return "done"

    async def story() -> None:
        handle = await work.options(budget={"tokens": 4}).astart()
        await app.agrant(handle.id, tokens=100)
        await drain(app)
        assert await handle.aresult() == "done"

    play(story())


def test_a_replay_does_not_spend_again(app: App) -> None:
    @app.step
    async def ask() -> None:
        spend(tokens=3)

    @app.job
    async def work() -> str:
        spend(tokens=1)
        await ask()
        await wait_for("go")
        spend(tokens=1)
        await ask()
        await wait_for("again")
        await ask()
        return "done"

    async def story() -> None:
        handle = await work.options(budget={"tokens": 8}).astart()
        for key in ("go", "again"):
            await drain(app)
            await handle.asignal(key)
        await drain(app)
        assert await handle.aresult() == "done"
        assert (await app.aget(handle.id)).metrics["spent"] == {"tokens": 11}

    play(story())


def test_what_a_failed_try_has_spent_counts(app: App) -> None:
    tries: list[int] = []

    @app.step(retries=1)
    async def ask() -> None:
        tries.append(1)
        spend(tokens=3)
        if len(tries) == 1:
            raise ValueError("no")

    @app.job
    async def work() -> None:
        await ask()

    async def story() -> None:
        handle = await work.astart()
        await drain(app)
        assert (await app.aget(handle.id)).metrics["spent"] == {"tokens": 6}

    play(story())


def test_several_branches_over_budget_go_on_with_one_grant(app: App) -> None:
    @app.step
    async def ask(number: int) -> int:
        spend(tokens=10)
        return number

    @app.job
    async def work() -> list[int]:
        await ask(0)

        async def both(number: int) -> int:
            return await ask(number)

        return list(await asyncio.gather(*(both(number) for number in range(1, 4))))

    async def story() -> None:
        handle = await work.options(budget={"tokens": 5}).astart()
        await drain(app)
        assert (await row(app, handle)).state is JobState.WAITING
        await app.agrant(handle.id, tokens=100)
        await drain(app)
        assert await handle.aresult() == [1, 2, 3]

    play(story())


def test_amounts_are_exact(app: App) -> None:
    @app.step
    async def ask(number: int) -> int:
        spend(usd=0.1)
        return number

    @app.job
    async def work() -> None:
        for number in range(11):
            await ask(number)

    async def story() -> None:
        handle = await work.options(budget={"usd": 1}).astart()
        await drain(app)
        assert (await app.aget(handle.id)).status == "succeeded", "ten times 0.1 is 1, and the eleventh was the last"

    play(story())


@pytest.mark.parametrize("budget", [{}, {"tokens": -1}, {"tokens": "many"}, {"": 1}, {"a b": 1}, 7, {"usd": 1e300}])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    app = App("shop", "memory:")

    @app.job
    async def work() -> None: ...

    with pytest.raises(InvalidArguments):
        work.options(budget=budget)


def test_spend_is_for_code_inside_a_job() -> None:
    with pytest.raises(NotInsideJob):
        spend(tokens=1)


def test_a_budget_in_the_store_is_exact_over_all_who_share_it(url: str) -> None:
    """Threads with stores of their own, as processes have; together they get what there is, and not one more."""
    apps = [App("shop", url)] if url == "memory:" else [App("shop", url) for _ in range(3)]
    gates = [
        BudgetGate(20, per=60, name="model", ledger=app.ledger(), now=lambda: 1000.0, on_violation=raise_violation)
        for app in [*apps, *apps]
    ]
    barrier = threading.Barrier(len(gates))

    def take(gate: BudgetGate) -> int:
        barrier.wait(60)
        return sum(gate.try_acquire() is not None for _ in range(15))

    with ThreadPoolExecutor(len(gates)) as threads:
        assert sum(threads.map(take, gates)) == min(20, 15 * len(gates))
    assert gates[0].remaining == 0
    gates[0].spend(5)
    assert gates[-1].remaining == -5, "what was used counts for all"
    for app in apps:
        app.close()


def test_a_budgets_next_window_is_whole_again_and_an_old_one_gives_nothing(app: App) -> None:
    ledger = app.ledger()
    assert ledger.take("model", 60.0, 7, 10)
    assert not ledger.take("model", 60.0, 4, 10)
    assert ledger.peek("model", 60.0) == 7
    assert ledger.take("model", 120.0, 10, 10)
    assert not ledger.take("model", 60.0, 1, 10), "that window has ended for others"
    assert ledger.take("model", 60.0, 1, None), "what was used was used"
    assert ledger.peek("model", 120.0) == 11
    assert ledger.take("model", 120.0, -5, None)
    assert ledger.peek("model", 120.0) == 6
