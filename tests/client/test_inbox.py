"""The inbox: everything that waits for a person is listed, and an answer is checked before it is stored."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import Phase
from hypothesis import strategies as st

from holdfast import App, InvalidArguments, NotInDoubt, QuestionClosed, Secret, gather, spend, wait_for
from holdfast.authoring.answer_form import Form, form_of, misfit
from holdfast.client.overview.questions import Question
from support.stories import drain, play
from support.timeless import given, settings


class Approval(msgspec.Struct):
    """Ship the order?

    More about it.
    """

    approved: bool
    amount: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    note: str | None = None
    how: Literal["post", "courier"] = "post"


@dataclasses.dataclass
class Address:
    street: str
    lines: list[int]


class Choice(TypedDict):
    to: Address


def shop(app: App) -> None:
    """Declare jobs that ask all that a person can be asked."""

    @app.tool(timeout=0.001)
    async def charge(card: str, key: Secret[str] | None = None) -> str:
        await asyncio.sleep(60)
        return f"{card} {key}"

    @app.step
    async def burn(n: int) -> int:
        spend(tokens=n)
        return n

    @app.job
    async def approve() -> str:
        answer = await wait_for("approval", timeout="3d", form=Approval)
        more = await wait_for("more", form=Choice)
        assert isinstance(answer, Approval)
        return f"{answer.approved} {answer.amount} {more['to'].street}"

    @app.job
    async def twice() -> list[bool]:
        return [(await wait_for("approval", form=Approval)).approved for _ in range(2)]

    @app.job
    def plainly() -> str:
        return str(wait_for("approval", form=Approval).how)

    @app.job
    async def pay() -> str:
        return await charge("4242", Secret.env("HOLDFAST_NO_SUCH_KEY"))

    @app.job
    async def costly() -> int:
        await burn(5)
        return await burn(6)

    @app.job
    async def several() -> list[Any]:
        return list(
            await gather(
                wait_for("first", form=Approval), wait_for("second", type="human"), wait_for("third"), charge("1111")
            )
        )


def kinds(listed: list[Question]) -> list[tuple[str, str]]:
    return [(one.kind, one.key) for one in listed]


def test_a_form_is_listed_its_answer_is_checked_decoded_and_signed_on_every_store(app: App) -> None:
    shop(app)

    async def story() -> None:
        run = await app.astart(app.entry("approve").options(attributes={"customer": "ada"}))
        await drain(app)
        (asked,) = await app.ainbox()
        assert (asked.kind, asked.key, asked.run_id, asked.entry_id) == ("answer", "approval", run.id, "approve")
        assert (asked.attributes, asked.question) == ({"customer": "ada"}, "Ship the order?")
        assert asked.until is not None
        explained = (await app.aexplain(run.id)).explanation
        assert explained.startswith("It waits for a person to answer 'approval', until ")
        assert explained.endswith(": see `holdfast inbox`.")
        assert asked.form is not None
        assert set(asked.form["$defs"]["Approval"]["properties"]) == {"approved", "amount", "note", "how"}
        before = await run.aevents()
        wrong: dict[str, Any] = {
            "answer: must be an object, got null": None,
            "answer.approved: is missing": {},
            'answer.approved: must be true or false, got "yes"': {"approved": "yes"},
            "answer.amount: must be at most 100, got 101": {"approved": True, "amount": 101},
            "answer.note: must be text or null, got 3": {"approved": True, "note": 3},
            'answer.how: must be "courier" or "post", got "fax"': {"approved": True, "how": "fax"},
        }
        for message, payload in wrong.items():
            with pytest.raises(InvalidArguments) as refused:
                await run.asignal("approval", payload)
            assert refused.value.reason == message
        assert await run.aevents() == before, "a refused answer is not stored"
        assert await run.asignal("approval", {"approved": True, "amount": 7}, "a", actor="ana") == "delivered"
        assert await app.asignal(run.id, "approval", {"approved": True, "amount": 7}, "a", actor="ana") == "repeat"
        answered = (await run.aevents())[-1]
        assert (answered.type, answered.payload["actor"]) == ("wait_completed", "ana")
        row = (await app.aaudit())[0]
        assert (row.actor, row.verb, row.subject, row.detail) == ("ana", "answer", run.id, {"key": "approval"})
        await drain(app)
        (asked,) = await app.ainbox(kind="answer")
        with pytest.raises(InvalidArguments, match=r"answer\.to\.lines\[1\]: must be a whole number, got \"x\""):
            await run.asignal("more", {"to": {"street": "Main", "lines": [1, "x"]}})
        await run.asignal("more", {"to": {"street": "Main", "lines": [1]}})
        await drain(app)
        assert await run.aresult() == "True 7 Main", "the first answer was decoded again in the replay"
        assert await app.ainbox() == []
        assert await app.averify() == {}

    play(story())


def test_an_answer_that_names_its_question_never_answers_the_next_one_on_every_store(app: App) -> None:
    shop(app)

    async def story() -> None:
        run = await app.astart("twice")
        await drain(app)
        (first,) = await app.ainbox(run_id=run.id)
        yes, no = {"approved": True}, {"approved": False}
        with pytest.raises(InvalidArguments, match=r"answer\.approved: is missing"):
            await run.asignal("approval", {}, node=first.node)
        assert await run.asignal("approval", yes, "mine", actor="ana", node=first.node) == "delivered"
        assert await run.asignal("approval", yes, "mine", actor="ana", node=first.node) == "repeat"
        for _ in range(2):  # before the job has asked again, and after
            before = await run.aevents()
            with pytest.raises(QuestionClosed, match="was answered by ana, so this answer was not stored") as refused:
                await app.asignal(run.id, "approval", no, actor="bo", node=first.node)
            assert (refused.value.job, refused.value.node, refused.value.answered_by) == (run.id, first.node, "ana")
            assert await run.aevents() == before
            await drain(app)
        (second,) = await app.ainbox()
        assert second.node != first.node
        assert await run.asignal("approval", no, node=second.node) == "delivered"
        await drain(app)
        assert await run.aresult() == [True, False]
        with pytest.raises(QuestionClosed):
            await run.asignal("approval", no, node=second.node)

    play(story())


def test_an_answer_about_a_try_in_doubt_never_counts_for_the_next_try_on_every_store(app: App) -> None:
    shop(app)

    async def story() -> None:
        run = await app.astart("pay")
        await drain(app)
        (first,) = await app.ainbox()
        assert first.started is not None
        await app.aresolve(run.id, first.key, not_done=True, actor="ana", started=first.started)
        await drain(app)
        (again,) = await app.ainbox()
        assert (again.key, again.node) == (first.key, first.node)
        before = await run.aevents()
        with pytest.raises(QuestionClosed) as refused:
            await app.aresolve(run.id, first.key, done="receipt", actor="bo", started=first.started)
        assert refused.value.answered_by == "ana"
        assert await run.aevents() == before
        await app.aresolve(run.id, first.key, done="receipt", actor="bo", started=again.started)
        await drain(app)
        assert await run.aresult() == "receipt"
        with pytest.raises(NotInDoubt):
            await app.aresolve(run.id, first.key, done="receipt", started=again.started)

    play(story())


def test_a_grant_for_a_question_is_not_kept_for_the_next_one_on_every_store(app: App) -> None:
    shop(app)

    async def story() -> None:
        run = await app.astart(app.entry("costly").options(budget={"tokens": 3}))
        await drain(app)
        (asked,) = await app.ainbox(kind="budget", run_id=run.id)
        assert await app.agrant(run.id, tokens=3, node=asked.node) == "delivered"
        with pytest.raises(QuestionClosed):
            await app.agrant(run.id, tokens=100, node=asked.node)
        await drain(app)
        assert await run.aresult() == 6, "the check comes before a call, and 6 covered the first"

    play(story())


def test_an_answer_that_came_too_early_and_does_not_fit_is_asked_for_again(app: App) -> None:
    shop(app)

    async def story() -> None:
        run = await app.astart("plainly")
        assert await run.asignal("approval", {"approved": 1}) == "kept"
        await drain(app)
        (asked,) = await app.ainbox()
        assert asked.misfit is not None
        assert "bool" in asked.misfit
        await run.asignal("approval", {"approved": True, "how": "courier"})
        await drain(app)
        assert await run.aresult() == "courier"

    play(story())


def test_doubts_budgets_and_several_questions_of_one_run_are_listed_page_by_page(app: App) -> None:
    shop(app)

    async def story() -> None:
        paid = await app.astart("pay")
        await drain(app)
        spent = await app.astart(app.entry("costly").options(budget={"tokens": 3}))
        await drain(app)
        many = await app.astart(app.entry("several").options(group="acme"))
        await drain(app)
        (paused,) = [await app.astart("approve")]
        await app.apause(paused.id)
        listed = await app.ainbox()
        charge = listed[0].key
        assert kinds(listed[:2]) == [("doubt", charge), ("budget", "holdfast:budget")]
        assert [one.run_id for one in listed] == [paid.id, spent.id, many.id, many.id, many.id]
        assert {one.key for one in listed[2:]} == {"first", "second", listed[-1].key} | {
            one.key for one in listed[2:] if one.kind == "doubt"
        }
        assert sorted(one.kind for one in listed[2:]) == ["answer", "answer", "doubt"]
        doubt = listed[0]
        assert doubt.call is not None
        assert (doubt.title, doubt.call.name, doubt.call.args) == ("charge", "charge", "card='4242', key='[secret]'")
        assert doubt.question.startswith("Did charge(card='4242', key='[secret]') happen?")
        assert listed[1].amounts is not None
        assert (listed[1].amounts["tokens"].spent, listed[1].amounts["tokens"].limit) == (5, 3)
        assert "5 of 3 tokens" in listed[1].question
        human = next(one for one in listed if one.key == "second")
        assert (human.form, human.question) == (None, "The run waits for 'second'.")
        paged: list[Question] = []
        while page := await app.ainbox(after=paged[-1].id if paged else None, limit=1):
            paged += page
        assert paged == listed
        for kind in ("doubt", "answer", "budget"):
            assert await app.ainbox(kind=kind) == [one for one in listed if one.kind == kind]
        assert await app.ainbox(group="acme") == listed[2:]
        assert await app.ainbox(group="other") == []
        assert await app.ainbox(run_id=many.id) == listed[2:]
        assert await app.ainbox(run_id=many.id, after=listed[2].id, limit=1) == listed[3:4]
        assert await app.ainbox(run_id=many.id, group="other") == await app.ainbox(run_id=f"{many.id}.2") == []
        assert await app.ainbox(run_id="no such run") == []
        assert await app.ainbox(group="other", after=f"{many.id}~0") == [], "a cursor opens no other group"
        with pytest.raises(InvalidArguments, match=r"answer\.approved: is missing"):
            await many.asignal("first", {})
        assert await many.asignal("second", {"any": "thing"}) == "delivered"
        await app.aresolve(paid.id, charge, done="receipt", actor="ana")
        await drain(app)
        assert await paid.aresult() == "receipt"
        assert paid.id not in {one.run_id for one in await app.ainbox()}

    play(story())


def test_what_cannot_be_a_form_is_refused_where_it_is_written(app: App) -> None:
    class Keyed(msgspec.Struct):
        key: Secret[str]

    @app.job
    async def ask(which: int) -> None:
        forms: list[Any] = [Any, object, Keyed]
        try:
            await wait_for("x", form=forms[which])
        except InvalidArguments as error:
            seen.append(error.reason)
        try:
            await wait_for("x", type="webhook", form=Approval)
        except InvalidArguments as error:
            seen.append(error.reason)

    seen: list[str] = []

    async def story() -> None:
        for which in range(3):
            await app.astart(ask, which)
        await drain(app)

    play(story())
    assert len(seen) == 6
    assert sum("JSON Schema" in one for one in seen) == 2
    assert sum("secrets" in one for one in seen) == 1
    assert sum("leave type out" in one for one in seen) == 3


ANSWERS = st.builds(
    Approval, approved=st.booleans(), amount=st.integers(0, 100), note=st.none() | st.text(max_size=5),
    how=st.sampled_from(["post", "courier"]),
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(0, 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["approved", "amount", "note", "how", "x"]), inner, max_size=4
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=80, deadline=None, phases=[Phase.generate])
@given(st.one_of(ANSWERS.map(msgspec.to_builtins), JSON))
def test_the_check_of_the_schema_and_of_the_type_agree(payload: Any) -> None:
    form = form_of(Approval)
    try:
        form.decode(payload)
    except InvalidArguments:
        assert misfit(form.schema, payload) is not None
    else:
        assert misfit(form.schema, payload) is None


def test_a_schema_with_unknown_or_hostile_parts_is_checked_in_bounded_time() -> None:
    deep: dict[str, Any] = {"$ref": "#"}
    assert misfit(deep, 1) is None
    assert misfit({"$ref": "#/nowhere", "type": "newer"}, 1) is None
    hostile = ("(a+)+$", "(a|a)*b", "((a*)*)*b", "(a?){40}a{40}", "a?" * 60 + "a" * 60, "a*a*a*a*a*a*b", r"(\w+\s?)*$")
    began = time.monotonic()
    for pattern in hostile:
        assert misfit({"pattern": pattern}, "a" * 60 + "!") is None, "the job checks it"
        misfit({"pattern": pattern}, "a" * 12 + "!")
    assert time.monotonic() - began < 5, "one of them would take days"
    assert misfit({"pattern": r"^\d+(\.\d{2})?$"}, "12.5") is not None
    assert misfit({"pattern": "^a$"}, "b") == 'answer: must match ^a$, got "b"'
    assert misfit({"items": {"items": {"$ref": "#"}}}, [[[1]]]) is None
    assert misfit({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1) is None
    assert misfit({"minItems": 2}, [1]) == "answer: must have at least 2 items, has 1"
    assert misfit({"prefixItems": [{"type": "string"}], "items": False}, [3]) == "answer[0]: must be text, got 3"
    assert misfit({"const": 4}, 5) == "answer: must be 4, got 5"
    assert misfit({"additionalProperties": False, "properties": {"a": {}}}, {"b": 1}) == (
        "answer.b: is not known; use a"
    )
    assert misfit(None, 5) is None
    assert Form(int).decode(5) == 5
