"""A job whose code does not fit its history: it asks which code goes on (SPEC E8).

The job waits, and costs a row. Its event has both calls, the line of the code, the build that recorded the history and
the build that does not fit. If a live worker has the build that recorded the history, the job goes to it without a
question. It is kept for that build until a worker takes it. If the last such worker ends before, the job is released.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.engine.replay import Replay
from holdfast.errors import NonDeterminism
from holdfast.machines import JobEvent
from holdfast.machines.keys import DEPLOY, END, deploy_key
from holdfast.store import Job, WorkerCard

Written = tuple[str, dict[str, Any]]
TEXTS_MAX = 20  # recorded calls that the event shows


def question(replay: Replay, error: NonDeterminism, build: str | None) -> Written:
    """Return the event with which the job waits for an answer."""
    details = {
        "call": error.asked,
        "recorded": error.recorded[:TEXTS_MAX],
        "nodes": error.nodes,
        "line": error.line,
        "began": replay.build_of(error.nodes),
        "build": build,
    }
    wait = {"node": error.node, "correlation_key": deploy_key(error.node), "wait_type": DEPLOY, "park": True}
    return JobEvent.WAITING.value, {**wait, DEPLOY: details}


def forgotten_tools(replay: Replay) -> NonDeterminism | None:
    """Return the error of code that ends, and leaves open whether a tool has acted; None if it leaves nothing open."""
    nodes = replay.forgotten()
    if not nodes:
        return None
    error = NonDeterminism(END, [replay.describe(node) for node in nodes])
    error.node, error.nodes = END, nodes
    return error


def left_by_plan(replay: Replay, plan: dict[str, Any]) -> NonDeterminism | None:
    """Return the error of a plan that is made now, and calls a name again that the history has; None if it fits.

    A job that was code has become a plan. Its recorded calls have other identities than the nodes of the plan, and are
    not looked at once the plan is recorded. So a tool would act twice.
    """
    for node in plan.get("nodes") or () if replay.may_be_unasked else ():
        name = node.get("call") or f"job.{node.get('job')}"
        if unasked := replay.unasked(name):
            error = NonDeterminism(f"{name} in a new plan", [replay.describe(each) for each in unasked])
            error.node, error.nodes = f"{name}:{node.get('id')}", unasked
            return error
    return None


def requeue(asked: Written) -> Written:
    """Return the event that gives the job to the workers of the build that recorded its history."""
    details = asked[1][DEPLOY]
    return JobEvent.REQUEUED.value, {"reason": DEPLOY, "build": details["began"], DEPLOY: details}


def has_worker(cards: Iterable[WorkerCard], job: Job, build: str, now: float) -> bool:
    """Return whether a live worker of this build can run the job."""
    return any(
        card.build == build
        and now - card.seen_at <= card.lease_seconds
        and f"{job.plugin}.{job.entry}" in card.entries
        and (card.queues is None or job.queue in card.queues)
        for card in cards
    )
