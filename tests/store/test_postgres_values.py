"""Values that PostgreSQL cannot keep are refused alone; everything else is kept as it is."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, HoldfastError, wait_for
from holdfast.machines import check
from holdfast.store import (
    Append,
    Cancel,
    Command,
    Evidence,
    KeepEvidence,
    Pause,
    PutWorker,
    ReleaseLeases,
    RemoveWorker,
    Renew,
    Resolve,
    Retry,
    SendSignal,
    Submitted,
)
from holdfast.store.postgres import PostgresStore, transaction
from holdfast.store.sql.event_rows import EventRow
from support.postgres import fresh_url
from support.postgres_store import card, claim, submit, with_store
from support.stories import drain, play, quick

LONG = "".join(random.Random(1).choices(string.ascii_letters, k=9000))  # that no index can hold
BAD_TEXT = {"nul": "a\0b", "surrogate": "\ud800", "long": LONG}
NAMES: dict[str, Callable[[str], Command]] = {
    "job": submit,
    "plugin": lambda text: submit("x", plugin=text),
    "entry": lambda text: submit("x", entry=text),
    "queue": lambda text: submit("x", queue=text),
    "key": lambda text: submit("x", idempotency_key=text),
    "parent": lambda text: submit("x", parent=text, parent_key="k"),
    "signal's id": lambda text: SendSignal("a", "k", None, text),
    "evidence's node": lambda text: KeepEvidence(Evidence("a", text, 1, 1)),
    "worker": lambda text: PutWorker(card(text)),
    "worker of a claim": claim,
}
ASKED: dict[str, Callable[[str], Command]] = {
    "fingerprint": lambda text: submit("x", fingerprint=text),
    "signal's key": lambda text: SendSignal("a", text, None, "s"),
    "signal's job": lambda text: SendSignal(text, "k", None, "s"),
    "job to cancel": lambda text: Cancel(text, None),
    "evidence's error": lambda text: KeepEvidence(Evidence("a", "n", 1, 1, None, text)),
    "worker that leaves": RemoveWorker,
    "worker that died": ReleaseLeases,
    "job of a renewal": lambda text: Renew("w", ((text, 1),), 60.0),
    "type of an event": lambda text: Append("a", 1, ((text, {}),)),
}
TOLD: dict[str, Callable[[str], Command]] = {
    "arguments": lambda text: submit("x", args={"x": text}),
    "trace": lambda text: submit("x", trace_id=text),
    "signal's payload": lambda text: SendSignal("a", "k", text, "s"),
    "reason": lambda text: Cancel("a", text),
    "actor": lambda text: Pause("a", text),
    "evidence": lambda text: KeepEvidence(Evidence("a", "n", 1, 1, text)),
    "event": lambda text: Append("held", 1, (("node_started", {"node": "n", "x": text}),)),
    "operator's answer": lambda text: Resolve("doubt", "n", "done", text),
    "operator's reason": lambda text: Retry("failed", "me", text),
}


async def in_a_batch(store: PostgresStore, command: Command) -> Any:
    """Carry out a command between two good ones, which must go through; its answer."""
    doubt = {"node": "n", "correlation_key": "holdfast:doubt:n", "wait_type": "human", "deadline": None, "park": True}
    for job, last in (("held", None), ("doubt", ("job_waiting", doubt)), ("failed", ("job_failed", {"reason": "r"}))):
        await store.commit([submit(job), claim()])
        if last is not None:
            await store.commit([Append(job, 1, (last,))])
    await store.commit([submit("a")])
    before, answer, after = await store.commit([submit("y"), command, submit("z")])
    assert isinstance(before, Submitted)
    assert isinstance(after, Submitted)
    assert await store.get("y") is not None
    assert await store.get("z") is not None
    return answer


REFUSED = [(field, text) for field in (*NAMES, *ASKED) for text in BAD_TEXT if text != "long" or field in NAMES]


@pytest.mark.parametrize(("field", "text"), REFUSED)
def test_a_name_that_cannot_be_kept_is_refused_alone(field: str, text: str) -> None:
    command = {**NAMES, **ASKED}[field](BAD_TEXT[text])
    answer = with_store(lambda store: in_a_batch(store, command))
    assert isinstance(answer, HoldfastError), answer


@pytest.mark.parametrize("text", BAD_TEXT)
@pytest.mark.parametrize("field", TOLD)
def test_a_payload_is_any_json_text_and_what_is_none_is_refused_alone(field: str, text: str) -> None:
    async def story(store: PostgresStore) -> Any:
        answer = await in_a_batch(store, TOLD[field](BAD_TEXT[text]))
        for row in await store.jobs():
            assert check(await store.events(row.id), head=row.head) == []
        return answer

    assert isinstance(with_store(story), HoldfastError) == (text == "surrogate")


def test_a_number_that_no_column_holds_is_refused_alone() -> None:
    answer = with_store(lambda store: in_a_batch(store, submit("x", priority=2**63)))
    assert isinstance(answer, HoldfastError)
    assert "out of range" in str(answer)


def test_a_batch_larger_than_one_statement_takes_is_one_transaction_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction, "PORTION_BYTES", 5000)
    events, sizes = transaction._events, []

    def seen(rows: list[EventRow]) -> dict[str, Any]:
        sizes.append(sum(len(payload) for _, _, _, payload, *_ in rows))
        return events(rows)

    monkeypatch.setattr(transaction, "_events", seen)

    async def story(store: PostgresStore) -> None:
        large = [submit(f"j{number:02}", args={"x": "x" * size}) for number, size in enumerate([1000] * 20 + [9000, 1])]
        assert all(isinstance(answer, Submitted) for answer in await store.commit(large))
        for row in await store.jobs(limit=100):
            assert check(await store.events(row.id), head=row.head) == []

    with_store(story)
    assert len(sizes) > 4
    assert sorted(sizes)[-2] <= 5000 < max(sizes) < 10_000, "only what is larger by itself goes alone"


def test_names_may_hold_whatever_stands_between_the_values_of_a_statement() -> None:
    names = [f"{mark}a{mark}" for mark in transaction.MARKS]

    async def story(store: PostgresStore) -> None:
        for batch in [[name] for name in names] + [[f"b{name}" for name in names]]:  # alone; and with no mark left
            assert all(isinstance(answer, Submitted) for answer in await store.commit([submit(name) for name in batch]))
        kind, said = names[0], {"x": "".join(names)}
        (claimed,) = (await store.commit([claim()]))[0]
        await store.commit([Append(claimed.job.id, 1, ((kind, said),))])
        assert [(event.type, event.payload) for event in await store.events(claimed.job.id, after=2)] == [(kind, said)]
        rows = await store.jobs(limit=100)
        assert {row.id for row in rows} == {*names, *(f"b{name}" for name in names)}
        for row in rows:
            assert check(await store.events(row.id), head=row.head) == []

    with_store(story)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_nothing_is_found_by_a_name_that_cannot_be_kept(text: str) -> None:
    async def story(store: PostgresStore) -> list[Any]:
        looked = [store.events(text), store.inbox(text), store.evidence(text), store.jobs(plugin=text)]
        return [await store.get(text), *[await one for one in looked]]

    assert with_store(story) == [None, [], [], [], []]


def test_text_with_a_nul_goes_through_a_whole_job_as_it_is() -> None:
    async def story() -> None:
        app = App("shop", config=quick(fresh_url()))

        @app.step
        async def twice(text: str) -> str:
            return text * 2

        @app.job
        async def echo(text: str) -> list[str]:
            return [await twice(text), await wait_for("k\0")]

        handle = await app.astart(echo, "a\0b")
        with pytest.raises(HoldfastError):
            await handle.asignal("k\0", "c\0d")  # a signal's key is a column of its own
        await app.acancel(handle.id)
        other = await app.astart(echo, "a\0b")
        await drain(app)
        (started,) = [event for event in await other.aevents() if event.type == "command_committed"]
        assert started.payload["result"] == "a\0ba\0b"
        assert await app.averify() == {}
        await app.aclose()

    play(story())
