"""The programs of the cookbook run as they are shown, and survive what they say: real processes, killed."""

from __future__ import annotations

import base64
import hmac
import itertools
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.store import Reclaim, ReleaseLeases
from support.scripts import ROOT
from support.shell import Shell
from support.stories import TooLate, in_time, play, quick, until

FOLDER = ROOT / "examples" / "cookbook"
PROGRAMS = sorted(FOLDER.glob("*.py"))
PAGE = (ROOT / "docs" / "tutorial" / "cookbook.md").read_text()


class Kitchen:
    """One program on a file of its own, the workers that run it, and the outside world."""

    def __init__(self, folder: Path, program: str, pace: float = 0.0) -> None:
        self.shell = Shell(folder)
        self.program = str(FOLDER / program)
        self.shell.environment |= {"PACE": str(pace), "LEDGER": str(folder / "ledger"), "MODEL_KEY": "any"}
        self.shell.environment["WEBHOOK_KEY"] = "any"
        self.app = App("kitchen", config=quick(self.shell.environment["HOLDFAST_URL"]))

    def start(self, *words: str) -> str:
        return self.shell.run("start", self.program, *words)

    def lines(self) -> list[str]:
        """What the outside world has seen."""
        path = self.shell.folder / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    async def seen(self, text: str, times: int = 1) -> None:
        async def is_so() -> bool:
            return sum(text in line for line in self.lines()) >= times

        await until(is_so)

    async def committed(self, run: str, steps: int) -> None:
        """So many steps are on disk."""

        async def is_so() -> bool:
            return sum(event.type == "command_committed" for event in await self.app.aevents(run)) >= steps

        await until(is_so)

    async def status(self, run: str, *wanted: str) -> None:
        async def is_so() -> bool:
            record = await self.app.aget(run)
            return record.status.value in wanted or record.stage in wanted

        await until(is_so)

    def begun(self, words: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, env=self.shell.environment, cwd=self.shell.folder)

    def printed(self, *words: str) -> str:
        """Run the program itself."""
        ran = subprocess.run(
            [sys.executable, self.program, *words],
            cwd=self.shell.folder, env=self.shell.environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @asynccontextmanager
    async def worker(self, name: str) -> AsyncIterator[subprocess.Popen[bytes]]:
        """A worker process, which is killed at the end, whatever it does; its supervisor says so."""
        words = [sys.executable, "-m", "holdfast", "worker", self.program, "--name", name]
        process = self.begun(words)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
        await self.app.store().commit([ReleaseLeases(name), Reclaim()])

    async def finish(self, run: str) -> Any:
        """Let another worker bring it to its end."""
        async with self.worker("last"):
            await self.status(run, "succeeded", "failed")
        assert await self.app.averify() == {}
        return await self.app.aoutcome(run)


def cooking(folder: Path, program: str, story: Callable[[Kitchen], Any], pace: float = 0.0) -> None:
    numbers = map(str, itertools.count())

    async def cook() -> None:
        place = folder / next(numbers)
        place.mkdir()
        kitchen = Kitchen(place, program, pace)
        try:
            await story(kitchen)
        finally:
            await kitchen.app.aclose()

    play(in_time(cook))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_of_the_cookbook_is_on_its_page_as_it_is_and_prints_what_the_page_shows(
    program: Path, tmp_path: Path
) -> None:
    assert f"```py\n{program.read_text()}```\n" in PAGE, "make docs writes it there"
    shown = re.search(rf"^\$ python {program.name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    kitchen = Kitchen(tmp_path, program.name)
    assert re.sub(r"[0-9a-f-]{36}", "01a1decf-36b4-7b80-9d0e-8ee34c7bd132", kitchen.printed()) == shown[1]


def test_an_approval_waits_without_a_worker_and_is_paid_once(tmp_path: Path) -> None:
    async def story(kitchen: Kitchen) -> None:
        run = kitchen.start("refund", "order=A1", "cents=5000")
        async with kitchen.worker("ada"):
            await kitchen.status(run, "parked")  # and ada is killed
        assert kitchen.shell.run("signal", run, "approval", '{"approved": true, "by": "Ann"}') == "delivered"
        assert await kitchen.finish(run) == "paid back 5000 cents"
        assert [line.split()[0] for line in kitchen.lines()] == ["asked", "paid"]

    cooking(tmp_path, "approval.py", story)


@pytest.mark.parametrize(
    ("city", "seen"),
    [
        ("Oslo", "booked flight"),  # it has acted, and nobody has recorded that yet
        ("Oslo", "booked hotel"),
        ("Oslo", "cancelled hotel"),  # on the way back
        ("Rome", "booked hotel"),
    ],
)
def test_a_saga_that_is_killed_between_its_steps_books_nothing_twice_and_leaves_nothing_half(
    city: str, seen: str, tmp_path: Path
) -> None:
    async def story(kitchen: Kitchen) -> None:
        run = kitchen.start("trip", "who=Ann", f"city={city}")
        async with kitchen.worker("ada"):
            await kitchen.seen(seen)
        kitchen.shell.environment["PACE"] = "0"
        result = await kitchen.finish(run)
        booked = [line for line in kitchen.lines() if line.startswith("booked")]
        cancelled = {line for line in kitchen.lines() if line.startswith("cancelled")}  # by the key: once
        if city == "Rome":
            assert result == "booked flight-Rome, hotel-Rome, car-Rome"
            assert (len(booked), len(cancelled)) == (3, 0)
        else:
            assert result == "not booked: no car is left in Oslo; cancelled hotel-Oslo, flight-Oslo"
            assert (len(booked), len(cancelled)) == (2, 2)

    cooking(tmp_path, "saga.py", story, pace=0.2)


def test_a_fan_out_that_is_killed_does_again_only_what_was_under_way(tmp_path: Path) -> None:
    async def story(kitchen: Kitchen) -> None:
        cities = [f"City {number:02}" for number in range(24)]
        run = kitchen.start("census", f"cities={cities}".replace("'", '"'))
        async with kitchen.worker("ada"):
            await kitchen.seen("asked", times=17)  # the third lot of eight begins: the first is on disk, at least
        kitchen.shell.environment["PACE"] = "0"
        recorded = {f"asked {city}" for one in await kitchen.app.alist() for city in await counted(kitchen, one.run_id)}
        if len(recorded) == 24:
            raise TooLate("nothing is left to do again")
        assert 8 <= len(recorded) < 24
        assert await kitchen.finish(run) == 24 * 7000
        asked = Counter(kitchen.lines())
        assert len(asked) == 24
        assert max(asked.values()) == 2
        assert {asked[line] for line in recorded} == {1}

    cooking(tmp_path, "fan_out.py", story, pace=0.3)


async def counted(kitchen: Kitchen, run: str) -> list[str]:
    """The cities whose figure is on disk."""
    events = await kitchen.app.aevents(run)
    asked = {event.payload["node"]: event.payload["args"]["city"] for event in events if event.type == "node_started"}
    return [asked[event.payload["node"]] for event in events if event.type == "command_committed"]


def test_a_daily_job_runs_once_a_day_however_often_it_is_triggered(tmp_path: Path) -> None:
    async def story(kitchen: Kitchen) -> None:
        words = ["report", "day=2026-11-15", "--key", "report-2026-11-15"]
        run = kitchen.start(*words)
        assert kitchen.start(*words) == run
        assert kitchen.printed("2026-11-15").strip() == run
        other = kitchen.shell.ran("start", kitchen.program, "report", "day=2026-11-16", "--key", words[-1])
        assert (other.returncode, "belongs to job" in other.stderr) == (4, True)
        assert await kitchen.finish(run) == "sent 2026-11-15"
        assert kitchen.start(*words) == run, "also when it has ended"
        assert kitchen.lines() == ["report of 2026-11-15: 15 orders"]

    cooking(tmp_path, "daily.py", story)


def test_a_webhook_that_is_killed_is_delivered_again_under_the_same_id(tmp_path: Path) -> None:
    deliveries: list[tuple[str, bool]] = []
    first_is_held = threading.Event()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            name, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
            digest = hmac.digest(b"any", f"{name}.{at}.".encode() + body, "sha256")
            right = "v1," + base64.b64encode(digest).decode()
            deliveries.append((name, right == self.headers["webhook-signature"]))
            if len(deliveries) == 1:
                first_is_held.wait(60)  # its worker is killed meanwhile
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def story(kitchen: Kitchen) -> None:
        deliveries.clear()
        first_is_held.clear()
        url = f"url=http://127.0.0.1:{server.server_port}"
        run = kitchen.start("deliver", url, "event=paid", 'data={"order": "A1"}', "key=env:WEBHOOK_KEY")
        async with kitchen.worker("ada"):

            async def is_delivered() -> bool:
                return len(deliveries) == 1

            await until(is_delivered)
        first_is_held.set()
        assert await kitchen.finish(run) == "delivered: 204"
        assert len(deliveries) == 2
        assert len({name for name, _ in deliveries}) == 1, "the receiver can drop the second"
        assert all(is_right for _, is_right in deliveries)

    cooking(tmp_path, "webhook.py", story)
    server.shutdown()
    server.server_close()


def test_an_agent_that_is_killed_pays_once_and_asks_no_question_again_that_was_answered(tmp_path: Path) -> None:
    async def story(kitchen: Kitchen) -> None:
        run = kitchen.start("agent", "goal=Pay Acme", "key=env:MODEL_KEY")
        async with kitchen.worker("ada"):
            await kitchen.committed(run, 2)  # the first thought, and what was searched for
            await kitchen.seen("turn 2")  # in the middle of a thought
        async with kitchen.worker("bob"):
            await kitchen.status(run, "parked")
            kitchen.shell.run("signal", run, "approve:2", "true")
            await kitchen.seen("paid")  # it has paid, and nobody has recorded that yet
        if any(event.type == "tool_invocation_finished" for event in await kitchen.app.aevents(run)):
            raise TooLate("it is recorded that it has paid")
        if any("turn 4" in line for line in kitchen.lines()):
            raise TooLate("the payment has ended, and a step runs ahead of the disk")
        async with kitchen.worker("cid"):
            await kitchen.status(run, "in_doubt")  # so an operator is asked
        said = (await kitchen.app.aexplain(run)).explanation
        step = re.search(r"pay:[0-9a-f]+", said)
        assert step is not None, said
        kitchen.shell.run("resolve", run, step[0], "--done", "paid Acme")
        assert await kitchen.finish(run) == "Acme is paid."
        asked = Counter(line.partition(", ")[2] for line in kitchen.lines() if "asked" in line)
        assert asked.pop("turn 2") <= 2  # it was cut off, unless it was quicker than we
        assert asked == {"turn 1": 1, "turn 3": 1, "turn 4": 1}
        assert sum("paid" in line for line in kitchen.lines()) == 1
        (transcript,) = await kitchen.app.aexports(run)
        assert transcript.name == "transcript"
        assert "there is no tool 'rm -rf'" in str(transcript)

    cooking(tmp_path, "agent.py", story, pace=0.3)


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("examples/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
)
def test_no_example_gives_a_secret_on_the_command_line(path: Path) -> None:
    """Examples are copied, so they are part of what can be attacked (rule S18)."""
    for command in re.findall(r"holdfast (?:start|dev|worker|serve)\b.*", path.read_text()):
        assert not re.search(r"\b(password|secret|token|key)=(?!env:|…)\S", command), command
