"""Natural mistakes of a new user: each is refused where it is made, and the message says what to do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import App, Backoff, InvalidArguments, NotInsideJob, RunFailed, external_key, now, sleep, wait_for
from holdfast.errors import InvalidSetting

if TYPE_CHECKING:
    from fractions import Fraction  # as many users import what only a hint needs


@pytest.fixture
def local() -> Iterator[App]:
    app = App("shop", "memory:")
    yield app
    app.close()


def declared(app: App) -> None:
    @app.step
    async def key() -> str:
        return external_key()

    @app.step
    async def waits() -> Any:
        return await wait_for("x")

    @app.job
    async def inner() -> int:
        return 1

    @app.step
    async def nested() -> Any:
        return await inner()

    @app.job
    async def work(what: str) -> Any:
        if what == "key":
            return await key()
        if what == "own":
            return external_key()
        return await (nested() if what == "nested" else waits())


def test_a_job_called_directly_is_refused_and_the_message_names_start(local: App) -> None:
    @local.job
    async def checkout(sku: str) -> str:
        return sku

    with pytest.raises(NotInsideJob, match=r"the job checkout was called outside a job: use checkout\.start\(…\)"):
        checkout("A1")  # type: ignore[unused-coroutine]
    assert asyncio.run(checkout.function("A1")) == "A1", "the bare function can be tested by itself"


@pytest.mark.parametrize(
    ("call", "name"), [(lambda: wait_for("x"), "wait_for"), (lambda: sleep(1), "sleep"), (now, "now")]
)
def test_a_call_outside_a_job_is_refused_with_its_name(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(NotInsideJob, match=f"{name} was called outside a job: call it in the code of a job"):
        call()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("own", "external_key was called in the job's own code: call it in a step or tool"),
        ("waits", "wait_for was called inside a step or tool: call it in the code of a job"),
        ("nested", "the job inner was called inside a step or tool: use inner.start"),
    ],
)
def test_a_call_in_the_wrong_place_of_a_job_says_where_it_belongs(app: App, what: str, message: str) -> None:
    declared(app)
    run = app.start("work", what)
    app.worker().run(until_idle=True)
    with pytest.raises(RunFailed) as failed:
        run.result(timeout=10)
    assert message in str(failed.value)


def test_a_step_outside_a_job_runs_as_a_plain_function_without_a_key(local: App) -> None:
    @local.step
    async def key() -> str:
        return external_key()

    @local.step
    async def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(2)) == 4
    with pytest.raises(NotInsideJob, match="external_key was called outside a job: call it in a step or tool that a"):
        asyncio.run(key())


def test_backoff_keeps_the_retries_of_the_decorator(app: App) -> None:
    calls: list[int] = []

    @app.step(retries=2, backoff=Backoff(first_seconds=0.001))
    async def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("away")
        return len(calls)

    @app.job
    async def work() -> int:
        return await flaky()

    run = work.start()
    app.worker().run(until_idle=True)
    assert run.result(timeout=10) == 3
    with pytest.raises(ValueError, match="retries is 2, but backoff has retries=5: give one of them"):
        app.step(retries=2, backoff=Backoff(retries=5))(fine)
    assert app.step(retries=2, backoff=Backoff(retries=2))(fine).backoff.retries == 2


class Shop:
    def method(self, x: int) -> int:
        return x

    @classmethod
    def of_class(cls, x: int) -> int:
        return x

    @staticmethod
    def static(x: int) -> int:
        return x


def generator() -> Iterator[int]:
    yield 1


def unresolved(part: Fraction) -> Any:
    return part


def fine(x: int) -> int:
    return x


@pytest.mark.parametrize("kind", ["job", "step", "tool"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Shop.method, "Shop.method is a method, and self cannot be stored: write a function outside the class"),
        (Shop.__dict__["of_class"], "takes a function, got Shop.of_class: write a function outside the class"),
        (Shop, "takes a function, got Shop"),
        (generator, "generator is a generator, whose items cannot be stored: return a list"),
        (lambda: 1, "a lambda has no name to record it under: pass name=, or write a function"),
        (unresolved, "unresolved: a type hint names Fraction, which does not exist here: define or import it"),
    ],
)
def test_a_function_that_cannot_be_recorded_is_refused_at_the_decorator(
    local: App, kind: str, function: Any, message: str
) -> None:
    with pytest.raises(TypeError) as refused:
        getattr(local, kind)(function)
    assert message in str(refused.value)


@pytest.mark.parametrize("kind", ["job", "step", "tool"])
def test_bound_and_static_methods_and_named_lambdas_may_be_declared(local: App, kind: str) -> None:
    for name, function in {"a": Shop().method, "b": Shop.static, "c": Shop.__dict__["static"], "d": lambda: 1}.items():
        declared = getattr(local, kind)(name=name)(function)
        assert declared.name == name
        known = local.entries[local.name, name] if kind == "job" else local.calls[name]
        assert known.function(*(() if name == "d" else (1,))) == 1, "the function itself, bound to its object"


@pytest.mark.parametrize("pin", ["yes", 1, None])
def test_a_pin_that_is_not_a_bool_is_refused(local: App, pin: Any) -> None:
    async def work() -> None: ...

    with pytest.raises(TypeError, match=rf"pin must be True or False, got {pin!r}"):
        local.job(pin=pin)(work)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("step", {"retires": 3}, "@app.step has no option 'retires'; did you mean 'retries'?; the options are name"),
        ("job", {"que": "x"}, "@app.job has no option 'que'; did you mean 'queue'?"),
        ("step", {"on_doubt": "ask"}, "@app.step has no option 'on_doubt'; the options are"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(
    local: App, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as refused:
        getattr(local, kind)(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize("retries", [-1, 1.5, True, "3"])
def test_retries_is_a_count(local: App, retries: Any) -> None:
    with pytest.raises(ValueError, match="retries must be an integer, 0 or more, got"):
        local.step(retries=retries)(fine)


def test_an_app_needs_a_name() -> None:
    with pytest.raises(InvalidSetting, match="the name of an app must be text"):
        App("", "memory:")


def test_hints_may_name_local_classes(app: App) -> None:
    @dataclasses.dataclass
    class Order:
        sku: str

    @app.job
    async def work(order: Order) -> str:
        assert isinstance(order, Order)
        return order.sku

    run = work.start(Order("A1"))
    app.worker().run(until_idle=True)
    assert run.result(timeout=10) == "A1"


def test_a_path_is_an_argument_and_a_result(app: App) -> None:
    @app.step
    async def parent(path: Path) -> Path:
        assert isinstance(path, Path)
        return path.parent

    @app.job
    async def work(path: Path, paths: list[Path]) -> Path:
        assert isinstance(path, Path)
        assert isinstance(paths[0], Path)
        return await parent(path)

    run = work.start(Path("/a/b"), [Path("c")])
    app.worker().run(until_idle=True)
    assert run.result(timeout=10) == Path("/a")
    with pytest.raises(InvalidArguments, match="path"):
        work.start(5, [])  # type: ignore[arg-type]


def test_a_delay_that_is_a_point_in_time_says_what_to_pass(local: App) -> None:
    job = local.job(fine)
    with pytest.raises(ValueError, match=r"a duration is not a point in time: pass the time until then, as in when -"):
        job.options(delay=datetime.now(UTC))
    with pytest.raises(ValueError, match="a duration is seconds, 0 or more, a timedelta, or text such as '3d', got"):
        job.options(delay=object())


def test_a_coroutine_as_a_value_asks_for_await(app: App) -> None:
    async def own() -> int:
        return 1

    forgotten = own()

    @app.job
    async def work() -> Any:
        return forgotten

    run = work.start()
    app.worker().run(until_idle=True)
    with pytest.raises(RunFailed, match=r"own\(…\) is a coroutine, which is not JSON: did you forget await\?"):
        run.result(timeout=10)
    forgotten.close()
