"""What must not grow, on SQLite: each cost beside the same cost where there is little, in the same run.

- A worker's turn with a million queued and a million finished jobs, beside one with a thousand of each.
- An idle worker with a hundred thousand jobs that wait, beside one with none.
- A step of a replay of ten thousand, beside one of a thousand.
- The last steps of a job of fifty thousand, beside its first; the time and the memory of its replay, for each step.
- From a signal to the code that goes on, in commits of the same disk.
- A round of a job that continues itself (`continue_as`), at the end of a chain of a thousand, beside its beginning.

Files are filled by SQL from the rows of a few jobs that were really decided, with other ids; what is measured goes
through the store and the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import apsw

from holdfast import App, Config, RunHandle, continue_as, wait_for
from holdfast.gc_settings import tune_gc
from holdfast.machines import Event, JobState
from holdfast.machines.event import freeze_plain
from holdfast.store import Append, Claim, Claims, Expire, Job, Reclaim, Store, Submit
from holdfast.store.decide import claim, decide, submit
from holdfast.store.memory import MemoryInbox
from holdfast.store.sql.columns import JOB_WRITTEN, job_row
from holdfast.store.sql.event_rows import EVENT_COLUMNS, event_row
from holdfast.store.sql.migrate import migrate
from holdfast.store.sqlite.store import SqliteStore

FEW = 1_000
FILES = 4  # small files, one after the other: each is claimed from while it still has about as many as it should
ROUNDS = {10: 12, 100: 6}  # turns on each small file, by the size of the claim
GROWTH_MAX = 1.5
WAITING = 100_000
IDLE_SECONDS = 10.0
IDLE_SHARE_MAX = 0.002  # of a core, for jobs that wait: two idle workers with none differ by a quarter of it
IDLE_BYTES_MAX = 50_000_000
REPLAYS = (1_000, 10_000)
LONG = 50_000
LONG_GROWTH_MAX = 1.3  # of the last steps over the first
REPLAY_MICROSECONDS_MAX = 20.0  # for a step of a long job
REPLAY_BYTES_MAX = 2_000
SIGNALS = 150
SIGNAL_COMMITS_MAX = 5.0
CHAIN = 1_000

Life = tuple[Job, list[Event]]  # a job's row and its stream
Times = defaultdict[str, list[float]]


# Files


def lived(number: int, now: float, *events: tuple[str, dict[str, Any]], due_at: float | None = None) -> Life:
    """Decide a job up to here: created and, if it has any event of its own, claimed before that."""
    made = submit(
        Submit(job="template", plugin="b", entry="e", args={"n": number}, priority=number % 5, due_at=due_at), now, None
    )
    if not events:
        return made.job, made.events
    taken = claim(made.job, claiming(1), now)
    written = decide(Append("template", 1, events), taken.job, now, MemoryInbox())
    return written.job, [*made.events, *taken.events, *written.events]


def queued_and_finished(now: float) -> list[Life]:
    """Jobs of five priorities, created one after the other: half are queued, a tenth of them for later; half ended."""
    queued = [lived(n, now - 60 + n, due_at=now + 3600 + n if n >= 18 else None) for n in range(20)]  # noqa: PLR2004
    return queued + [lived(n, now - 60 + n, ("job_completed", {"result": n})) for n in range(20)]


def waiting(now: float) -> list[Life]:
    """Jobs that wait for a signal, half of them not for ever."""
    said = {"node": "wait:go", "correlation_key": "go", "wait_type": "signal", "park": True}
    return [lived(n, now, ("job_waiting", {**said, "deadline": now + 86400 if n % 2 else None})) for n in range(20)]


def fill(path: Path, lives: list[Life], jobs: int, now: float) -> None:
    """Make a database of so many jobs, with such lives in turn."""
    connection = apsw.Connection(str(path))
    for setting, value in (("journal_mode", "off"), ("synchronous", "off"), ("cache_size", -200_000)):
        connection.pragma(setting, value)
    migrate(connection, "sqlite")
    with connection:
        for table, columns, key in (("jobs", JOB_WRITTEN, "id"), ("events", EVENT_COLUMNS.split(", "), "job")):
            rows = [job_row(job, now) for job, _ in lives] if table == "jobs" else []
            lines = [(str(n), *row[1:]) for n, row in enumerate(rows)] or [
                (str(n), *event_row(event, freeze_plain(event.payload).text)[1:])
                for n, (_, events) in enumerate(lives)
                for event in events
            ]
            connection.execute(f"CREATE TEMP TABLE life AS SELECT {', '.join(columns)} FROM {table} WHERE 0")
            connection.executemany(f"INSERT INTO life VALUES ({', '.join('?' * len(columns))})", lines)
            connection.execute(
                "WITH RECURSIVE number(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < ?)"
                f" INSERT INTO {table} ({', '.join(columns)}) SELECT printf('job-%08d', n), {', '.join(columns[1:])}"
                f" FROM number CROSS JOIN life ON {key} = n % ?",
                (jobs, len(lives)),
            )
            connection.execute("DROP TABLE life")
    connection.close()


# A worker's turn


def claiming(limit: int, lease_seconds: float = 3600) -> Claim:
    """Claim any of the jobs here."""
    return Claim(worker="w", entries=frozenset({("b", "e")}), queues=None, limit=limit, lease_seconds=lease_seconds)


async def timed(taken: list[float], work: Awaitable[Any]) -> Any:
    """Note how long something takes."""
    started = time.perf_counter()
    answer = await work
    taken.append(time.perf_counter() - started)
    return answer


async def turn(store: Store, times: Times, size: int, number: int) -> None:
    """Do once what a worker does: claim and end jobs, find nothing to sweep, sweep something, look around."""
    claimed: Claims = (await timed(times[f"claim of {size}"], store.commit([claiming(size)])))[0]
    assert len(claimed) == size, "a file runs dry"
    ends = [Append(one.job.id, one.job.attempt, (("job_completed", {"result": 1}),)) for one in claimed]
    answers = await timed(times[f"end of {size}"], store.commit(ends))
    assert all(answer.state is JobState.COMPLETED for answer in answers), answers
    await timed(times["sweep of nothing"], store.commit([Expire(), Reclaim()]))
    await timed(times["next due"], store.next_due())
    await timed(times["requests"], store.requests_for("w"))
    names = [f"late-{size}-{number}-{n}" for n in range(10)]
    late = [Submit(job=name, plugin="b", entry="e", args={}, deadline=time.time() - 1) for name in names]
    await timed(times["start of 10"], store.commit(late))
    (swept,) = await timed(times["expiry of 10"], store.commit([Expire()]))
    await store.commit([claiming(10, lease_seconds=1e-6)])
    (reclaimed,) = await timed(times["reclaim of 10"], store.commit([Reclaim()]))
    assert len(swept.jobs) == len(reclaimed.jobs) == 10, "each sweep has ten jobs to find"  # noqa: PLR2004


async def turns(folder: Path, jobs: int) -> list[str]:
    """Compare turns on a full file with turns on small ones."""
    few: Times = defaultdict(list)
    many: Times = defaultdict(list)
    now, started = time.time(), time.perf_counter()
    fill(folder / "many.db", queued_and_finished(now), 2 * jobs, now)
    size = (folder / "many.db").stat().st_size
    print(f"a file of {jobs:,} queued and {jobs:,} finished jobs: {size / 1e6:,.0f} MB, "
          f"filled in {time.perf_counter() - started:.0f} s")  # fmt: skip
    full = SqliteStore(folder / "many.db")
    for number in range(FILES):
        path = folder / f"few-{number}.db"
        fill(path, queued_and_finished(now), 2 * FEW, now)
        small = SqliteStore(path)
        for size, rounds in ROUNDS.items():
            for again in range(rounds):
                await turn(small, few, size, number * rounds + again)
                await turn(full, many, size, number * rounds + again)
        await small.close()
    await full.close()
    return judged(few, many, jobs)


def judged(few: Times, many: Times, jobs: int) -> list[str]:
    """Print what each thing costs with few jobs and with many; what has grown too much."""
    missed = []
    for name, taken in few.items():
        before, after = statistics.median(taken), statistics.median(many[name])
        print(f"  {name:<17} {before * 1e6:8,.0f} µs with {FEW:,}   {after * 1e6:8,.0f} µs with {jobs:,}   "
              f"growth {after / before:5.2f}", flush=True)  # fmt: skip
        if after / before > GROWTH_MAX:
            missed.append(f"{name}: {after / before:.2f} times with {jobs:,} jobs, at most {GROWTH_MAX} is due")
    return missed


# An app of its own for each process


def bench_app(path: Path) -> App:
    """Declare the jobs that are measured."""
    app = App("b", config=Config(url=f"sqlite:///{path}"))

    @app.step
    async def s(n: int) -> int:
        return n

    @app.job
    async def e(n: int) -> float:
        """Give the time at which the signal is here."""
        del n  # only tells the jobs apart
        await wait_for("go")
        return time.time()

    @app.job
    async def steps(count: int) -> int:
        """Do so many steps, one after the other, then wait."""
        for n in range(count):
            await s(n)
        await wait_for("go")
        return count

    @app.job
    async def branches(count: int) -> int:
        """Do so many steps at once, then wait."""
        await asyncio.gather(*(s(n) for n in range(count)))
        await wait_for("go")
        return count

    return app


# An idle worker


def idle(path: Path, told: Queue[tuple[float, int]]) -> None:
    """Be a worker with nothing to do; tell the CPU seconds of a second, and the largest memory."""

    async def run() -> float:
        app = bench_app(path)
        worker = app.worker()
        task = asyncio.create_task(worker.arun())
        await asyncio.sleep(1.0)
        before = time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        used = time.process_time() - before
        worker.stop()
        await task
        await app.aclose()
        return used / IDLE_SECONDS

    share = asyncio.run(run())
    told.put((share, resident_bytes()))


def resident_bytes() -> int:
    """Give the most memory that this process has held, 0 where there is no /proc.

    Not from rusage: there the memory of the process that started this one counts, too.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def idleness(folder: Path) -> list[str]:
    """Compare idle workers, both at the same time."""
    spawn = multiprocessing.get_context("spawn")
    now = time.time()
    fill(folder / "none.db", waiting(now), 0, now)
    fill(folder / "waiting.db", waiting(now), WAITING, now)
    asked = [(folder / name, spawn.Queue()) for name in ("none.db", "waiting.db")]
    processes = [spawn.Process(target=idle, args=each) for each in asked]
    for process in processes:
        process.start()
    (none, none_bytes), (some, some_bytes) = [told.get() for _, told in asked]
    for process in processes:
        process.join()
    store = SqliteStore(folder / "waiting.db")
    looks = 2_000
    started = time.perf_counter()
    for _ in range(looks):
        store.change_count()
    look = (time.perf_counter() - started) / looks
    asyncio.run(store.close())
    extra = some_bytes - none_bytes
    print(f"idle worker        {none:.2%} of a core with no job   {some:.2%} with {WAITING:,} that wait   "
          f"{extra / 1e6:+.1f} MB of {none_bytes / 1e6:.0f}   a look costs {look * 1e6:.0f} µs")  # fmt: skip
    missed = []
    if some - none > IDLE_SHARE_MAX:
        missed.append(f"jobs that wait cost {some - none:.2%} of a core, at most {IDLE_SHARE_MAX:.1%} is due")
    if extra > IDLE_BYTES_MAX:
        missed.append(f"jobs that wait cost {extra / 1e6:.0f} MB of memory, at most {IDLE_BYTES_MAX / 1e6:.0f} is due")
    return missed


# Replay


async def replayed(app: App, job: str, count: int) -> float:
    """Bring a job to its wait, then time it from its claim to its end."""
    run = await app.astart(job, count)
    await app.worker().arun(until_idle=True)
    await app.asignal(run.id, "go")
    started = time.perf_counter()
    await app.worker().arun(until_idle=True)
    taken = time.perf_counter() - started
    assert await run.aresult() == count, "the job has ended"
    return taken


async def replays(folder: Path) -> list[str]:
    """Compare a step of a long replay with one of a short replay; what a job without steps takes is not counted."""
    app = bench_app(folder / "replay.db")
    missed = []
    for job in ("steps", "branches"):
        taken = {count: [await replayed(app, job, count) for _ in range(3)] for count in (0, *REPLAYS)}
        short, long = [(min(taken[count]) - min(taken[0])) / count for count in REPLAYS]
        print(f"replay of {job:<8} {short * 1e6:5.1f} µs a step of {REPLAYS[0]:,}   {long * 1e6:5.1f} µs a step of "
              f"{REPLAYS[1]:,}   growth {long / short:4.2f}")  # fmt: skip
        if long / short > GROWTH_MAX:
            missed.append(f"replay of {job}: a step costs {long / short:.2f} times, at most {GROWTH_MAX} is due")
    await app.aclose()
    return missed


# One long job


def long_app(path: Path, reached: Callable[[int], object]) -> App:
    """Declare a job of many steps, which waits at its end; `reached` is told the number of steps so far."""
    app = App("b", config=Config(url=f"sqlite:///{path}"))

    @app.step
    async def s(n: int) -> int:
        return n

    @app.job
    async def long(count: int) -> int:
        for n in range(count):
            reached(n)
            await s(n)
        reached(count)
        while await wait_for("go"):
            pass
        return count

    return app


def long_run(path: Path, run: str | None, told: Queue[tuple[str, list[float], float]]) -> None:
    """Run the long job up to its wait: live, or replayed. Tell its id, the times of its steps, and the memory."""
    tune_gc()  # as the command line does for a worker
    times: list[float] = []
    before = 0

    async def working() -> str:
        nonlocal before
        done = asyncio.Event()

        def reached(number: int) -> None:
            times.append(time.perf_counter())
            if number == LONG:
                done.set()

        app = long_app(path, reached)
        handle = await app.astart("long", LONG) if run is None else RunHandle(app, run)
        if run is not None:
            await handle.asignal("go", "again")
        before = resident_bytes()
        times.append(time.perf_counter())
        worker = app.worker()
        task = asyncio.create_task(worker.arun())
        await done.wait()
        worker.stop()
        await task
        await app.aclose()
        return handle.id

    name = asyncio.run(working())
    told.put((name, times, (resident_bytes() - before) / LONG))


def long_job(folder: Path) -> list[str]:
    """Measure one long job, each time in a process of its own."""
    spawn = multiprocessing.get_context("spawn")

    def told_by(run: str | None) -> tuple[str, list[float], float]:
        told: Queue[tuple[str, list[float], float]] = spawn.Queue()
        process = spawn.Process(target=long_run, args=(folder / "long.db", run, told))
        process.start()
        answer = told.get()
        process.join()
        return answer

    name, times, _ = told_by(None)
    part = LONG // 10
    first, last = (times[2 * part] - times[part]) / part, (times[-1] - times[-1 - part]) / part
    print(f"a job of {LONG:,} steps   {first * 1e6:.1f} µs a step at first   {last * 1e6:.1f} µs at last")
    replays = [told_by(name) for _ in range(3)]
    step, memory = min((times[-1] - times[0]) / LONG for _, times, _ in replays), min(each[2] for each in replays)
    print(f"  its replay   {step * 1e6:.1f} µs a step   {memory:,.0f} bytes of memory a step")
    missed = []
    if last > LONG_GROWTH_MAX * first:
        missed.append(f"the last steps of a long job cost {last / first:.2f} times, at most {LONG_GROWTH_MAX} is due")
    if step * 1e6 > REPLAY_MICROSECONDS_MAX:
        missed.append(f"a replay takes {step * 1e6:.1f} µs a step, at most {REPLAY_MICROSECONDS_MAX:.0f} are due")
    if memory > REPLAY_BYTES_MAX:
        missed.append(f"a replay takes {memory:,.0f} bytes a step, at most {REPLAY_BYTES_MAX:,} are due")
    return missed


# Signals


def work(path: Path) -> None:
    """Be a worker until the end of the process."""
    bench_app(path).worker().run()


class Bare:
    """A file beside the store's, for bare commits of one row."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        self._connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY)")

    def commit_seconds(self) -> float:
        """Time one commit."""
        started = time.perf_counter()
        self._connection.execute("INSERT INTO t DEFAULT VALUES")
        return time.perf_counter() - started

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


async def signalled(app: App, commit_seconds: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Start jobs and, when each waits, signal one after the other: seconds from the call to the code.

    Between two signals there is a pause, and a bare commit after another: a disk and a core that were asleep answer
    later than in a tight loop, and both sides are to meet them asleep.
    """
    names = await app.astart_many("e", [{"n": n} for n in range(SIGNALS)])
    while len(await app.store().jobs(state=JobState.WAITING, limit=SIGNALS)) < SIGNALS:  # noqa: ASYNC110 - see `there`
        await asyncio.sleep(0.05)
    taken, commits = [], []
    for number, name in enumerate(names):
        pause = 0.02 + number % 20 / 1000  # in step with nobody's clock
        await asyncio.sleep(pause)
        commits.append(commit_seconds())
        await asyncio.sleep(pause)
        sent = time.time()
        await app.asignal(name, "go")
        await asyncio.sleep(pause)  # nobody watches meanwhile
        taken.append(await RunHandle(app, name).aresult() - sent)
    return taken, commits


async def signals(folder: Path) -> list[str]:
    """Compare signals with bare commits, with the worker in this process and in another."""
    bare = Bare(folder / "commits.db")
    app = bench_app(folder / "here.db")
    worker = app.worker()
    working = asyncio.create_task(worker.arun())
    here, commits = await signalled(app, bare.commit_seconds)
    worker.stop()
    await working
    await app.aclose()
    app = bench_app(folder / "there.db")
    process = multiprocessing.get_context("spawn").Process(target=work, args=(folder / "there.db",), daemon=True)
    process.start()
    there, _ = await signalled(app, bare.commit_seconds)
    process.terminate()
    process.join()
    await app.aclose()
    in_a_row = statistics.median(bare.commit_seconds() for _ in range(300))
    bare.close()
    commit = statistics.median(commits)
    share = statistics.median(here) / commit
    for name, taken in (("this", here), ("another", there)):
        print(f"signal to code in {name + ' process':<15}   p50 {statistics.median(taken) * 1e3:5.1f} ms   "
              f"longest {max(taken) * 1e3:5.1f} ms")  # fmt: skip
    print(f"  in this process {share:.1f} commits of {commit * 1e6:,.0f} µs each by itself; "
          f"{statistics.median(here) / in_a_row:.1f} of {in_a_row * 1e6:,.0f} µs in a row")  # fmt: skip
    if share > SIGNAL_COMMITS_MAX:
        return [f"a signal takes {share:.1f} commits to the code, at most {SIGNAL_COMMITS_MAX:.0f} are due"]
    return []


async def chain(folder: Path) -> list[str]:
    """Measure the rounds of a chain of runs."""
    app = bench_app(folder / "chain.db")
    begun: list[float] = []

    @app.job
    async def again(number: int) -> int:
        begun.append(time.perf_counter())
        return number if number == CHAIN else continue_as(number + 1)

    handle = await app.astart(again, 0)
    await app.worker().arun(until_idle=True)
    assert await handle.aresult() == CHAIN
    await app.aclose()
    rounds = [later - sooner for sooner, later in itertools.pairwise(begun)]
    first, last = statistics.median(rounds[:200]), statistics.median(rounds[-200:])
    print(f"a round of a chain of {CHAIN:,} runs   first {first * 1e3:.2f} ms   last {last * 1e3:.2f} ms")
    if last > GROWTH_MAX * first:
        return [f"a round of a chain grows {last / first:.2f} times, at most {GROWTH_MAX} is due"]
    return []


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description="What must not grow.")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="queued jobs, and as many finished ones")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        missed = asyncio.run(signals(folder))  # first: what the others leave in memory would slow it down
        missed += asyncio.run(chain(folder))
        missed += asyncio.run(turns(folder, chosen.jobs))
        missed += idleness(folder)
        missed += asyncio.run(replays(folder))
        missed += long_job(folder)
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
