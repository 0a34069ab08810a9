"""Request keys: a command with a key is executed once, in the transaction that keeps its answer."""

from __future__ import annotations

from holdfast.errors import IdempotencyKeyReused, InvalidTransition
from holdfast.machines import JobState
from holdfast.store.audit import Audited
from holdfast.store.commands import Cancel, PauseQueue, Purge, Retry, SendSignal
from holdfast.store.contract.harness import Lab, clause
from holdfast.store.request_keys import KEPT_SECONDS, KeepAnswer, Once, Repeat


@clause
async def a_request_with_a_known_key_is_not_executed_again_and_gets_the_first_answer(lab: Lab) -> None:
    await lab.append(await lab.running("a"), ("job_failed", {"reason": "no"}))
    retry = Once(Retry("a", "ana", "again"), "ana\nk", "one")
    assert (await lab.do(retry)).run == 2
    await lab.do(Cancel("a", None))
    assert (await lab.job("a")).state is JobState.CANCELLED
    length = len(await lab.types("a"))
    assert await lab.do(retry) == Repeat({"job": "a", "run": 2})
    assert len(await lab.types("a")) == length
    assert (await lab.do(Once(SendSignal("a", "k", 1, "s"), "ana\ns", "one"))).outcome == "too_late"
    assert await lab.do(Once(SendSignal("a", "k", 1, "s"), "ana\ns", "one")) == Repeat({"outcome": "too_late"})
    assert await lab.do(Once(PauseQueue("q", paused=True), "ana\nq", "one")) is None
    await lab.do(PauseQueue("q", paused=False))
    assert await lab.do(Once(PauseQueue("q", paused=True), "ana\nq", "one")) == Repeat({})
    assert not any(state.limits.paused for state in await lab.store.limits())


@clause
async def a_key_of_another_request_is_refused_and_nothing_is_executed(lab: Lab) -> None:
    await lab.submit("a")
    await lab.submit("b")
    await lab.do(Once(KeepAnswer({"page": 1}), "ana\nk", "one"))
    error = await lab.refused(Once(Cancel("a", None), "ana\nk", "two"), IdempotencyKeyReused)
    assert isinstance(error, IdempotencyKeyReused)
    assert error.key == "k", "only what the client has sent"
    assert (await lab.do(Once(Cancel("a", None), "bob\nk", "two"))).state is JobState.CANCELLED
    assert (await lab.job("b")).state is JobState.QUEUED
    assert await lab.do(Once(KeepAnswer({"page": 2}), "ana\nk", "one")) == Repeat({"page": 1})


@clause
async def a_refused_request_leaves_its_key_free(lab: Lab) -> None:
    held = await lab.running("a")
    retry = Once(Retry("a", "ana", "again"), "ana\nk", "one")
    await lab.refused(retry, InvalidTransition)
    await lab.append(held, ("job_failed", {"reason": "no"}))
    assert (await lab.do(retry)).run == 2


@clause
async def requests_with_one_key_in_one_batch_are_one_request(lab: Lab) -> None:
    for name in ("a", "b", "c"):
        await lab.append(await lab.running(name), ("job_failed", {"reason": "no"}))

    def retry(job: str, key: str, fingerprint: str) -> Once:
        return Once(Audited(Retry(job, "ana", "again"), "retry", job, "ana"), key, fingerprint)

    answers = await lab.store.commit(
        [retry("a", "x\nk", "1"), retry("a", "x\nk", "1"), retry("b", "x\nk", "2"), Retry("c", "ana", "again")]
    )
    assert answers[0].run == 2
    assert answers[1] == Repeat({"job": "a", "run": 2})
    assert isinstance(answers[2], IdempotencyKeyReused)
    assert answers[3].id == "c"
    assert (await lab.job("b")).state is JobState.FAILED
    assert [row.subject for row in await lab.store.audit(None, 10)] == ["a"], "a repeat has no row"


@clause
async def a_key_is_kept_for_a_time_and_then_free(lab: Lab) -> None:
    purge = Once(Purge(lab.clock.now()), "ana\nk", "one")
    await lab.do(purge)
    lab.clock.move(KEPT_SECONDS - 1)
    await lab.do(Once(KeepAnswer({}), "ana\nother", "one"))
    assert await lab.do(purge) == Repeat({"jobs": []})
    lab.clock.move(2)
    await lab.do(Once(KeepAnswer({}), "ana\nnew", "one"))
    assert (await lab.do(Once(Purge(lab.clock.now()), "ana\nk", "two"))).jobs == []
