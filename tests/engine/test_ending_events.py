"""However a job's code ends, an event comes out that can be stored (SPEC P4, E10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast import App
from holdfast.authoring.functions import Backoff, JobFunction
from holdfast.engine.ending_events import MESSAGE_MAX, TRACEBACK_MAX, completed, error_text, failed, kind_of
from holdfast.errors import InDoubt, PlanFailed, StepFailed
from holdfast.machines.event import freeze_plain
from support.stories import play


class Quiet(Exception):
    """Its text raises what is no Exception."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):
    def __str__(self) -> str:
        return f"{self}!"


class Loud(Exception):
    def __str__(self) -> str:
        return "x" * 5_000_000


class Odd(str):
    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no bytes")

    def __contains__(self, _: object) -> bool:
        raise RuntimeError("nothing is in it")


class Twisted(Exception):
    def __str__(self) -> str:
        return Odd("twisted")


class NotText(Exception):
    def __str__(self) -> str:
        return cast("str", 5)


class Broken(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name in {"__cause__", "__traceback__", "__notes__"}:
            raise Leaving
        return super().__getattribute__(name)


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]  # - as above
        raise RuntimeError("no name")

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no instances")


def anonymous() -> type[Exception]:
    """Made here, for pytest asks everything in a module what it is called."""

    class Anonymous(Exception, metaclass=Nameless):
        pass

    return Anonymous


def nobody() -> BaseException:
    return anonymous()("x")


class Sneaky(StepFailed):
    @property
    def node(self) -> str:
        raise RuntimeError("no node")

    @node.setter
    def node(self, value: str) -> None: ...


def circle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def surrogates() -> BaseException:
    return OSError(5, "bad name", "\udcff\x00")


MISBEHAVED: list[Callable[[], BaseException]] = [
    Quiet, Leaving, Endless, Loud, Twisted, NotText, Broken, nobody, circle, surrogates,
    lambda: BaseExceptionGroup("many", [Quiet(), Broken(), circle()]),
    lambda: Sneaky("step", "kind", "reason", "node"), KeyboardInterrupt, lambda: KeyError(Odd("x")),
]  # fmt: skip


def job(app: App, **options: Any) -> JobFunction[..., Any]:
    @app.job(**options)
    async def work() -> Any: ...

    return work


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("make", MISBEHAVED)
def test_an_error_that_misbehaves_when_it_is_read_still_ends_the_job(make: Callable[[], BaseException]) -> None:
    work = job(App("shop", "memory:"))
    error = raised(make())
    kind, payload = failed(work, error, 1, 0.0)
    assert kind == "job_failed"
    assert freeze_plain(payload).text
    assert len(payload["message"]) <= MESSAGE_MAX
    assert len(payload["details"]["traceback"]) <= TRACEBACK_MAX
    assert (payload["code"], payload["message"]) == (kind_of(error), error_text(error))


def test_a_class_that_says_itself_what_its_instances_are_does_not_stop_the_verdict() -> None:
    only: Any = (anonymous(),)
    work = job(App("shop", "memory:"), backoff=Backoff(retries=3, only=only))
    assert failed(work, ValueError("x"), 1, 0.0)[0] == "job_failed"
    retried = job(App("shop", "memory:"), backoff=Backoff(retries=3))
    assert failed(retried, anonymous()("x"), 1, 0.0)[0] == "job_requeued"


def test_the_calls_that_ended_the_job_are_named_through_groups_and_causes() -> None:
    work = job(App("shop", "memory:"))
    cause = RuntimeError("wrapped")
    cause.__cause__ = StepFailed("a", "ValueError", "x", "a:1")
    doubt = InDoubt("c", "InDoubt", "x", "c:1")
    many = ExceptionGroup("many", [StepFailed("b", "ValueError", "x", "b:1"), cause, doubt])
    plan = PlanFailed("plan", "x", "y", "plan:1")
    plan.__cause__ = many
    assert failed(work, many, 1, 0.0)[1]["nodes"] == ["b:1", "a:1"]
    assert failed(work, plan, 1, 0.0)[1]["nodes"] == ["b:1", "a:1"]
    assert "nodes" not in failed(work, doubt, 1, 0.0)[1]


class Unbound:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a context")


class Exiting:
    @property
    def __class__(self) -> Any:
        raise SystemExit(3)

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@pytest.mark.parametrize("make", [Unbound, Exiting, object])
def test_a_result_that_raises_when_it_is_looked_at_fails_the_job(make: Callable[[], Any]) -> None:
    work = job(App("shop", "memory:"))
    (kind, payload), content = completed(work, {"deep": [make()]}, 1, 0.0, 1000, 1000)
    assert (kind, payload["code"], content) == ("job_failed", "InvalidResult", None)
    assert freeze_plain(payload).text


@pytest.mark.parametrize("make", [Unbound, Exiting])
def test_a_run_whose_result_raises_when_it_is_looked_at_ends(app: App, make: Callable[[], Any]) -> None:
    """The worker's slot is free again, and a step's such result is the step's failure."""

    @app.step
    async def give() -> Any:
        return make()

    @app.job
    async def of_a_step() -> str:
        try:
            await give()
        except StepFailed as error:
            return f"{error.kind}, {error.__cause__ is None or 'live'}"
        return "it was taken"

    @app.job
    async def of_a_job() -> Any:
        return make()

    ended, step = of_a_job.start(), of_a_step.start()
    play(app.worker(concurrency=1).arun(until_idle=True))
    assert app.get(ended.id).status == "failed"
    assert app.get(ended.id).error.code == "InvalidResult"  # type: ignore[union-attr]
    assert app.get(step.id).status == "succeeded"
    assert step.result().startswith("InvalidResult")
    assert app.verify() == {}


def test_a_failure_reads_back_from_its_record_as_it_was_raised() -> None:
    """What an exception is made of is text that JSON keeps: made again from its record it is the same."""
    for kind in (StepFailed, InDoubt, PlanFailed):
        error = kind("charge", "ValueError", "no such card é\x00", "charge:1")
        again = kind(error.step, error.kind, error.reason, error.node)
        assert (again.args, vars(again), str(again)) == (error.args, vars(error), str(error))
        assert again.__cause__ is again.__context__ is None
