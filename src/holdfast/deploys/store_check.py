"""The check of all runs of a store: those that have not ended, and a sample of those that have, per entry.

The store is only read, and runs are streamed: the memory does not grow with their number. Several processes share the
work. Each loads the code itself, and opens the store for itself.

What can fail: the store cannot be read (`StoreUnavailable`), or a process of the check dies, because the code ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import msgspec

from holdfast.client.app import App
from holdfast.client.store_url import open_reader
from holdfast.deploys.run_check import RunCheck, check_run
from holdfast.engine.replay_report import Verdict
from holdfast.machines import Event, RunStatus
from holdfast.machines.keys import BUILTIN
from holdfast.machines.run_projection import HANDED_OVER
from holdfast.store import Job
from holdfast.store.run_queries import RunFilter

ENDED = (RunStatus.SUCCEEDED, RunStatus.FAILED)  # by their code, most of them
PAGE = 500  # rows that are listed at once
CHUNK = 100  # runs that a process takes at once; it checks them side by side, because some code waits
EVENTS_MAX = 10_000  # events of the runs that are checked side by side, unless one run has more
AHEAD = 2  # chunks for each process that are listed ahead
FEW = 200  # runs that one process checks faster than others could start
LISTED_MAX = 10_000  # runs that a report lists; the others are counted


class Findings(msgspec.Struct):
    """What a check has found: counts per entry, and the runs that do not simply fit.

    Attributes:
        at: when the check began, by the store's clock; 0 for histories that are in no store.
        checked: number of checked runs.
        counts: number of runs by entry and verdict.
        runs: the runs that do not simply fit, those that would stop first; 10,000 at most.
        left_off: how many more there are.
        ended: number of runs that would not go on, and that have ended: no worker takes them, unless one is retried.
        elsewhere: number of runs of other apps that have not ended, which were not checked.
        kept: number of runs that only workers of another build may run, which were not checked.
        unchanged: number of runs that have not changed since the last check, and fitted then.
        aliases: number of checked runs that have not ended and need each alias, by earlier name.
    """

    at: float = 0.0
    checked: int = 0
    counts: dict[str, dict[str, int]] = msgspec.field(default_factory=lambda: defaultdict(Counter))
    runs: list[RunCheck] = msgspec.field(default_factory=list)
    left_off: int = 0
    ended: int = 0
    elsewhere: int = 0
    kept: int = 0
    unchanged: int = 0
    aliases: dict[str, int] = msgspec.field(default_factory=Counter)

    def add(self, found: RunCheck) -> None:
        """Count a run, and list it unless it fits."""
        self.checked += 1
        self.counts[found.entry][found.verdict.value] += 1
        for alias in found.aliases if found.live else ():
            self.aliases[alias] = self.aliases.get(alias, 0) + 1
        if found.verdict is Verdict.FITS:
            return
        self.ended += found.verdict.is_failure and not found.live
        if len(self.runs) < LISTED_MAX:
            self.runs.append(found)
        else:
            self.left_off += 1
        if found.verdict.is_failure:  # they come first, so that none is left off for one that goes on
            place = self.failures - 1
            if len(self.runs) > place:
                self.runs[-1], self.runs[place] = self.runs[place], found

    def end(self) -> Findings:
        """Sort the runs: those that would stop first."""
        self.runs.sort(key=lambda found: (not found.verdict.is_failure, found.entry, found.run))
        return self

    @property
    def failures(self) -> int:
        """Number of runs that would not go on."""
        failing = [verdict.value for verdict in Verdict if verdict.is_failure]
        return sum(count.get(verdict, 0) for count in self.counts.values() for verdict in failing)


class Since(msgspec.Struct, frozen=True):
    """What an earlier check of the same code has seen: when it began, and the runs that did not fit."""

    at: float
    again: frozenset[str]

    def has_changed(self, job: str, updated_at: float) -> bool:
        """Return whether a run must be checked again."""
        return updated_at >= self.at or job in self.again


async def listed(
    app: App, reader: Any, findings: Findings, sample: int, since: Since | None = None
) -> AsyncIterator[str]:
    """Yield the jobs to check, a page at a time."""
    plugins = {plugin for plugin, _ in app.entries if plugin != BUILTIN}
    before: str | None = None
    while page := await reader.open_jobs(before, PAGE):
        before = page[-1].id
        for row in page:
            if row.plugin not in plugins:
                findings.elsewhere += row.plugin != BUILTIN
            elif _is_for_another_build(row, app.build):
                findings.kept += 1
            elif since is not None and not since.has_changed(row.id, row.updated_at):
                findings.unchanged += 1
            else:
                yield row.id
    for plugin, entry in [name for name in app.entries if name[0] != BUILTIN] if sample else []:
        ended = RunFilter(plugin_id=plugin, entry_id=entry, status=tuple(map(str, ENDED)), newest=True)
        pinned = app.build is not None and app.entries[plugin, entry].pin
        for record in await reader.records(ended, sample):
            if pinned and record.build != app.build:
                continue  # this code would never have run it
            if since is None or since.has_changed(record.task_id, record.updated_at):
                yield record.task_id


def _is_for_another_build(row: Job, build: str | None) -> bool:
    """Return whether workers of this build never take a job. One that was handed over may be released to them."""
    return build is not None and row.kept_for not in {None, build} and row.course.stage != HANDED_OVER


async def check_jobs(app: App, reader: Any, jobs: Iterable[str]) -> list[RunCheck]:
    """Check some jobs, as many side by side as the memory for their events allows.

    A job that was removed meanwhile is left out.
    """
    found: list[RunCheck] = []
    streams: list[list[Event]] = []
    for job in jobs:
        events = await reader.events(job)
        streams += [events] if events else []
        if sum(map(len, streams)) >= EVENTS_MAX:
            found += await asyncio.gather(*(check_run(app, stream, reader.blob) for stream in streams))
            streams.clear()
    return found + await asyncio.gather(*(check_run(app, stream, reader.blob) for stream in streams))


async def acheck(
    app: App, reader: Any, *, sample: int = 20, since: Since | None = None, chunk: int = CHUNK
) -> Findings:
    """Check the runs of a store in this process.

    Args:
        app: the app with the code.
        reader: the store, as `open_reader` opens it.
        sample: number of ended runs per entry.
        since: what an earlier check has seen; it leaves out what has not changed.
        chunk: number of runs that are checked side by side.
    """
    findings, jobs = Findings(at=await reader.now()), []
    async for job in listed(app, reader, findings, sample, since):
        jobs.append(job)
        if len(jobs) == chunk:
            for found in await check_jobs(app, reader, jobs):
                findings.add(found)
            jobs = []
    for found in await check_jobs(app, reader, jobs):
        findings.add(found)
    return findings.end()


def check_histories(app: App, histories: Iterable[Sequence[Event]]) -> Findings:
    """Check recorded histories, one after the other."""
    findings = Findings()
    with asyncio.Runner() as runner, _quiet_stdout():
        for events in histories:
            findings.add(runner.run(check_run(app, events, keys=False)))
    return findings.end()


def check_store(
    load: Callable[[], App],
    app: App,
    *,
    processes: int,
    sample: int = 20,
    since: Since | None = None,
    on_progress: Callable[[int], object] = lambda _: None,
) -> Findings:
    """Check the runs of the app's store, in this process and, if they are many, in others.

    Args:
        load: returns the app in another process; it must be picklable.
        app: the app.
        processes: number of processes that check.
        sample: number of ended runs per entry.
        since: what an earlier check has seen; it leaves out what has not changed.
        on_progress: called with the number of checked runs.

    Raises:
        StoreUnavailable: the store cannot be read.
        RuntimeError: a process of the check has died.
    """
    findings = Findings()
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        reader = open_reader(app.url)
        stack.callback(lambda: runner.run(reader.close()))
        findings.at = runner.run(reader.now())
        stack.enter_context(_quiet_stdout())
        chunks = _chunks(runner, listed(app, reader, findings, sample, since))
        first = [chunk for _, chunk in zip(range(FEW // CHUNK), chunks, strict=False)]
        if processes == 1 or sum(map(len, first)) < FEW:
            for chunk in _both(first, chunks):
                _add(findings, runner.run(check_jobs(app, reader, chunk)), on_progress)
            return findings.end()
        with ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(load,)
        ) as pool:
            try:
                _spread(pool, _both(first, chunks), processes, lambda done: _add(findings, done, on_progress))
            except BrokenProcessPool as error:
                cure = "run the check again with --processes 1 to see how"
                raise RuntimeError(f"a process of the check has ended, perhaps by the code of a job: {cure}") from error
    return findings.end()


def _add(findings: Findings, checks: list[RunCheck], on_progress: Callable[[int], object]) -> None:
    for found in checks:
        findings.add(found)
    on_progress(findings.checked)


def _both(first: list[list[str]], rest: Iterator[list[str]]) -> Iterator[list[str]]:
    yield from first
    yield from rest


def _chunks(runner: asyncio.Runner, jobs: AsyncIterator[str]) -> Iterator[list[str]]:
    async def take() -> list[str]:
        chunk: list[str] = []
        async for job in jobs:
            chunk.append(job)
            if len(chunk) == CHUNK:
                break
        return chunk

    while chunk := runner.run(take()):
        yield chunk


def _spread(
    pool: ProcessPoolExecutor, chunks: Iterator[list[str]], processes: int, add: Callable[[list[RunCheck]], None]
) -> None:
    """Let the processes check chunks. Only a few are listed ahead, so the memory does not grow."""
    under_way: set[Future[list[RunCheck]]] = set()
    for chunk in chunks:
        under_way.add(pool.submit(_check_chunk, chunk))
        if len(under_way) >= AHEAD * processes:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                add(future.result())
    for future in under_way:
        add(future.result())


class _Process:
    """The app, the store and the loop of one process of a check."""

    app: App
    reader: Any
    runner: asyncio.Runner


def _begin(load: Callable[[], App]) -> None:
    """Load the code in a process of the check. What the code prints goes to standard error."""
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, name="holdfast-parent", daemon=True).start()
    _Process.app = load()
    _Process.reader = open_reader(_Process.app.url)
    _Process.runner = asyncio.Runner()


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, also if that was killed: no chunk would come."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _check_chunk(jobs: list[str]) -> list[RunCheck]:
    return _Process.runner.run(check_jobs(_Process.app, _Process.reader, jobs))


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Let the code of jobs print to standard error: standard output is the report."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
