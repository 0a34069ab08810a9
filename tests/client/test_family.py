"""The family of a run is complete, on every store, and shows no run of another group."""

from __future__ import annotations

import pytest

from holdfast import App, continue_as
from holdfast.client.overview import family
from holdfast.client.overview.family import Relative
from holdfast.errors import UnknownJob
from support.stories import drain, play


def jobs(app: App) -> None:
    """Declare a parent with children, a job that fails, and one that continues itself."""

    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job
    async def middle(n: int) -> int:
        return sum([await leaf(number) for number in range(n)])

    @app.job
    async def top() -> int:
        return await middle(3)

    @app.step
    async def look() -> int:
        return 1

    @app.job
    async def bad() -> int:
        await look()
        raise ValueError("no")

    @app.job
    async def chain(n: int = 0) -> int:
        return n if n == 2 else continue_as(n + 1)


def named(relatives: list[Relative]) -> list[tuple[str, str]]:
    return [(one.relation, one.run_id) for one in relatives]


def test_parents_children_retries_continuations_and_forks_are_found_on_every_store(app: App) -> None:
    jobs(app)

    async def story() -> None:
        run = await app.astart("top")
        failed = await app.astart("bad")
        first = await app.astart("chain")
        await drain(app)
        (middle,) = (await app.afamily(run.id)).children
        assert (middle.relation, middle.entry_id, middle.status) == ("child", "middle", "succeeded")
        inner = await app.afamily(middle.run_id)
        assert named(inner.ancestors) == [("parent", run.id)]
        assert inner.parent == inner.ancestors[0]
        assert [one.entry_id for one in inner.children] == ["leaf"] * 3
        assert inner.children_total == 3
        leaf = await app.afamily(inner.children[0].run_id)
        assert named(leaf.ancestors) == [("parent", middle.run_id), ("parent", run.id)]
        again = await app.aretry(failed.id, actor="ana", reason="again")
        fork = await app.afork(failed.id, from_step="look")
        assert named((await app.afamily(failed.id)).later) == [("retry", again.run_id), ("fork", fork.id)]
        assert named((await app.afamily(again.run_id)).earlier) == [("retry", failed.id)]
        assert named((await app.afamily(fork.id)).earlier) == [("fork", again.run_id)], "the newest run of that job"
        second = (await app.afamily(first.id)).later
        assert [one.relation for one in second] == ["continuation"]
        assert named((await app.afamily(second[0].run_id)).earlier) == [("continuation", first.id)]
        for missing in ("missing", f"{run.id}.2"):
            with pytest.raises(UnknownJob):
                await app.afamily(missing)

    play(story())


def test_relatives_of_other_groups_and_more_children_than_are_listed_are_left_out(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "CHILDREN", 2)
    monkeypatch.setattr(family, "CHILDREN_MAX", 3)

    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job
    async def top() -> None:
        for number in range(4):
            await leaf.options(group="other" if number else "acme")(number)

    async def story() -> None:
        run = await app.astart(app.entry("top").options(group="acme"))
        await drain(app)
        whole = await app.afamily(run.id)
        assert (len(whole.children), whole.children_total) == (2, 3)
        mine = await app.afamily(run.id, group="acme")
        assert (len(mine.children), mine.children_total) == (1, 1)
        stranger = whole.children[1].run_id
        assert (await app.afamily(stranger)).parent is not None
        assert (await app.afamily(stranger, group="other")).ancestors == []

    play(story())
