"""The event loop of a job's code, on its own: order, timers, threads, sockets, refusals, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import multiprocessing
import os
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import App
from holdfast.engine.job_loop import DurableFuture
from holdfast.errors import NotInJobCode, NotRecorded
from support.job_loops import Bench, on_bench

asked_in: contextvars.ContextVar[str] = contextvars.ContextVar("asked_in", default="outside")


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> Any:
    """Nothing here may leave a word in the log, or a warning about tasks and coroutines."""
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [str(one.message) for one in recwarn] == []


# The ready queue


def test_callbacks_run_in_the_order_of_their_calls_and_cancelled_ones_do_not() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []
        loop = bench.loop
        loop.call_soon(seen.append, "a")
        dropped = loop.call_soon(seen.append, "b")
        loop.call_soon(lambda: loop.call_soon(seen.append, "d"))
        loop.call_soon(seen.append, "c")
        dropped.cancel()
        assert dropped.cancelled()
        assert seen == [], "nothing runs in the call itself"
        await bench.until(lambda: len(seen) == 3)
        assert seen == ["a", "c", "d"]

    on_bench(story)


def test_run_ready_runs_so_many_and_keeps_the_rest() -> None:
    async def story(bench: Bench) -> None:
        seen: list[int] = []
        bench.loop.turning = True  # no turn of the bench comes between
        for number in range(5):
            bench.loop.call_soon(seen.append, number)
        assert bench.loop.run_ready(2) == 2
        assert seen == [0, 1]
        assert bench.loop.run_ready(100) == 3
        assert seen == [0, 1, 2, 3, 4]
        assert bench.loop.run_ready(100) == 0

    on_bench(story)


def test_code_that_a_task_of_the_host_steps_has_its_own_task_and_the_host_has_its_own_again_after_it() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> Any:
            return asyncio.current_task()

        outer = asyncio.current_task()
        task = bench.begin(code())
        assert task.result() is task
        assert asyncio.current_task() is outer is not None

    on_bench(story)


def test_code_that_a_task_of_the_host_closes_does_not_see_this_task() -> None:
    async def story(bench: Bench) -> None:
        seen: list[Any] = []

        async def code() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                seen.append(asyncio.current_task())

        outer = asyncio.current_task()
        bench.begin(code())
        bench.loop.close()
        assert seen == [None]
        assert asyncio.current_task() is outer is not None

    on_bench(story)


def test_the_loop_is_the_running_one_in_its_code_and_the_host_is_again_after_it() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> tuple[Any, Any]:
            return asyncio.get_running_loop(), asyncio.current_task()

        inside, task = await bench.run(code())
        assert inside is bench.loop
        assert task is not None
        assert asyncio.get_running_loop() is bench.host

    on_bench(story)


def test_a_callback_that_fails_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []

        def fails() -> None:
            raise ValueError("boom")

        bench.loop.call_soon(fails)
        bench.loop.call_soon(seen.append, "after")
        await bench.until(lambda: seen)

    on_bench(story)
    assert [(one.name, one.getMessage()) for one in caplog.records] == [("holdfast.job", "a callback failed")]
    caplog.clear()


def test_a_handler_of_the_codes_own_gets_what_nothing_waits_for() -> None:
    async def story(bench: Bench) -> None:
        heard: list[Any] = []

        async def code() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
            assert loop.get_exception_handler() is not None
            loop.call_soon(int, "no number")

        await bench.run(code())
        await bench.until(lambda: heard)
        assert isinstance(heard[0], ValueError)

    on_bench(story)


def test_a_callback_of_another_thread_runs_on_the_loop() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> tuple[int, Any]:
            loop = asyncio.get_running_loop()
            future = loop.create_future()

            def elsewhere() -> None:
                loop.call_soon_threadsafe(
                    lambda: future.set_result((threading.get_ident(), asyncio.get_running_loop()))
                )

            threading.Thread(target=elsewhere).start()
            ran_in: tuple[int, Any] = await future
            return ran_in

        assert await bench.run(code()) == (threading.get_ident(), bench.loop)

    on_bench(story)


def test_sixty_gathers_inside_each_other_come_back() -> None:
    async def nested(depth: int) -> int:
        if not depth:
            await asyncio.sleep(0)
            return 1
        one, other = await asyncio.gather(nested(depth - 1), asyncio.sleep(0, 0))
        return int(one) + other

    on_bench(lambda bench: bench.run(nested(60)))


# Timers


def test_timers_come_in_the_order_of_their_times_and_equal_ones_in_that_of_their_calls() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []
        loop = bench.loop
        now = loop.time()
        loop.call_at(now + 0.02, seen.append, "late")
        loop.call_at(now + 0.01, seen.append, "first")
        loop.call_at(now + 0.01, seen.append, "second")
        dropped = loop.call_later(0.001, seen.append, "dropped")
        assert dropped.when() >= now
        dropped.cancel()
        assert dropped.cancelled()
        await bench.until(lambda: len(seen) == 3)
        assert seen == ["first", "second", "late"]
        assert bench.order == [2, 3, 1]
        assert not loop.works

    on_bench(story)


def test_a_timer_that_has_fired_was_not_cancelled_and_a_cancel_after_it_does_nothing() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []
        timer = bench.loop.call_later(0, seen.append, "fired")
        await bench.until(lambda: seen)
        assert not timer.cancelled()
        timer.cancel()
        assert seen == ["fired"]
        assert not bench.loop.works

    on_bench(story)


def test_a_timer_that_was_handed_over_can_be_cancelled_until_it_runs() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []
        loop = bench.loop
        loop.turning = True
        timer = loop.call_later(3600, seen.append, "fired")
        loop.call_soon(timer.cancel)
        loop.fire(1)  # code that polls does not rest: what it is handed comes after its own callbacks
        loop.run_ready(100)
        assert seen == []
        assert timer.cancelled()

    on_bench(story)


def test_thousands_of_timers_that_are_cancelled_leave_nothing() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> None:
            for _ in range(5000):
                async with asyncio.timeout(3600):
                    await asyncio.sleep(0)

        first = bench.loop.call_later(1800, print)  # due before all of them
        await bench.run(code())
        assert len(bench.loop._timers) < 300
        first.cancel()
        assert bench.loop.busy_with() is None

    on_bench(story)


def test_two_thousand_sleeps_end_in_order() -> None:
    async def story(bench: Bench) -> None:
        seen: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep((1999 - number) / 1_000_000)
            seen.append(number)

        async def code() -> None:
            await asyncio.gather(*map(one, range(2000)))

        await bench.run(code())
        assert sorted(seen) == list(range(2000))
        assert bench.loop.busy_with() is None

    on_bench(story)


def test_a_replay_fires_a_timer_at_once_and_its_time_jumps() -> None:
    async def story(bench: Bench) -> None:
        loop = bench.loop
        before = loop.time()

        async def code() -> list[float]:
            await asyncio.sleep(7200)
            first = asyncio.get_running_loop().time()
            await asyncio.sleep(3600)
            return [first, asyncio.get_running_loop().time()]

        task = bench.begin(code())
        assert loop.state(1) == "timer"
        assert loop.state(2) == "unmade"
        loop.fire(1)
        bench.turn()
        assert loop.state(1) == "over"
        loop.fire(2)
        bench.turn()
        first, second = task.result()
        assert first - before > 7199.99  # as exact as these numbers are
        assert second - first > 3599.99
        assert second - before < 7200 + 3600 + 60, "it has jumped, and goes on as before"

    on_bench(story)


def test_timers_that_the_jump_has_passed_are_due() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []
        loop = bench.loop
        loop.call_later(3600, seen.append, "hour")
        loop.call_later(7200, seen.append, "two hours")
        loop.call_later(7201, seen.append, "a second later")
        loop.fire(2)
        bench.turn()
        await bench.until(lambda: len(seen) == 3)
        assert seen == ["two hours", "hour", "a second later"]

    on_bench(story)


def test_native_work_is_found_by_what_it_is() -> None:
    """Changed code has other work under a number. It must not get the end of the work that was recorded."""

    async def story(bench: Bench) -> None:
        loop = bench.loop

        async def limited() -> None:
            async with asyncio.timeout(60):
                await asyncio.Event().wait()

        for code in (asyncio.sleep(1), asyncio.sleep(1), limited(), asyncio.sleep(1 / 3), asyncio.sleep(60)):
            bench.begin(code)
        loop.call_later(float("inf"), int)

        def find(number: int, label: str, *, at_its_place: bool = False) -> tuple[int, str]:
            return loop.find(number, label, at_its_place=at_its_place)

        assert find(3, "") == (3, "timer"), "as in histories without labels"
        assert [find(1, label) for label in ("sleep:1000", "sleep:1000#2")] == [(1, "timer"), (2, "timer")]
        assert [find(1, label) for label in ("timer:60000", "sleep:60000", "sleep", "timer")] == [
            (3, "timer"),
            (5, "timer"),
            (4, "timer"),
            (6, "timer"),
        ]
        assert {find(number, label)[1] for number, label in ((1, "thread"), (3, "sleep:2"), (3, "timer:50"))} == {
            "unmade"
        }
        assert find(3, "timer:50", at_its_place=True) == (3, "timer"), "the same timeout with another delay"
        assert find(3, "sleep:2", at_its_place=True)[1] == "unmade", "a timeout is never a sleep"
        assert find(3, "timer#2") == (3, "timer"), "a computed delay may be any"
        loop.fire(2)
        assert find(2, "sleep:1000#2")[1] == find(9, "sleep:1000#2")[1] == "over"
        assert find(2, "sleep:1000#3")[1] == "unmade"

    on_bench(story)


# Threads


def test_a_thread_gives_its_result_and_its_error() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> Any:
            ran_in = await asyncio.to_thread(threading.get_ident)
            assert ran_in != threading.get_ident()
            assert bench.loop.busy_with() is not None, "this code itself"
            with pytest.raises(ZeroDivisionError):
                await asyncio.to_thread(lambda: 1 // 0)
            return await asyncio.get_running_loop().run_in_executor(None, pow, 2, 5)

        assert await bench.run(code()) == 32
        assert bench.order == [1, 2, 3]
        assert not bench.loop.works

    on_bench(story)


@pytest.mark.parametrize("own", [False, True], ids=["the worker's threads", "a pool of its own"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
def test_what_would_end_a_loop_ends_only_the_code(error: type[BaseException], own: bool) -> None:
    def fails() -> None:
        raise error

    async def story(bench: Bench) -> None:
        with ThreadPoolExecutor(1) as pool:

            async def code() -> str:
                try:
                    await asyncio.get_running_loop().run_in_executor(pool if own else None, fails)
                except BaseException as raised:  # noqa: BLE001 - what it is depends on the pool
                    return type(raised).__name__
                return "nothing"

            heard = await bench.run(code())
        assert heard in {"RuntimeError", error.__name__}
        assert not bench.loop.works

    on_bench(story)


def test_a_thread_that_the_code_gives_up_counts_no_more() -> None:
    free = threading.Event()

    async def story(bench: Bench) -> None:
        async def code() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.to_thread(free.wait)

        try:
            await bench.run(code())
            assert not bench.loop.works
        finally:
            free.set()

    on_bench(story)


def test_a_thread_has_the_context_of_its_call_and_changes_nothing_in_it() -> None:
    async def story(bench: Bench) -> None:
        def look() -> str:
            seen = asked_in.get()
            asked_in.set("thread")
            return seen

        async def code() -> list[str]:
            asked_in.set("code")
            seen = [await asyncio.to_thread(look), await asyncio.get_running_loop().run_in_executor(None, look)]
            return [*seen, asked_in.get()]

        assert await bench.run(code()) == ["code", "code", "code"]
        assert asked_in.get() == "outside"

    on_bench(story)


def test_an_executor_that_takes_nothing_leaves_no_work() -> None:
    async def story(bench: Bench) -> None:
        pool = ThreadPoolExecutor(1)
        pool.shutdown()

        async def code() -> None:
            with pytest.raises(RuntimeError, match="shutdown"):
                await asyncio.get_running_loop().run_in_executor(pool, print)

        await bench.run(code())
        assert bench.loop.busy_with() is None

    on_bench(story)


def test_a_process_pool_runs_functions_and_no_tools() -> None:
    app = App("shop")

    @app.tool
    def pay() -> str:
        return "paid"

    async def story(bench: Bench) -> None:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:

            async def code() -> int:
                with pytest.raises(NotRecorded, match="another process"):
                    await asyncio.get_running_loop().run_in_executor(pool, pay)
                return await asyncio.get_running_loop().run_in_executor(pool, pow, 2, 3)

            assert await bench.run(code()) == 8
        assert not bench.loop.works

    on_bench(story)
    app.close()


def test_loops_of_workers_in_several_threads_do_not_disturb_each_other() -> None:
    async def story(bench: Bench) -> int:
        async def code() -> int:
            total = 0
            for _ in range(20):
                await asyncio.sleep(0)
                await asyncio.sleep(0.0001)
                total += sum(range(500_000)) > 0  # long enough for another thread to come by
            return total

        return int(await bench.run(code()))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(on_bench, [story, story])) == [20, 20]


# Sockets, streams and descriptors


class Peer:
    """A server on the loopback that answers lines, in a thread of its own."""

    def __init__(self, *, closes: bool = False) -> None:
        self._closes = closes
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.ended = threading.Event()  # a connection has ended
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                lines.write(line.upper())
                lines.flush()
                if self._closes:
                    break
        self.ended.set()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def peer() -> Any:
    made = Peer()
    yield made
    made.close()


def test_a_stream_is_work_until_it_is_closed(peer: Peer) -> None:
    async def story(bench: Bench) -> None:
        async def code() -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
            writer.write(b"hello\n")
            await writer.drain()
            answer = (await reader.readline()).decode()
            assert "connections" in (bench.loop.busy_with() or "")
            writer.close()
            await writer.wait_closed()
            return answer

        assert await bench.run(code()) == "HELLO\n"
        assert bench.loop.busy_with() is None
        assert not bench.loop.works

    on_bench(story)


class Lines(asyncio.Protocol):
    """Keeps what comes."""

    def __init__(self) -> None:
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


class SlottedLines(asyncio.Protocol):
    """The same, and no attribute can be set on it."""

    __slots__ = ("heard",)

    def __init__(self) -> None:
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


@pytest.mark.parametrize("kind", [Lines, SlottedLines])
def test_a_connection_that_the_other_side_closes_is_no_work_any_more(kind: Any) -> None:
    peer = Peer(closes=True)

    async def story(bench: Bench) -> None:
        woken: list[bool] = []

        async def code() -> Any:
            transport, protocol = await asyncio.get_running_loop().create_connection(kind, "127.0.0.1", peer.port)
            transport.write(b"hello\n")
            return protocol

        protocol = await bench.run(code())
        bench.loop._wake = lambda: woken.append(bench.loop.busy_with() is None)
        await bench.until(lambda: any(woken))
        assert protocol.heard == b"HELLO\n"
        assert not bench.loop.works

    on_bench(story)
    peer.close()


def test_a_connection_that_comes_when_the_code_has_given_up_is_closed(peer: Peer) -> None:
    async def story(bench: Bench) -> None:
        async def code() -> None:
            loop = asyncio.get_running_loop()
            await loop.create_connection(Lines, "127.0.0.1", peer.port)

        task = bench.begin(code())
        bench.loop.turning = True  # so that the connection is there, and the code has not heard of it
        await bench.until(lambda: bench.loop.completed)
        task.cancel()
        bench.loop.turning = False
        bench.turn()
        assert task.cancelled()
        await bench.until(peer.ended.is_set)
        assert bench.loop.busy_with() is None

    on_bench(story)


def test_a_refused_connection_that_the_code_has_given_up_says_nothing() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> None:
            await asyncio.open_connection("127.0.0.1", 1)

        task = bench.begin(code())
        bench.loop.turning = True
        await bench.until(lambda: bench.loop.completed)
        task.cancel()
        bench.loop.turning = False
        bench.turn()
        assert task.cancelled()
        await asyncio.sleep(0)

    on_bench(story)


def test_bare_sockets_work(peer: Peer) -> None:
    async def story(bench: Bench) -> None:
        async def code() -> tuple[bytes, bytes]:
            loop = asyncio.get_running_loop()
            with socket.socket() as ours:
                ours.settimeout(0)
                await loop.sock_connect(ours, ("127.0.0.1", peer.port))
                await loop.sock_sendall(ours, b"one\n")
                first = await loop.sock_recv(ours, 100)
                await loop.sock_sendall(ours, b"two\n")
                second = bytearray(4)
                assert await loop.sock_recv_into(ours, second) == 4
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                    one.settimeout(0)
                    one.bind(("127.0.0.1", 0))
                    packet = bytearray(4)
                    await loop.sock_sendto(one, b"here", one.getsockname())
                    assert (await loop.sock_recvfrom_into(one, packet))[0] == 4
                    await loop.sock_sendto(one, b"here", one.getsockname())
                    assert (await loop.sock_recvfrom(one, 4))[0] == bytes(packet)
            return first, bytes(second)

        assert await bench.run(code()) == (b"ONE\n", b"TWO\n")
        assert await bench.run(_resolved()) != []
        assert bench.loop.busy_with() is None

    async def _resolved() -> Any:
        loop = asyncio.get_running_loop()
        await loop.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        return await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)

    on_bench(story)


def test_sock_accept_and_datagrams_work() -> None:
    class Heard(asyncio.DatagramProtocol):
        def __init__(self, heard: asyncio.Future[bytes]) -> None:
            self.heard = heard

        def datagram_received(self, data: bytes, _: Any) -> None:
            self.heard.set_result(data)

    async def code() -> bytes:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as ours:
            listening.settimeout(0)
            ours.settimeout(0)
            accepted, _ = await asyncio.gather(
                loop.sock_accept(listening), loop.sock_connect(ours, listening.getsockname())
            )
            accepted[0].close()
        heard = loop.create_future()
        transport, _ = await loop.create_datagram_endpoint(lambda: Heard(heard), local_addr=("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.sendto(b"datagram", transport.get_extra_info("sockname"))
            got: bytes = await heard
        transport.close()
        return got

    async def story(bench: Bench) -> None:
        assert await bench.run(code()) == b"datagram"
        await bench.until(lambda: bench.loop.busy_with() is None)

    on_bench(story)


def test_pipes_work() -> None:
    async def code() -> bytes:
        loop = asyncio.get_running_loop()
        there, here = os.pipe()
        reader = asyncio.StreamReader()
        incoming, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(there, "rb", 0)
        )
        outgoing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(here, "wb", 0))
        outgoing.write(b"through\n")
        line = await reader.readline()
        outgoing.close()
        incoming.close()
        return line

    async def story(bench: Bench) -> None:
        assert await bench.run(code()) == b"through\n"
        await bench.until(lambda: bench.loop.busy_with() is None)

    on_bench(story)


def test_a_reader_is_called_once_for_what_came_and_not_when_nothing_is_there() -> None:
    async def story(bench: Bench) -> None:
        seen: list[bytes] = []
        there, here = os.pipe()
        bench.loop.add_reader(
            there, lambda: seen.append(os.read(there, 1))
        )  # blocks the whole loop if nothing is there
        bench.loop.add_reader(there, lambda: seen.append(os.read(there, 1)))  # replaces the first
        for letter in (b"a", b"b", b"c"):
            os.write(here, letter)
            await bench.until(lambda: len(seen) == ord(letter) - ord("a") + 1)  # noqa: B023 - in this round
        assert seen == [b"a", b"b", b"c"]
        assert bench.loop.works
        assert bench.loop.remove_reader(there)
        assert not bench.loop.remove_reader(there)
        assert bench.loop.busy_with() is None, "one remove takes both back"
        os.close(there)
        os.close(here)

    on_bench(story)


def test_a_writer_is_called_until_it_is_taken_back() -> None:
    async def story(bench: Bench) -> None:
        calls: list[int] = []
        one, other = socket.socketpair()

        def able() -> None:
            calls.append(1)
            if len(calls) == 3:
                bench.loop.remove_writer(one)

        bench.loop.add_writer(one, able)
        await bench.until(lambda: len(calls) == 3)
        assert bench.loop.busy_with() is None
        one.close()
        other.close()

    on_bench(story)


def test_descriptors_of_a_closed_loop_are_not_listened_to() -> None:
    async def story(bench: Bench) -> None:
        one, other = socket.socketpair()
        bench.loop.add_reader(one, print)
        bench.loop.add_writer(other, print)
        bench.loop.close()
        assert not bench.host.remove_reader(one)
        assert not bench.host.remove_writer(other)
        one.close()
        other.close()

    on_bench(story)


# What is refused


def _refusals() -> list[tuple[str, Any]]:
    async def subprocess() -> None:
        await asyncio.create_subprocess_exec("true")

    async def shell() -> None:
        await asyncio.create_subprocess_shell("true")

    async def server() -> None:
        await asyncio.start_server(print, "127.0.0.1", 0)

    async def unix_server() -> None:
        await asyncio.start_unix_server(print, "never-made")

    async def signal_handler() -> None:
        asyncio.get_running_loop().add_signal_handler(15, print)

    async def task_factory() -> None:
        asyncio.get_running_loop().set_task_factory(lambda loop, coro: asyncio.Task(coro, loop=loop))

    async def executor() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    every = (subprocess, shell, server, unix_server, signal_handler, task_factory, executor)
    return [(one.__name__, one) for one in every]


@pytest.mark.parametrize(("name", "code"), _refusals())
def test_what_job_code_cannot_have_is_refused_with_what_to_do(name: str, code: Any) -> None:
    del name

    async def story(bench: Bench) -> None:
        with pytest.raises(NotInJobCode, match="call it in a step"):
            await bench.run(code())
        assert bench.loop.busy_with() is None

    on_bench(story)


def test_the_code_can_neither_run_nor_stop_its_loop() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> None:
            loop = asyncio.get_running_loop()
            assert loop.is_running()
            assert not loop.is_closed()
            for refused in (loop.run_forever, loop.stop):
                with pytest.raises(RuntimeError, match="run by Holdfast"):
                    refused()
            with pytest.raises(RuntimeError, match="run by Holdfast"):
                loop.run_until_complete(loop.create_future())
            assert loop.get_task_factory() is None
            loop.set_task_factory(None)
            assert loop.remove_signal_handler(15) is False
            await loop.shutdown_asyncgens()
            await loop.shutdown_default_executor()

        await bench.run(code())

    on_bench(story)


def test_an_object_of_another_loop_is_refused_by_asyncio() -> None:
    async def story(bench: Bench) -> None:
        lock, busy = asyncio.Lock(), asyncio.Event()
        await lock.acquire()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lock.acquire(), 0.001)  # from now on it is the host's
        theirs = bench.host.create_future()

        async def code() -> None:
            with pytest.raises(RuntimeError, match="different event loop"):
                await lock.acquire()
            with pytest.raises(RuntimeError, match="different loop"):
                await theirs
            assert not busy.is_set()

        await bench.run(code())

    on_bench(story)


# Tasks


@pytest.mark.parametrize("salt", [0, 7 << 20])
def test_sets_of_tasks_have_the_same_order_in_every_attempt(salt: int) -> None:
    async def once() -> list[int]:
        bench = Bench(salt)

        async def code() -> list[int]:
            tasks = [asyncio.create_task(asyncio.sleep(0, number)) for number in range(30)]
            done, _ = await asyncio.wait(tasks)
            return [task.result() for task in done]

        try:
            return list(await bench.run(code()))
        finally:
            bench.loop.close()

    garbage = [object() for _ in range(1000)]
    first = asyncio.run(once())
    del garbage[::3]
    assert asyncio.run(once()) == first
    assert sorted(first) == list(range(30))


def test_as_completed_starts_coroutines_in_the_order_of_its_list() -> None:
    async def story(bench: Bench) -> None:
        async def code(kind: Any) -> list[int]:
            started: list[int] = []

            async def one(number: int) -> int:
                started.append(number)
                await asyncio.sleep(0)
                return number

            ended = [await each for each in asyncio.as_completed(kind(map(one, range(50))))]
            assert sorted(ended) == list(range(50))
            return started

        for kind in (list, tuple):
            assert await bench.run(code(kind)) == list(range(50))
        assert not bench.loop._started_in_order

    on_bench(story)


def test_as_completed_takes_a_set_of_tasks_and_no_set_of_coroutines() -> None:
    class Awaitable:
        def __await__(self) -> Any:
            return asyncio.sleep(0).__await__()

    async def story(bench: Bench) -> None:
        async def code() -> int:
            def made() -> Any:
                return (asyncio.sleep(0, number) for number in range(1, 2))

            for given in (set(made()), iter(list(made())), [Awaitable(), Awaitable()]):
                with pytest.raises(NotInJobCode, match="pass a list"):
                    next(iter(asyncio.as_completed(given)))
            tasks = {asyncio.create_task(asyncio.sleep(0, number)) for number in range(3)}
            return sum([await each for each in asyncio.as_completed(tasks)])

        assert await bench.run(code()) == 3

    on_bench(story)


def test_a_task_takes_the_options_of_newer_pythons() -> None:
    async def story(bench: Bench) -> None:
        async def code() -> tuple[str, str]:
            context = contextvars.copy_context()
            context.run(asked_in.set, "given")

            async def look() -> str:
                return asked_in.get()

            task = asyncio.get_running_loop().create_task(look(), name="named", context=context)
            await asyncio.get_running_loop().create_task(look(), name=None)
            options: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
            eager = asyncio.get_running_loop().create_task(look(), **options)
            assert eager.done() is bool(options)
            assert await eager == "outside"
            return task.get_name(), await task

        assert await bench.run(code()) == ("named", "given")

    on_bench(story)


# Its end


def test_code_that_is_closed_sees_generator_exit_and_no_cancellation() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []

        async def branch(name: str) -> None:
            try:
                await DurableFuture(loop=bench.loop)
            except asyncio.CancelledError:
                seen.append(f"{name} cancelled")
                raise
            except GeneratorExit:
                seen.append(f"{name} closed")
                raise
            finally:
                seen.append(f"{name} finally")

        async def code() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch("a"))
                async with asyncio.timeout(3600):
                    await asyncio.gather(branch("b"), asyncio.shield(branch("c")), return_exceptions=True)

        bench.begin(code())
        bench.loop.close()
        assert sorted(seen) == sorted(f"{name} {what}" for name in "abc" for what in ("closed", "finally"))
        assert not bench.loop.works
        bench.loop.close()

    on_bench(story)


def test_a_finally_that_awaits_is_closed_at_every_await() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []

        async def code() -> None:
            try:
                await DurableFuture(loop=bench.loop)
            finally:
                try:
                    await asyncio.sleep(3600)
                finally:
                    seen.append("inner")
                    try:
                        await asyncio.to_thread(print)
                    finally:
                        seen.append("innermost")

        bench.begin(code())
        bench.loop.close()
        assert seen == ["inner", "innermost"]

    on_bench(story)


def test_a_finally_that_starts_a_task_leaves_no_coroutine_behind() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []

        async def more() -> None:
            seen.append("ran")

        async def code() -> None:
            try:
                await DurableFuture(loop=bench.loop)
            finally:
                asyncio.create_task(more())  # noqa: RUF006 - what becomes of it is what this is about
                seen.append("finally")

        bench.begin(code())
        bench.loop.close()
        assert seen == ["finally"], "nothing new is begun"

    on_bench(story)


def test_a_coroutine_that_refuses_to_close_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: unraisable.append(str(told.exc_value)))

    async def story(bench: Bench) -> None:
        closed = 0

        async def code() -> None:
            nonlocal closed
            while closed < 1000:
                try:
                    await DurableFuture(loop=bench.loop)
                except GeneratorExit:
                    closed += 1

        bench.begin(code())
        bench.loop.close()
        assert closed >= 100

    on_bench(story)
    gc.collect()
    assert set(unraisable) <= {"coroutine ignored GeneratorExit"}


def test_async_generators_are_closed_with_their_loop() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []

        async def numbers(name: str, *, slowly: bool) -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                if slowly:
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        seen.append(f"{name} was cut short")
                seen.append(name)

        async def code() -> None:
            quick, slow = numbers("quick", slowly=False), numbers("slow", slowly=True)
            assert await anext(quick) + await anext(slow) == 2
            await DurableFuture(loop=bench.loop)

        bench.begin(code())
        bench.loop.call_soon(bench.loop.host.call_soon, bench.loop.close)
        await bench.until(bench.loop.is_closed)
        assert sorted(seen) == ["quick", "slow was cut short"]

    on_bench(story)


def test_an_async_generator_that_is_dropped_is_closed_on_the_jobs_loop() -> None:
    async def story(bench: Bench) -> None:
        where: list[Any] = []
        closed = asyncio.Event()

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(0)
                where.append(asyncio.get_running_loop())
                closed.set()

        async def code() -> None:
            async for _ in numbers():
                break
            gc.collect()
            await closed.wait()

        await bench.run(code())
        assert where == [bench.loop]

    on_bench(story)


def test_a_closed_loop_takes_nothing_and_says_nothing() -> None:
    async def story(bench: Bench) -> None:
        seen: list[str] = []
        loop = bench.loop
        timer = loop.call_later(0, seen.append, "timer")
        loop.close()
        assert loop.is_closed()
        loop.call_soon(seen.append, "soon")
        loop.call_soon_threadsafe(seen.append, "from a thread")
        timer.cancel()
        loop.call_exception_handler({"message": "nothing is told"})
        with pytest.raises(asyncio.CancelledError):
            await loop.outside(asyncio.sleep(0))
        await asyncio.sleep(0.01)
        assert seen == []

    on_bench(story)


def test_nothing_of_a_closed_loop_is_kept_by_the_host(peer: Peer) -> None:
    async def story(_: Bench) -> None:
        class Held:
            pass

        async def code(held: Held) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", peer.port)
            async with asyncio.timeout(3600):
                await DurableFuture(loop=asyncio.get_running_loop())
            del held, writer

        async def once() -> list[weakref.ref[Any]]:
            bench, held = Bench(), Held()
            task = bench.begin(code(held))
            await bench.until(lambda: "connections" in (bench.loop.busy_with() or "") or bench.loop._transports)
            bench.loop.close()
            bench.threads.shutdown()
            return [weakref.ref(held), weakref.ref(bench.loop), weakref.ref(task)]

        left = [reference for _round in range(5) for reference in await once()]
        for _round in range(5):  # the aborted connections are told
            await asyncio.sleep(0.001)
        gc.collect()
        assert [reference() for reference in left] == [None] * 15

    on_bench(story)


# Hosts


@pytest.mark.parametrize("debug", [False, True])
def test_debug_mode_of_the_host_changes_nothing(debug: bool, peer: Peer) -> None:
    async def story(bench: Bench) -> None:
        bench.host.set_debug(debug)
        bench.host.slow_callback_duration = 60

        async def code() -> list[Any]:
            loop = asyncio.get_running_loop()
            loop.set_debug(True)
            reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
            writer.write(b"x\n")
            heard = await reader.readline()
            writer.close()
            await writer.wait_closed()
            threaded = await asyncio.to_thread(lambda: 1)
            async with asyncio.timeout(60):
                return [heard, threaded, *await asyncio.gather(asyncio.sleep(0, 2), asyncio.sleep(0.001, 3))]

        assert await bench.run(code()) == [b"X\n", 1, 2, 3]

    on_bench(story)
