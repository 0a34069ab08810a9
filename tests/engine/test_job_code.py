"""The code of jobs on loops of their own: what it may use, what keeps it in memory, what a replay repeats."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import socket
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import httpx
import pytest

from holdfast import App, gather, sleep, wait_for
from holdfast.machines import JobState
from support.job_loops import served
from support.stories import drain, play, quick, until

set_by: contextvars.ContextVar[str] = contextvars.ContextVar("set_by", default="worker")


@pytest.fixture
def app() -> Iterator[App]:
    """An app in memory: none of this concerns the store."""
    made = App("shop", config=quick("memory:"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No task that was destroyed, no exception that was never retrieved, nothing on the standard error."""
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr().err == ""


async def state(app: App, job: str) -> JobState:
    row = await app.store().get(job)
    assert row is not None
    return row.state


class Web(BaseHTTPRequestHandler):
    """Answers every request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_httpx_in_job_code_works_live_and_replayed(app: App, web: str) -> None:
    @app.step
    async def note(what: str) -> str:
        return what

    @app.job
    async def work() -> list[str]:
        async with httpx.AsyncClient() as client:
            first = await note((await client.get(f"{web}/first")).text)
        await wait_for("go")
        async with httpx.AsyncClient() as client:
            answers = await asyncio.gather(*(client.get(f"{web}/{n}") for n in range(3)))
        return [first, *(answer.text for answer in answers)]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await state(app, handle.id) is JobState.WAITING
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() == ["/first", "/0", "/1", "/2"]

    play(story())


def test_an_open_connection_keeps_the_job_in_memory_and_its_wait_is_served_there(app: App, web: str) -> None:
    waiting = threading.Event()

    @app.job
    async def work() -> str:
        async with httpx.AsyncClient() as client:
            await client.get(f"{web}/x")
            waiting.set()
            said = await wait_for("go")
            return f"{said} {(await client.get(f'{web}/again')).text}"

    async def story() -> None:
        handle = await app.astart(work)
        async with served(app):
            await until(_set(waiting))
            await handle.asignal("go", "went")
            assert await handle.aresult() == "went /again"
        events = [event.type for event in await handle.aevents()]
        assert "job_waiting" not in events

    play(story())


def _set(event: threading.Event) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def is_set() -> bool:
        return event.is_set()

    return is_set


def test_a_connection_that_the_other_side_closes_lets_the_job_be_suspended(app: App) -> None:
    close = threading.Event()
    connected = threading.Event()

    def serve(listening: Any) -> None:
        connection, _ = listening.accept()
        with connection:
            close.wait(60)

    @app.job
    async def work(port: int) -> Any:
        await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
        connected.set()
        return await wait_for("go")

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=serve, args=(listening,), daemon=True).start()
            handle = await app.astart(work, listening.getsockname()[1])
            async with served(app):
                await until(_set(connected))
                assert await state(app, handle.id) is JobState.RUNNING
                close.set()

                async def waits() -> bool:
                    return await state(app, handle.id) is JobState.WAITING

                await until(waits)

    play(story())


def test_an_object_of_the_workers_loop_is_refused_by_asyncio(app: App) -> None:
    shared: asyncio.Queue[str] = asyncio.Queue()

    @app.step
    async def in_a_step() -> str:
        try:
            return await asyncio.wait_for(shared.get(), 0.001)  # from now on it is of the worker's loop
        except TimeoutError:
            return "empty"

    @app.job
    async def work() -> str:
        await in_a_step()
        return await shared.get()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        record = await handle.arecord()
        assert record.error is not None
        assert "bound to a different event loop" in str(record.error)

    play(story())


@pytest.mark.parametrize("way", ["to_thread", "run_in_executor", "own pool", "plain job"])
def test_a_thread_that_waits_in_a_durable_call_does_not_keep_the_job_in_memory(app: App, way: str) -> None:
    pool = ThreadPoolExecutor(2)

    def threaded() -> str:
        return f"{wait_for('go')} {wait_for('on')}"

    @app.job(name="work")
    async def in_thread() -> str:
        if way == "to_thread":
            return await asyncio.to_thread(threaded)
        return await asyncio.get_running_loop().run_in_executor(pool if way == "own pool" else None, threaded)

    @app.job
    def plain() -> str:
        return threaded()

    async def story() -> None:
        handle = await app.astart(plain if way == "plain job" else in_thread)
        for key in ("go", "on"):
            await drain(app)
            assert await state(app, handle.id) is JobState.WAITING
            await handle.asignal(key, key)
        await drain(app)
        assert await handle.aresult() == "go on"

    try:
        play(story())
    finally:
        pool.shutdown()


def test_code_that_is_slow_by_a_future_of_its_own_is_not_different_code(app: App) -> None:
    @app.step
    async def note(what: str) -> str:
        return what

    @app.job
    async def work() -> list[str]:
        async def slow() -> str:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            timer = threading.Timer(0.05, lambda: loop.call_soon_threadsafe(future.set_result, "slow"))
            timer.start()
            return await note(await future)

        async def other() -> str:
            return await note(await wait_for("go"))

        return await gather(slow(), other())

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await state(app, handle.id) is JobState.WAITING
        await handle.asignal("go", "went")
        await drain(app)
        assert await handle.aresult() == ["slow", "went"]

    play(story())


def test_a_context_variable_that_a_step_sets_does_not_reach_the_job(app: App) -> None:
    @app.step
    async def change() -> str:
        seen = set_by.get()
        set_by.set("step")
        return seen

    @app.step
    def change_plainly() -> str:
        seen = set_by.get()
        set_by.set("plain step")
        return seen

    @app.job
    async def work() -> list[str]:
        set_by.set("job")
        seen = [await change(), await asyncio.create_task(change()), await cast(Any, change_plainly()), set_by.get()]
        await wait_for("go")
        return [*seen, set_by.get()]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() == ["job"] * 5
        assert set_by.get() == "worker"

    play(story())


@pytest.mark.parametrize("beside", ["a step", "a wait", "a native sleep"])
def test_code_that_polls_is_served_and_other_jobs_go_on(app: App, beside: str) -> None:
    @app.step
    async def note(what: str) -> str:
        await asyncio.sleep(0)
        return what

    @app.job
    async def polling() -> Any:
        calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "a step": lambda: note("served"),
            "a wait": lambda: wait_for("go"),
            "a native sleep": lambda: asyncio.sleep(0.01, "served"),
        }
        task = asyncio.create_task(calls[beside]())
        while not task.done():  # noqa: ASYNC110 - code that never rests is what this is about
            await asyncio.sleep(0)
        return task.result()

    @app.job
    async def other() -> str:
        return await note("other")

    async def story() -> None:
        first, second = await app.astart(polling), await app.astart(other)
        async with served(app):
            assert await second.aresult() == "other"
            if beside == "a wait":
                await first.asignal("go", "served")
            assert await first.aresult() == "served"

    play(story())


def test_suspension_runs_finally_and_shows_no_cancellation_even_in_generators(app: App) -> None:
    seen: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            seen.append("generator")

    @app.job
    async def work() -> Any:
        opened = numbers()
        await anext(opened)
        try:
            said = await wait_for("go")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("finally")
        await cast(Any, opened).aclose()
        return said

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert seen == ["finally", "generator"]
        await handle.asignal("go", 1)
        await drain(app)
        assert await handle.aresult() == 1
        assert seen == ["finally", "generator"] * 2

    play(story())


def test_what_a_finally_asks_for_during_suspension_is_not_done(app: App) -> None:
    done: list[str] = []

    @app.tool
    async def act(what: str) -> str:
        done.append(what)
        return what

    @app.job
    async def work() -> Any:
        try:
            return await wait_for("go")
        finally:
            await asyncio.sleep(0)
            await act("cleanup")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await state(app, handle.id) is JobState.WAITING
        assert done == []
        await handle.asignal("go", 1)
        await drain(app)
        assert await handle.aresult() == 1
        assert done == ["cleanup"]

    play(story())


def test_six_hundred_suspensions_leave_nothing_on_the_workers_loop(app: App) -> None:
    @app.step
    async def note(what: int) -> int:
        return what

    @app.job
    async def work(number: int) -> Any:
        async with asyncio.timeout(3600):
            await asyncio.sleep(0)
        await asyncio.gather(note(number), asyncio.to_thread(int))
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for("never"))
            group.create_task(sleep(3600))

    def on_the_loop() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        timers = [one for one in loop._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
        return len(asyncio.all_tasks()), len(timers)

    async def story() -> None:
        await app.astart(work, 0)
        await drain(app)
        before = on_the_loop()
        for number in range(1, 601):
            await app.astart(work, number)
        await drain(app)
        assert len(await app.alist(limit=1000)) == 601
        assert on_the_loop() == before

    play(story())


@pytest.mark.parametrize("ends", ["returned", "failed", "suspended"])
def test_nothing_of_a_job_is_kept_alive_after_its_attempt(app: App, ends: str) -> None:
    left: list[weakref.ref[Any]] = []

    class Held:
        pass

    @app.step
    async def note(what: str) -> str:
        return what

    @app.job
    async def work() -> str:
        held = Held()
        task = asyncio.create_task(note("a"))
        left.extend(map(weakref.ref, (held, asyncio.get_running_loop(), asyncio.current_task(), task)))
        await task
        await asyncio.to_thread(int)
        await asyncio.sleep(0.001)
        if ends == "failed":
            raise ValueError("boom")
        if ends == "suspended":
            await gather(wait_for("never"), sleep(3600))
        return "done"

    async def story() -> None:
        await app.astart(work)
        async with served(app):

            async def all_gone() -> bool:
                gc.collect()
                return len(left) == 4 and not any(one() for one in left)

            await until(all_gone)

    play(story())


def test_sixty_gathers_inside_each_other_around_a_wait(app: App) -> None:
    async def nested(depth: int) -> Any:
        if not depth:
            return await wait_for("go")
        return (await asyncio.gather(nested(depth - 1)))[0]

    @app.job
    async def work() -> Any:
        return await nested(60)

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await state(app, handle.id) is JobState.WAITING
        await handle.asignal("go", "went")
        await drain(app)
        assert await handle.aresult() == "went"

    play(story())


@pytest.mark.parametrize("around", ["wait", "shield", "gather", "await"])
def test_a_bare_future_next_to_a_wait_keeps_the_job_in_memory(app: App, around: str) -> None:
    async def through(future: asyncio.Future[str]) -> str:
        if around == "wait":
            done, _ = await asyncio.wait([future])
            return done.pop().result()
        if around == "gather":
            return (await asyncio.gather(future))[0]
        return await (asyncio.shield(future) if around == "shield" else future)

    @app.job
    async def work() -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = asyncio.Future()
        threading.Timer(0.05, lambda: loop.call_soon_threadsafe(future.set_result, "from a thread")).start()
        return list(await asyncio.gather(through(future), wait_for("go")))

    async def story() -> None:
        handle = await app.astart(work)
        await handle.asignal("go", "went")
        await drain(app)
        assert await handle.aresult() == ["from a thread", "went"]

    play(story())
