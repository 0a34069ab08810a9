"""Renamed functions: runs and calls recorded under an earlier name belong to the function that has it as an alias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast import App, Plan, changed, external_key, gather, now, random, wait_for
from holdfast.deploys.run_check import RunCheck, check_run
from holdfast.engine.replay_report import Verdict
from support.stories import quick

Declared = Callable[[App], Any]


@pytest.fixture
def again(app: App) -> Callable[[], App]:
    """The next release of the code: an app with the same store."""

    def made() -> App:
        other = App("shop", config=quick(app.url))
        other._opened = app.store()
        return other

    return made


def checked(app: App, run: str) -> RunCheck:
    return app.block(check_run(app, app.events(run)))


def test_a_run_of_an_earlier_name_is_run_by_the_renamed_job(app: App, again: Callable[[], App]) -> None:
    @app.job
    async def checkout(sku: str) -> str:
        return sku

    queued = checkout.start("A1")
    new = again()

    @new.job(aliases=["pay", "checkout"])
    async def order(sku: str) -> str:
        return f"ordered {sku}"

    assert checked(new, queued.id).verdict == "fits"
    new.worker().run(until_idle=True)
    assert new.outcome(queued.id) == "ordered A1"
    assert new.get(queued.id).entry_id == "checkout"
    started = new.start("checkout", "B2")
    assert (started.record().entry_id, [entry.entry_id for entry in new.block(new.aentries())]) == ("order", ["order"])


def test_recorded_calls_of_an_earlier_name_are_answered_and_not_made_again(app: App, again: Callable[[], App]) -> None:
    """Steps, tools and children, alone, equal, and in branches, with the values recorded after them."""
    made: list[str] = []

    def declare(to: App, new: bool) -> Any:
        step_names = ["price"] if new else []
        tool_names = ["charge"] if new else []
        job_names = ["child"] if new else []

        @to.step(name="price_of" if new else "price", aliases=step_names)
        async def price(sku: str) -> int:
            made.append(f"price {sku}")
            return len(made)

        @to.tool(name="bill" if new else "charge", aliases=tool_names)
        async def charge(cents: int) -> str:
            made.append(external_key().partition(":")[2].partition(":")[2])
            return f"receipt {cents}"

        @to.job(name="kid" if new else "child", aliases=job_names)
        async def child(sku: str) -> str:
            return sku.lower()

        @to.job
        async def work(sku: str) -> list[Any]:
            first, at = await price(sku), now()
            both = await gather(price(sku), price(sku + "1"))
            born = await child(sku)
            paid = await charge(first)
            answer = await wait_for("go")
            return [first, at, both, born, paid, answer, await price(sku), await charge(first)]

        return work

    work = declare(app, new=False)
    run = work.start("A1")
    app.worker().run(until_idle=True)
    before = list(made)
    new = again()
    declare(new, new=True)
    found = checked(new, run.id)
    assert (found.verdict, found.unused, found.next) == ("fits", [], ["wait:go"])
    new.signal(run.id, "go", "yes")
    new.worker().run(until_idle=True)
    assert new.get(run.id).status == "succeeded", new.get(run.id).error
    first, _, both, born, paid, answer, again_priced, _ = new.outcome(run.id)
    assert (first, both, born, paid, answer) == (1, [2, 3], "a1", "receipt 1", "yes")
    assert made[: len(before)] == before
    assert made[len(before) : -1] == ["price A1"]
    assert made[-1].startswith("charge:"), "code from before the rename would find this call, too"
    assert again_priced == len(before) + 1
    assert checked(new, run.id).verdict == "fits", "what the new code has recorded, too"
    assert new.verify() == {}


class Names(NamedTuple):
    """The names of the functions in a release, and the aliases of each."""

    step: str
    tool: str
    child: str
    aliases: bool = False


OLD, NEW = Names("price", "charge", "child"), Names("price_of", "bill", "kid", aliases=True)
LATER = NEW._replace(aliases=False)


class Release:
    """Code with a loop of rounds: each round calls a step, a tool, a child, and starts a run, then waits."""

    def __init__(self, app: App, names: Names, made: list[str]) -> None:
        def aliases(was: str) -> list[str]:
            return [was] if names.aliases else []

        self.app = app

        @app.step(name=names.step, aliases=aliases(OLD.step))
        async def price(sku: str) -> int:
            made.append(f"price {sku}")
            return 7

        @app.tool(name=names.tool, aliases=aliases(OLD.tool))
        async def charge(cents: int) -> str:
            made.append(f"charge {external_key().partition(':charge:')[2]}")
            return f"receipt {cents}"

        @app.job(name=names.child, aliases=aliases(OLD.child), queue="children")
        async def child(sku: str) -> str:
            made.append(f"child {sku}")
            await wait_for("child")
            return sku.lower()

        @app.job
        async def work(sku: str, rounds: int) -> list[Any]:
            results: list[Any] = []
            for number in range(rounds):
                if changed(f"mark-{number}"):
                    results.append(number)
                results += [await charge(1), now() > 0, await price(sku), await child(sku), random() < 1]
                await child.astart(f"{sku} apart")
                await wait_for(f"go{number}")
            return results

    def go(self) -> None:
        self.app.worker(queues=["default"]).run(until_idle=True)

    def end_children(self, run: str) -> None:
        """Let the open children of a run end. This release must have their names."""
        self.app.worker(queues=["children"]).run(until_idle=True)
        for child in self.app.family(run).children:
            if child.status == "running":
                self.app.signal(child.run_id, "child")
        self.app.worker(queues=["children"]).run(until_idle=True)

    def verdict(self, run: str) -> str:
        found = checked(self.app, run)
        return str(found.verdict) + "".join(f"; {reason}" for reason in found.reasons)


def test_a_rename_is_rolled_out_and_back_without_a_question_or_a_second_call(
    app: App, again: Callable[[], App]
) -> None:
    """Releases take turns. Each goes on where the other was: before a child's end, and after it."""
    made: list[str] = []
    releases = {"old": Release(app, OLD, made), "new": Release(again(), NEW, made)}
    run = app.start("work", "A", 6)
    turns = ["new", "old", "old", "new", "new", "old"]
    for number, turn in enumerate(turns):
        releases[turn].go()
        releases["new"].end_children(run.id)
        releases[turns[number - 1]].go()
        for each in releases.values():
            assert each.verdict(run.id) == "fits"
        app.signal(run.id, f"go{number}")
    releases["old"].go()
    assert app.outcome(run.id)[:6] == [0, "receipt 1", True, 7, "a", True]
    assert app.inbox() == []
    assert len(app.outcome(run.id)) == 36, "every round was on the new side of its mark"
    assert made.count("price A") == 6
    charged = [line for line in made if line.startswith("charge")]
    assert len(charged) == len(set(charged)) == 6
    assert len(app.list()) == 1 + 6 + 6, "of each round one child, and one run apart"
    for each in releases.values():
        assert each.verdict(run.id) == "fits"
    assert app.verify() == {}


def test_an_alias_is_dropped_when_no_run_needs_it(app: App, again: Callable[[], App]) -> None:
    """Calls that were recorded while the alias existed are found by their new name. Older ones stop the code."""
    made: list[str] = []
    old, new, later = Release(app, OLD, made), Release(again(), NEW, made), Release(again(), LATER, made)
    before = app.start("work", "A", 2)
    old.go()
    after = app.start("work", "B", 2)
    new.go()
    assert checked(new.app, before.id).aliases == ["charge", "child", "price"]
    assert checked(new.app, after.id).aliases == []
    shown = [call for event in app.story(after.id) for call in (event.changes.get("calls") or {}).values()]
    assert "kid" in [call.get("name") for call in shown]
    assert "child" not in [call.get("name") for call in shown]
    assert later.verdict(after.id) == "fits"
    assert later.verdict(before.id) == "stops; it now calls bill(cents=1), but the history has charge(cents=1)"
    for run in (before, after):
        new.end_children(run.id)
    calls = len(made)
    later.go()
    assert [one.run_id for one in app.inbox()] == [before.id]
    assert made[calls:] == [], "nothing is called again"
    app.signal(after.id, "go0")
    later.go()
    later.end_children(after.id)
    later.go()
    app.signal(after.id, "go1")
    for each in (new, later):
        assert each.verdict(after.id) == "fits", "also if the alias comes back"
    new.go()
    assert len(app.outcome(after.id)) == 12
    assert app.verify() == {}


@pytest.mark.parametrize("first", [OLD, LATER], ids=["old code", "new code"])
def test_a_tool_under_a_name_that_the_code_does_not_know_asks(app: App, again: Callable[[], App], first: Names) -> None:
    """Without an alias, forward and back: it has acted, and perhaps it was renamed."""
    made: list[str] = []
    one, other = Release(app, first, made), Release(again(), LATER if first is OLD else OLD, made)
    run = app.start("work", "A", 1)
    one.go()
    one.end_children(run.id)
    one.go()
    calls = len(made)
    app.signal(run.id, "go0")
    other.go()
    [asked] = app.inbox()
    assert asked.deploy is not None
    assert asked.deploy.call.replace("bill", "charge") == asked.deploy.recorded[0].replace("bill", "charge")
    assert [line for line in made[calls:] if not line.startswith("price")] == []


def test_a_child_that_was_begun_keeps_changed_code_from_another_one(app: App, again: Callable[[], App]) -> None:
    def declare(to: App, suffix: str) -> Any:
        @to.job
        async def child(sku: str) -> str:
            return str(await wait_for(sku))

        @to.job
        async def work() -> str:
            return await child(f"A{suffix}")

        return work

    run = declare(app, "").start()
    app.worker().run(until_idle=True)
    new = again()
    declare(new, "!")
    found = checked(new, run.id)
    assert [reason.rpartition(":")[0] for reason in found.reasons] == [
        "it now calls job.child(sku='A!'), but the history has job.child"
    ]
    [child] = app.family(run.id).children
    app.signal(child.run_id, "A")
    new.worker().run(until_idle=True)
    assert [one.kind for one in app.inbox()] == ["deploy"]
    assert len(app.family(run.id).children) == 1
    fork = new.answer(run.id, "fork")
    new.worker().run(until_idle=True)
    assert [one.status for one in new.family(fork.run_id).children] == ["running"]


def test_a_changed_call_of_a_renamed_step_is_a_misfit(app: App, again: Callable[[], App]) -> None:
    def declare(to: App, name: str, suffix: str, **options: Any) -> Any:
        @to.step(name=name, **options)
        async def price(sku: str) -> str:
            return sku

        @to.job
        async def work(sku: str) -> str:
            await price(sku + suffix)
            return str(await wait_for("go"))

        return work

    run = declare(app, "price", "").start("A1")
    app.worker().run(until_idle=True)
    new = again()
    declare(new, "price_of", "!", aliases=["price"])
    found = checked(new, run.id)
    assert found.reasons == ["it now calls price_of(sku='A1!'), but the history has price(sku='A1')"]
    new.signal(run.id, "go", "yes")
    new.worker().run(until_idle=True)
    assert new.get(run.id).status != "succeeded", "the engine says the same"


def test_a_tool_in_doubt_keeps_its_key_under_its_new_name(app: App, again: Callable[[], App]) -> None:
    keys: list[str] = []

    def declare(to: App, name: str, fails: bool, **options: Any) -> Any:
        @to.tool(name=name, on_doubt="retry", retries=1, **options)
        async def charge(cents: int) -> str:
            keys.append(external_key())
            if fails:
                raise RuntimeError(f"{cents} not now")
            return "paid"

        @to.job
        async def work() -> str:
            await wait_for("go")
            return await charge(7)

        return work

    run = declare(app, "charge", fails=True).start()
    app.signal(run.id, "go")
    app.worker().run(until_idle=True)
    assert run.record().status == "failed"
    new = again()
    declare(new, "bill", fails=False, aliases=["charge"])
    new.retry(run.id, actor="ana", reason="again")
    new.worker().run(until_idle=True)
    assert new.outcome(f"{run.id}.2") == "paid"
    assert len(set(keys)) == 1


def test_a_recorded_plan_finds_a_renamed_step(app: App, again: Callable[[], App]) -> None:
    @app.step
    async def price(sku: str) -> int:
        return len(sku)

    one = {"id": "one", "kind": "call", "call": "price", "args": {"sku": "A1"}}
    plan = Plan.from_dict({"nodes": [one, {"id": "go", "kind": "wait", "after": ["one"]}]})
    declared = app.plan("work", plan)
    run = declared.start()
    app.worker().run(until_idle=True)
    new = again()

    @new.step(aliases=["price"])
    async def price_of(sku: str) -> int:
        raise AssertionError(f"{sku} was recorded")

    new.plan("work", Plan.from_dict({"nodes": [{**one, "call": "price_of"}]}))
    new.signal(run.id, "go")
    new.worker().run(until_idle=True)
    assert new.get(run.id).status == "succeeded", new.get(run.id).error


def test_a_plan_whose_next_step_is_gone_is_found(app: App, again: Callable[[], App]) -> None:
    @app.step
    async def price(sku: str) -> int:
        return len(sku)

    one = {"id": "one", "kind": "call", "call": "price", "args": {"sku": "A1"}}
    nodes = [{"id": "go", "kind": "wait"}, {**one, "after": ["go"]}]
    run = app.plan("work", Plan.from_dict({"nodes": nodes})).start()
    app.worker().run(until_idle=True)
    new = again()
    new.plan("work", Plan.from_dict({"nodes": nodes[:1]}))
    found = new.block(check_run(new, new.events(run.id)))
    assert found.verdict is Verdict.STOPS
    assert found.reasons == ["the node one of its plan calls price, which the code does not have"]
    new.signal(run.id, "go")
    new.worker().run(until_idle=True)
    error = new.get(run.id).error
    assert error is not None
    assert (error.code, "UnknownEntry" in error.message) == ("PlanFailed", True)


@pytest.mark.parametrize("kind", ["job", "step", "tool"])
def test_clashes_are_refused_where_they_are_declared(kind: str) -> None:
    app = App("shop", "memory:")

    def declare(name: str, *aliases: Any, to: App = app) -> Any:
        async def function() -> None: ...

        return getattr(to, kind)(name=name, aliases=list(aliases))(function)

    declare("one", "old")
    with pytest.raises(ValueError, match=r"already has a .*'one', and it is an alias of 'two': remove the alias"):
        declare("two", "one")
    with pytest.raises(ValueError, match=r"it is an alias of 'one': remove the alias, or give 'old' another name"):
        declare("old")
    with pytest.raises(ValueError, match="it is also an alias of 'one'"):
        declare("three", "old")
    with pytest.raises(ValueError, match="name each earlier name once"):
        declare("four", "four")
    with pytest.raises(ValueError, match="name each earlier name once"):
        declare("four", "a", "a")
    with pytest.raises(TypeError, match="aliases must be a list of names"):
        getattr(app, kind)(aliases="old")(test_clashes_are_refused_where_they_are_declared)
    with pytest.raises(TypeError, match="aliases must be a list of names"):
        declare("five", 5)
    declare("four", "unused")


def test_an_included_plugin_cannot_bring_a_clash() -> None:
    app, other = App("shop", "memory:"), App("shop", "memory:")

    @app.job
    async def one() -> None: ...

    @other.job(aliases=["one"])
    async def two() -> None: ...

    with pytest.raises(ValueError, match="it is an alias of 'two'"):
        app.include(other)
    assert ("shop", "two") not in app.entries
