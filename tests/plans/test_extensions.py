"""Extensions of a running plan: each is decided once, and they apply in one recorded order (E11)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import App, Plan, RunFailed, extend, external_key
from holdfast.client.verify import check_replay
from holdfast.plans import Draft, Extension
from holdfast.plans.node_history import NodeHistory
from holdfast.plans.node_states import NodeStates
from holdfast.store import Reclaim, ReleaseLeases
from holdfast.store.effects import DirectoryEffects, Effect
from support.clocked import opened
from support.stories import drain, play, quick, until


class Racing:
    """An app in which two nodes extend the plan, the one that stands first when the other has been heard."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.called: list[str] = []
        self.heard = asyncio.Event()

        @app.tool
        async def act(who: str) -> str:
            self.called.append(f"act {who}")
            self.heard.set()
            return who

        @app.step
        async def late(to: str = "late") -> Extension:
            self.called.append("late")
            await self.heard.wait()
            return extend(self.added(to, "late"))

        @app.step
        async def early() -> Extension:
            self.called.append("early")
            return extend(self.added("early", "early"))

        self.plan = app.plan("p")
        self.plan.call(late, to=self.plan.input.to)
        self.plan.call(early)
        self.plan.wait("go")

    def added(self, name: str, who: str) -> Draft:
        draft = Draft()
        draft.returns({"by": draft.call("act", who=who, id=f"act_{name}")})
        return draft


async def course(app: App, run_id: str) -> NodeStates:
    past = NodeHistory(await app.aevents(run_id))
    assert past.plan is not None
    return NodeStates(Plan.from_dict(past.plan), past)


def test_of_two_extensions_that_say_what_a_plan_returns_the_later_counts_on_replay(app: App) -> None:
    racing = Racing(app)

    async def story() -> None:
        run = await racing.plan.astart(to="late")
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == {"by": "late"}
        assert racing.called == ["late", "early", "act early", "act late"]
        assert list((await course(app, run.id)).added) == ["early", "late"]
        assert (await check_replay(app, await run.aevents())).fits
        assert await app.averify() == {}

    play(story())


def test_a_fork_takes_extensions_in_the_order_of_the_run_that_it_is_of(app: App) -> None:
    racing = Racing(app)

    async def story() -> None:
        run = await racing.plan.astart(to="late")
        await run.asignal("go")
        await drain(app)
        racing.called.clear()
        fork = await app.afork(run.id, from_node="go")
        await fork.asignal("go")
        await drain(app)
        assert await fork.aresult(timeout=60) == {"by": "late"}
        assert racing.called == []
        assert list((await course(app, fork.id)).added) == ["early", "late"]

    play(story())


def test_a_fork_does_again_what_has_extended_the_plan_by_references_to_what_is_done_again(app: App) -> None:
    called: list[str] = []

    @app.step
    async def note(text: str) -> str:
        return text

    @app.step
    async def early(of: str) -> Extension:
        called.append("early")
        draft = Draft()
        draft.call(note, text=of, id="x")
        return extend(draft)

    @app.step
    async def late(of: str | None) -> Extension:
        called.append("late" if of is None else of)
        draft = Draft()
        draft.call(note, text={"$ref": "x"}, id="y")
        return extend(draft)

    plan = app.plan("p")
    plan.call(early, of="early")
    plan.call(late, of=plan.wait("go"))

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == {"y": "early"}
        called.clear()
        fork = await app.afork(run.id, from_node="early")
        await drain(app)
        assert await fork.aresult(timeout=60) == {"y": "early"}
        assert called == ["early", "late"], "what late adds refers to what early adds"

    play(story())


def test_a_history_without_records_of_extensions_takes_them_in_the_order_of_the_stream(app: App) -> None:
    """As a release has written it that decided of extensions without a word."""
    racing = Racing(app)

    async def story() -> None:
        run = await racing.plan.astart(to="late")
        await run.asignal("go")
        await drain(app)
        events = [one for one in await run.aevents() if not str(one.payload.get("node")).startswith("extension:")]
        past = NodeHistory(events)
        assert past.plan is not None
        shown = NodeStates(Plan.from_dict(past.plan), past)
        assert set(shown.added) == {"early", "late"}
        assert set(shown.states.values()) == {"done"}
        told = await check_replay(app, events)
        assert told.beyond == [], "nothing is called again"
        assert told.reasons == [], "results come in the order of the stream, and so do extensions"

    play(story())


def test_what_follows_from_an_extension_is_kept_nowhere_before_its_record_is(app: App, tmp_path: Path) -> None:
    seen: dict[str, bool] = {}

    class Looking(DirectoryEffects):
        async def put(self, effect: Effect) -> None:
            kept = {one.payload.get("node") for one in await app.aevents(effect.job)}
            seen[effect.node] = "extension:early" in kept
            await super().put(effect)

    @app.step
    async def note(text: str) -> str:
        return text

    @app.step
    async def early() -> Extension:
        draft = Draft()
        draft.call(note, text="x", id="x")
        return extend(draft)

    plan = app.plan("p")
    plan.call(early)

    async def story() -> None:
        app._effects = Looking(tmp_path / "effects")
        run = await plan.astart()
        await drain(app)
        assert await run.aresult(timeout=60) == {"x": "x"}
        assert seen == {"early:early": False, "note:x": True}

    play(story())


def test_extensions_come_in_order_though_a_failure_is_heard_of_before_them(app: App) -> None:
    """With `fail_fast` what had begun is ended in order: on replay as it was the first time."""
    added, broke = asyncio.Event(), asyncio.Event()
    hung: list[bool] = []

    @app.step
    async def bad() -> None:
        await broke.wait()
        raise ValueError("no")

    @app.step
    async def note(text: str) -> str:
        added.set()
        return text

    @app.step
    async def more(of: str) -> Extension:
        await (added.wait() if of == "late" else asyncio.sleep(0))
        draft = Draft()
        draft.call(note, text=of, id="x")
        return extend(draft)

    @app.step
    async def one() -> str:
        return "early"

    @app.step
    async def hang() -> None:
        if not hung:
            hung.append(True)
            await asyncio.Event().wait()

    plan = app.plan("p", policy="fail_fast")
    plan.call(bad)
    plan.call(more, of="late", id="late")
    plan.call(more, of=plan.call(one), id="early")
    plan.call(hang)

    async def story() -> None:
        run = await plan.astart()
        working = asyncio.create_task(app.worker(name="w").arun())
        await until(lambda: has(app, run.id, "extension:late"))
        broke.set()
        await until(lambda: has(app, run.id, "bad:bad", "node_finished"))
        working.cancel()
        await asyncio.wait([working])
        await app.store().commit([ReleaseLeases("w"), Reclaim()])
        await drain(app)
        with pytest.raises(RunFailed, match=r"2 of 6 nodes: late: late failed: InvalidPlan(.|\n)*; bad: "):
            await run.aresult(timeout=60)

    play(story())


def test_an_extension_is_not_held_back_for_one_whose_node_fails_under_other_code(app: App) -> None:
    called: list[str] = []

    @app.step
    async def note(text: str) -> str:
        called.append(text)
        return text

    @app.step
    async def early(to: str) -> Extension:
        draft = Draft()
        draft.call(deeper, id=f"deeper_{to}")
        return extend(draft)

    @app.step
    async def deeper() -> Extension:
        return extend(Draft())

    @app.step
    async def late() -> Extension:
        draft = Draft()
        draft.call(note, text="behind", after=draft.wait("soon"))
        return extend(draft)

    plan = app.plan("p")
    plan.call(early, to="early")
    plan.call(late, after=plan.wait("now"))
    plan.wait("go")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        await run.asignal("now")
        await drain(app)
        assert list((await course(app, run.id)).added) == ["early", "deeper_early", "late"]
        del app.calls["early"]
        await run.asignal("soon")
        await drain(app)
        assert called == ["behind"], "although another branch waits for go"
        await run.asignal("go")
        await drain(app)
        with pytest.raises(RunFailed, match="1 of 6 nodes: early: early failed: UnknownEntry"):
            await run.aresult(timeout=60)

    play(story())


def test_an_extension_that_was_refused_for_an_unknown_name_is_shown_so_and_told_as_what_it_is(app: App) -> None:
    @app.step
    async def more(number: int) -> Extension:
        return extend({"nodes": [{"id": "x", "kind": "call", "call": "nothing", "args": {"number": number}}]})

    plan = app.plan("p")
    plan.call(more, number=1)
    plan.map(more, [1, 2, 3], number=plan.item, id="each")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed) as failed:
            await run.aresult(timeout=60)
        assert "p failed: 2 of 2 nodes: " in str(failed.value), "items of a map are one node"
        assert "each[2]: " in str(failed.value)
        said = "the extension of the plan has a problem, and nothing of it was added:\nx.call: there is no step or tool"
        assert said in str(failed.value)
        assert (await course(app, run.id)).states == {"more": "failed", "each": "failed"}

    play(story())


@pytest.mark.parametrize("kind", ["step", "tool"])
def test_a_retry_calls_a_node_again_whose_extension_was_refused(app: App, kind: str) -> None:
    called: list[str] = []
    answers = ["nothing", "nothing", "note"]

    @app.step
    async def note(text: str) -> str:
        called.append(text)
        return text

    async def replan() -> Extension:
        called.append(external_key().partition(":")[2].partition(":")[2])
        draft = Draft()
        draft.call(answers.pop(0), text="x", id="x")
        return extend(draft)

    made = app.step(replan) if kind == "step" else app.tool(replan)
    plan = app.plan("p")
    plan.call(note, text="beside", id="beside")
    plan.call(note, text="behind", id="behind", after=plan.call(made))
    plan.call(note, text="last", id="last", after=plan.wait("go"))

    async def story() -> None:
        run = await plan.astart()
        await run.asignal("go")
        await drain(app)
        assert (await course(app, run.id)).states["replan"] == "failed"
        await app.aretry(run.id, actor="ann", reason="perhaps now")
        await drain(app)
        assert (await app.aget(f"{run.id}.2")).status == "failed"
        await app.aretry(run.id, actor="ann", reason="mended")
        await drain(app)
        assert await app.aoutcome(f"{run.id}.3") == {"beside": "beside", "behind": "behind", "last": "last", "x": "x"}
        assert sorted(called) == [
            "behind", "beside", "last", "replan:replan", "replan:replan#2", "replan:replan#3", "x",
        ]  # fmt: skip
        shown = await course(app, run.id)
        assert list(shown.added) == ["replan"]
        assert set(shown.states.values()) == {"done"}
        assert await app.averify() == {}
        assert (await check_replay(app, await run.aevents())).fits
        called.clear()
        fork = await app.afork(run.id, from_node="last")
        await drain(app)
        assert (await fork.aresult(timeout=60))["x"] == "x"
        assert called == ["last"], "what was taken at last is what is reused"

    play(story())


async def has(app: App, run: str, node: str, kind: str = "value_recorded") -> bool:
    return any(one.type == kind and one.payload.get("node") == node for one in await app.aevents(run))


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_retry_after_a_deadline_does_again_what_had_failed_by_then(backend: str, tmp_path: Path) -> None:
    app = App("p", config=quick("memory:"))
    app._opened, clock = opened(backend, tmp_path)
    called: list[str] = []

    @app.step
    async def note(text: str) -> str:
        called.append(text)
        return text

    @app.step
    async def fragile() -> str:
        called.append("fragile")
        if called.count("fragile") == 1:
            raise ValueError("not today")
        return "mended"

    @app.step
    async def replan() -> Extension:
        called.append("replan")
        draft = Draft()
        draft.call("nothing" if called.count("replan") == 1 else "note", text="x", id="x")
        return extend(draft)

    plan = app.plan("p")
    plan.call(fragile)
    plan.call(replan)
    plan.call(note, text="beside", id="beside")
    plan.wait("go", id="go")

    async def story() -> None:
        run = await plan.options(deadline=3600).astart()
        await drain(app)
        assert sorted(called) == ["beside", "fragile", "replan"]
        clock.move(4000)
        await drain(app)
        assert (await app.aget(run.id)).status == "timeout"
        await app.aretry(run.id, actor="ann", reason="there is time again")
        await app.asignal(f"{run.id}.2", "go")
        await drain(app)
        assert await app.aoutcome(f"{run.id}.2") == {"beside": "beside", "fragile": "mended", "go": None, "x": "x"}
        assert sorted(called) == ["beside", "fragile", "fragile", "replan", "replan", "x"]
        assert await app.averify() == {}
        await app.aclose()

    play(story())
