"""Plain asyncio beside durable calls: locks, events, queues, threads, sockets, timers, generators, contexts."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import socketserver
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast import App, wait_for
from scenarios.parts import acting, echoing, held, seats
from support.scenarios import Fails, Gives, Outside, Signal, scenario


@scenario(
    Gives(["a1", "a2", "b1", "b2"]), acts=[("act", one) for one in ("a1", "a2", "b1", "b2")], moves=[Signal("go")]
)
def a_lock_keeps_branches_apart(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        lock, order = asyncio.Lock(), []

        async def branch(name: str) -> None:
            async with lock:
                for number in (1, 2):
                    await act(f"{name}{number}")
                    order.append(f"{name}{number}")

        await asyncio.gather(branch("a"), branch("b"))
        await wait_for("go")
        return order

    return work


@scenario(
    Gives(["a", "b"]), acts=[("act", "a"), ("act", "b")], in_order=True, moves=[Signal("b"), Signal("a"), Signal("b")]
)
def a_lock_held_over_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        lock, order = asyncio.Lock(), []

        async def branch(key: str) -> None:
            async with lock:
                await wait_for(key)
                await act(key)
                order.append(key)

        await asyncio.gather(branch("a"), branch("b"))
        return order

    return work


@scenario(Gives("late"), acts=[("act", "late")], moves=[Signal("free", at="tried"), Signal("go")])
def a_lock_that_is_not_free_in_time(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        lock = asyncio.Lock()

        async def holder() -> None:
            async with lock:
                await wait_for("free")

        task = asyncio.create_task(holder())
        await asyncio.sleep(0)
        said = "in time"
        try:
            await asyncio.wait_for(lock.acquire(), 0.02)
        except TimeoutError:
            said = "late"
        await act(said)
        outside.mark("tried")
        await task
        await wait_for("go")
        return said

    return work


@scenario(Gives(["act(after)", "went"]), acts=[("act", "after")], moves=[Signal("go", "went")])
def an_event_set_after_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        ready = asyncio.Event()

        async def waits() -> Any:
            await ready.wait()
            return await act("after")

        async def sets() -> Any:
            found = await wait_for("go")
            ready.set()
            return found

        return await asyncio.gather(waits(), sets())

    return work


@scenario(
    Gives(["act(one)", "act(two)", "act(three)"]),
    acts=[("act", "one"), ("act", "two"), ("act", "three")],
    in_order=True,
    moves=[Signal("item", "one"), Signal("item", "two"), Signal("item", "three")],
)
def a_queue_between_branches(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        queue: asyncio.Queue[Any] = asyncio.Queue(1)
        found: list[Any] = []

        async def produces() -> None:
            for _ in range(3):
                await queue.put(await wait_for("item"))

        async def consumes() -> None:
            while True:
                found.append(await act(await queue.get()))
                queue.task_done()

        consumer = asyncio.create_task(consumes())
        await produces()
        await queue.join()
        consumer.cancel()
        return found

    return work


@scenario(Gives([2, 1, 3]), acts=[("seat",)] * 3, moves=[Signal("b"), Signal("a"), Signal("c")])
def a_semaphore_over_waits(app: App, outside: Outside) -> Any:
    seat = seats(app, outside)

    @app.job
    async def work() -> Any:
        slots = asyncio.Semaphore(2)

        async def branch(key: str) -> Any:
            async with slots:
                await wait_for(key)
                return await seat()

        return await asyncio.gather(branch("a"), branch("b"), branch("c"))

    return work


@scenario(Gives(["act(1)", "act(2)"]), acts=[("act", 1), ("act", 2)], moves=[Signal("go")])
def a_condition_wakes_branches(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        changed, opened = asyncio.Condition(), False

        async def branch(n: int) -> Any:
            async with changed:
                await changed.wait_for(lambda: opened)
            return await act(n)

        async def opens() -> None:
            nonlocal opened
            await wait_for("go")
            async with changed:
                opened = True
                changed.notify_all()

        one, two, _ = await asyncio.gather(branch(1), branch(2), opens())
        return [one, two]

    return work


@scenario(Gives(["act(1)", "act(2)"]), acts=[("act", 1), ("act", 2)], moves=[Signal("1"), Signal("2")])
def a_barrier_of_branches(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        barrier = asyncio.Barrier(2)

        async def branch(n: int) -> Any:
            await wait_for(str(n))
            await barrier.wait()
            return await act(n)

        return await asyncio.gather(branch(1), branch(2))

    return work


@scenario(Gives("act(sleep)"), acts=[("act", "sleep")], moves=[Signal("go")])
def a_native_sleep_wins_over_a_step(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        step, timer = asyncio.create_task(hold("decided")), asyncio.create_task(asyncio.sleep(0.02))
        done, _ = await asyncio.wait([step, timer], return_when=asyncio.FIRST_COMPLETED)
        said = await act("step" if step in done else "sleep")
        outside.mark("decided")
        await step
        await wait_for("go")
        return said

    return work


@scenario(Gives("act(thread)"), acts=[("act", "thread")], moves=[Signal("go")])
def a_thread_wins_over_a_step(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        step, thread = asyncio.create_task(hold("decided")), asyncio.create_task(asyncio.to_thread(time.sleep, 0.01))
        done, _ = await asyncio.wait([step, thread], return_when=asyncio.FIRST_COMPLETED)
        said = await act("step" if step in done else "thread")
        outside.mark("decided")
        await step
        await wait_for("go")
        return said

    return work


@scenario(Gives([3, 2, 1]), acts=[("seat",)] * 3, moves=[Signal("go"), Signal("on")])
def native_sleeps_order_equal_calls(app: App, outside: Outside) -> Any:
    seat, hold = seats(app, outside), held(app, outside)

    async def branch(number: int) -> Any:
        await asyncio.sleep(0.01 * number)
        if number < 3:
            await hold(f"seated {number}")
        found = await seat()
        outside.mark(f"seated {number - 1}")
        return found

    @app.job
    async def work() -> Any:
        found = await asyncio.gather(*(branch(number) for number in (1, 2, 3)))
        await wait_for("go")
        await wait_for("on")
        return found

    return work


@scenario(Gives([2, 1]), acts=[("seat",)] * 2, moves=[Signal("go")])
def a_lock_taken_after_a_thread(app: App, outside: Outside) -> Any:
    seat = seats(app, outside)

    @app.job
    async def work() -> Any:
        lock, first = asyncio.Lock(), asyncio.Event()

        async def threaded() -> Any:
            await asyncio.to_thread(time.sleep, 0.01)
            await first.wait()
            async with lock:
                return await seat()

        async def direct() -> Any:
            async with lock:
                found = await seat()
            first.set()
            return found

        found = await asyncio.gather(threaded(), direct())
        await wait_for("go")
        return found

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def turns_without_rest(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        for number in range(30):
            await asyncio.sleep(0)
            if number % 10 == 0:
                await echo(number)
        await wait_for("go")
        return await act("after")

    return work


@scenario(Gives("act(held)"), acts=[("act", "held")], moves=[Signal("go")])
def polling_a_task_without_rest(app: App, outside: Outside) -> Any:
    act, hold = acting(app, outside), held(app, outside)

    @app.job
    async def work() -> Any:
        task = asyncio.create_task(hold("polling"))
        while not task.done():
            outside.mark("polling")
            await asyncio.sleep(0)
        said = await act(task.result())
        await wait_for("go")
        return said

    return work


@scenario(Gives(["yes", "act(timer)"]), acts=[("act", "timer")], moves=[Signal("ok", "yes", after=("act", "timer"))])
def call_later_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        rung = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, rung.set)

        async def branch() -> Any:
            await rung.wait()
            return await act("timer")

        return await asyncio.gather(wait_for("ok"), branch())

    return work


@scenario(Gives(["yes", "act(7)"]), acts=[("act", 7)], moves=[Signal("ok", "yes", after=("act", 7))])
def run_in_executor_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    def computed() -> int:
        time.sleep(0.02)
        return 7

    async def branch() -> Any:
        return await act(await asyncio.get_running_loop().run_in_executor(None, computed))

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("ok"), branch())

    return work


@scenario(Gives(["yes", "act(8)"]), acts=[("act", 8)], moves=[Signal("ok", "yes", after=("act", 8))])
def an_executor_of_ones_own_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    def computed() -> int:
        time.sleep(0.02)
        return 8

    @app.job
    async def work() -> Any:
        with ThreadPoolExecutor(1) as pool:

            async def branch() -> Any:
                return await act(await asyncio.get_running_loop().run_in_executor(pool, computed))

            return await asyncio.gather(wait_for("ok"), branch())

    return work


@scenario(Gives(["yes", "act(9)"]), acts=[("act", 9)], moves=[Signal("ok", "yes", after=("act", 9))])
def a_future_of_ones_own_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[int] = loop.create_future()

        def answer() -> None:
            time.sleep(0.02)
            with contextlib.suppress(RuntimeError):  # the loop may have gone with a killed process
                loop.call_soon_threadsafe(settle)

        def settle() -> None:
            if not found.done():
                found.set_result(9)

        threading.Thread(target=answer).start()

        async def branch() -> Any:
            return await act(await found)

        return await asyncio.gather(wait_for("ok"), branch())

    return work


@scenario(Gives(["yes", "act(10)"]), acts=[("act", 10)], moves=[Signal("ok", "yes", after=("act", 10))])
def a_wrapped_future_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    def computed() -> int:
        time.sleep(0.02)
        return 10

    @app.job
    async def work() -> Any:
        with ThreadPoolExecutor(1) as pool:

            async def branch() -> Any:
                return await act(await asyncio.wrap_future(pool.submit(computed)))

            return await asyncio.gather(wait_for("ok"), branch())

    return work


@scenario(Gives("yes"), moves=[Signal("ok", "yes", at="waits")])
def a_future_that_never_comes_keeps_the_job_in_memory(app: App, outside: Outside) -> Any:
    @app.job
    async def work() -> Any:
        async def branch() -> None:
            await asyncio.get_running_loop().create_future()

        left = asyncio.create_task(branch())
        await asyncio.sleep(0)
        outside.mark("waits")
        found = await wait_for("ok")
        left.cancel()
        return found

    return work


class _Answering(socketserver.StreamRequestHandler):
    """Answers each line with it, in capitals, a little later."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # a killed client does not say goodbye
            for line in self.rfile:
                time.sleep(0.005)
                self.wfile.write(line.upper())


@functools.cache
def _port() -> int:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answering)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


async def _ask(line: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", _port())
    with contextlib.closing(writer):
        writer.write(f"{line}\n".encode())
        await writer.drain()
        return (await reader.readline()).decode().strip()


@scenario(Gives("act(HELLO)"), acts=[("act", "HELLO")], moves=[Signal("go")])
def a_socket_in_job_code(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        answer = await _ask("hello")
        said = await act(answer)
        await wait_for("go")
        return said

    return work


@scenario(Gives(["yes", "act(HELLO)"]), acts=[("act", "HELLO")], moves=[Signal("ok", "yes", after=("act", "HELLO"))])
def a_socket_beside_a_wait(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    async def branch() -> Any:
        return await act(await _ask("hello"))

    @app.job
    async def work() -> Any:
        return await asyncio.gather(wait_for("ok"), branch())

    return work


@scenario(Gives("HELLO"), moves=[Signal("go")])
def a_socket_in_a_step(app: App, _: Outside) -> Any:
    @app.step
    async def ask() -> str:
        return await _ask("hello")

    @app.job
    async def work() -> Any:
        found = await ask()
        await wait_for("go")
        return found

    return work


@scenario(Gives("refused"), moves=[Signal("go")])
def a_subprocess_in_job_code_is_refused(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        try:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
        except (RuntimeError, NotImplementedError) as error:
            await wait_for("go")
            return "refused" if "step" in str(error) else str(error)
        await process.wait()
        return "it ran"

    return work


@scenario(Gives("refused"), moves=[Signal("go")])
def a_server_in_job_code_is_refused(app: App, _: Outside) -> Any:
    @app.job
    async def work() -> Any:
        try:
            server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        except (RuntimeError, NotImplementedError) as error:
            await wait_for("go")
            return "refused" if "step" in str(error) else str(error)
        server.close()
        return "it listens"

    return work


@scenario(Gives(0), moves=[Signal("go")])
def a_subprocess_in_a_step(app: App, _: Outside) -> Any:
    @app.step
    async def runs() -> int | None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "pass")
        await process.wait()
        return process.returncode

    @app.job
    async def work() -> Any:
        found = await runs()
        await wait_for("go")
        return found

    return work


@scenario(Fails())
def a_job_that_nothing_can_wake_has_failed(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        await asyncio.Event().wait()
        await act("never")

    return work


@scenario(
    Gives(["act(0)", "act(1)", "closed"]), acts=[("act", 0), ("act", 1)], moves=[Signal("item", 0), Signal("item", 1)]
)
def an_async_generator_over_waits(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        found: list[Any] = []

        async def items() -> AsyncIterator[Any]:
            try:
                while True:
                    yield await wait_for("item")
            finally:
                if len(found) == 2:
                    found.append("closed")

        async with contextlib.aclosing(items()) as received:  # type: ignore[type-var]
            async for item in received:
                found.append(await act(item))
                if len(found) == 2:
                    break
        return found

    return work


@scenario(Gives(3), acts=[("act", 0), ("act", 1), ("act", 2)], in_order=True, moves=[Signal("go")])
def an_async_generator_of_steps(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield await echo(number)

    @app.job
    async def work() -> Any:
        count = 0
        async for number in numbers():
            await act(number)
            count += 1
        await wait_for("go")
        return count

    return work


_who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@scenario(Gives(["job", "job", "job"]), moves=[Signal("go")])
def context_variables_of_the_job(app: App, _: Outside) -> Any:
    @app.step
    async def sets() -> str:
        seen = _who.get()
        _who.set("step")
        return seen

    @app.job
    async def work() -> Any:
        _who.set("job")
        seen = await sets()
        after = _who.get()
        await wait_for("go")
        return [seen, after, _who.get()]

    return work


@scenario(Gives([["a", "a"], ["b", "b"], "nobody"]), moves=[Signal("b"), Signal("a")])
def context_variables_of_branches(app: App, _: Outside) -> Any:
    echo = echoing(app)

    async def branch(name: str) -> Any:
        _who.set(name)
        seen = await echo(_who.get())
        await wait_for(name)
        return [seen, _who.get()]

    @app.job
    async def work() -> Any:
        return [*await asyncio.gather(branch("a"), branch("b")), _who.get()]

    return work


@scenario(Gives([True, "act(after)"]), acts=[("act", "after")], moves=[Signal("go")])
def the_time_of_the_loop_goes_on(app: App, outside: Outside) -> Any:
    act = acting(app, outside)

    @app.job
    async def work() -> Any:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(0.02)
        passed = loop.time() - begun >= 0.015
        await wait_for("go")
        return [passed, await act("after")]

    return work


@scenario(Gives("act(after)"), acts=[("act", "after")], moves=[Signal("go")])
def a_native_sleep_is_not_slept_again(app: App, outside: Outside) -> Any:
    act, echo = acting(app, outside), echoing(app)

    @app.job
    async def work() -> Any:
        await asyncio.sleep(0.1)
        await echo("slept")
        await wait_for("go")
        return await act("after")

    return work


@scenario(Gives([1, "went"]), moves=[Signal("go", "went")])
def call_soon_between_calls(app: App, _: Outside) -> Any:
    echo = echoing(app)

    @app.job
    async def work() -> Any:
        called: list[int] = []
        asyncio.get_running_loop().call_soon(called.append, 1)
        await echo("a")
        seen = list(called)
        return [*seen, await wait_for("go")]

    return work


@scenario(Gives("ValueError: in a thread"), moves=[Signal("go")])
def an_error_in_a_thread_of_the_job(app: App, _: Outside) -> Any:
    echo = echoing(app)

    def fails() -> None:
        raise ValueError("in a thread")

    @app.job
    async def work() -> Any:
        try:
            await asyncio.to_thread(fails)
        except ValueError as error:
            said = await echo(f"{type(error).__name__}: {error}")
        await wait_for("go")
        return said

    return work
