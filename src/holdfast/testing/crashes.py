"""Crashes at every commit of a job.

A clean run counts the commits of the worker that runs the job. Then the job runs once for each commit and each way in
which it can go wrong:

- crash before: the process ends, and the commit was not applied.
- crash after: the commit was applied, and the process ends before it hears of it.
- error: the store refuses the commit, and the process lives.
- overtaken: the process is stopped at the commit. It loses its lease, a second worker takes the job as far as it can,
  and then the first one goes on, and tries to commit.

After each, another worker continues the job. These must hold:

- No call of a tool acts twice. Tools with ``on_doubt="retry"`` are exempt: they may be repeated.
- The run ends as in the clean run, or it asks about a tool in doubt. If it ends so, its tools have acted as often.
- No signal is lost, and `verify` finds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from holdfast.authoring.functions import Call, JobFunction
from holdfast.authoring.job_api import external_key
from holdfast.client.app import App
from holdfast.client.run_handle import RunHandle, job_of_run
from holdfast.engine.worker import Worker
from holdfast.errors import InvalidArguments
from holdfast.machines import TERMINAL_JOB_STATES, Event
from holdfast.machines.run_projection import run_name
from holdfast.store import Job, Reclaim, ReleaseLeases, Store
from holdfast.testing.crash_report import Case, CrashFailure, CrashReport
from holdfast.testing.faulty_store import MODES, FaultyStore
from holdfast.testing.lab import Lab, end_tasks, replaced
from holdfast.testing.virtual_loop import HoldfastTestWarning
from holdfast.testing.world import call_fake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OVERTAKEN_SECONDS = 366 * 86_400.0  # that a second worker has to take the job as far as it can
SETTLE_SECONDS = 60.0
LEASE_SECONDS = 15.0  # after which a worker's leases end that it does not renew, as by default
OTHER_START_SECONDS = 4_321.0  # by which the second clean run begins later
TOOL_ENDS = {"tool_invocation_finished", "command_committed"}


def crash_everywhere(
    lab: Lab, job: JobFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CrashReport:
    """Run the cases; see `Lab.crash_everywhere`."""
    __tracebackhide__ = True
    signals, only, may_fail = _options(kwargs)
    app = lab.app_of(job)
    story = _Story(lab, app, job, args, kwargs, dict(signals))
    clean, commits = story.clean()
    if clean[0] != "succeeded" and not may_fail:
        cure = "pass the signals that it waits for, or may_fail=True if it is meant to fail"
        raise CrashFailure(f"the clean run {clean[0]}: {clean[1]}. {cure}")
    if only is not None and not 1 <= only[0] <= len(commits):
        raise InvalidArguments("only", f"the clean run has {len(commits)} commits, so there is no commit {only[0]}")
    again, _ = story.clean(OTHER_START_SECONDS)
    compared = clean == again
    if not compared:
        text = "two clean runs had different results, so results were not compared: do they depend on the time?"
        warnings.warn(text, HoldfastTestWarning, stacklevel=3)
    todo = [only] if only is not None else [(n, mode) for n in range(1, len(commits) + 1) for mode in MODES]
    cases = [story.case(number, mode, clean, compared=compared) for number, mode in todo]
    report = CrashReport(job.name, commits, cases, compared)
    if report.failures:
        raise CrashFailure(report.told(args, kwargs, signals))
    return report


def _options(kwargs: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, str] | None, bool]:
    """Take the options of the kit out of the arguments of the job, and check them."""
    __tracebackhide__ = True
    signals = kwargs.pop("signals", None)
    if signals is not None and not isinstance(signals, Mapping):
        raise InvalidArguments("signals", f"must be a dict of keys and payloads, got {signals!r:.80}")
    only: tuple[int, str] | None = None
    match kwargs.pop("only", None):
        case None:
            pass
        case (int() as number, str() as mode) if mode in MODES:
            only = number, mode
        case wrong:
            modes = ", ".join(map(repr, MODES))
            raise InvalidArguments("only", f"must be the number of a commit and one of {modes}; got {wrong!r:.80}")
    return dict(signals or {}), only, bool(kwargs.pop("may_fail", False))


def _forgotten(events: Sequence[Event]) -> list[str]:
    """Return the tools whose end is unknown in a run that has ended: the code no longer asked for them."""
    begun = [str(event.payload["node"]) for event in events if event.type == "tool_invocation_started"]
    ended = {str(event.payload["node"]) for event in events if event.type in TOOL_ENDS}
    names = dict.fromkeys(node.partition(":")[0] for node in begun if node not in ended)
    return [f"{name} was begun, its end is unknown, and the code ended without it" for name in names]


def _fails_in_doubt(events: Sequence[Event], app: App) -> bool:
    """Return whether a tool was in doubt that is declared to fail then."""
    begun = {str(event.payload["node"]) for event in events if event.type == "tool_invocation_started"}
    calls = app.calls_by_name()
    names = {node.partition(":")[0] for node in begun}
    return any(call.on_doubt == "fail" for name in names if (call := calls.get(name)) is not None)


class _Story:
    """A job with its arguments and the signals that it waits for."""

    def __init__(
        self,
        lab: Lab,
        app: App,
        job: JobFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        signals: dict[str, Any],
    ) -> None:
        self._lab = lab
        self._clean_acts: Counter[str] = Counter()
        self._app = app
        self._job = job
        self._args = args
        self._kwargs = kwargs
        self._signals = signals

    def clean(self, later_seconds: float = 0.0) -> tuple[Any, list[str]]:
        """Run the job without a fault. Return how it ends, and what each commit wrote."""
        __tracebackhide__ = True
        with self._lab.another(later_seconds) as lab, self._recorded() as acts:
            scene = _Scene(lab, self._app, self._signals, acts)
            ending = lab.run(scene.play(self._start(lab), 0, ""))
            if scene.misfit is not None:
                raise CrashFailure(f"the code does not repeat itself, even without a crash: {scene.misfit}")
            if ending is None:
                raise InvalidArguments("signals", f"the clean run does not end: {lab.run(lab.explained(scene.run))}")
            if unused := self._signals.keys() - {key for key, _ in scene.sent}:
                raise InvalidArguments("signals", f"the job did not wait for {', '.join(sorted(unused))}")
            self._clean_acts = scene.counted()
            return ending, scene.faulty.written

    def case(self, number: int, mode: str, clean: Any, *, compared: bool) -> Case:
        """Let one commit go wrong in one way."""
        with self._lab.another() as lab, self._recorded() as acts:
            scene = _Scene(lab, self._app, self._signals, acts)
            ending = lab.run(scene.play(self._start(lab), number, mode))
            problems = scene.problems(self._clean_acts)
            fails = ending is not None and ending[0] == "failed" and _fails_in_doubt(lab.history(scene.run), self._app)
            if ending is not None and not fails and ending != clean and (compared or ending[0] != clean[0]):
                problems.append(f"it ended with {ending!r:.400}, and without a crash with {clean!r:.200}")
            if scene.misfit is not None:
                problems.append(f"the code asked for something else after the crash: {scene.misfit}")
            elif ending is None and not scene.asks:
                problems.append(f"it does not go on: {lab.run(lab.explained(scene.run))}")
            if ending is not None and not fails:
                problems += _forgotten(lab.history(scene.run))
            if ending == clean and not problems:
                problems += scene.missing(self._clean_acts)
            problems += [f"verify: {found}" for found in lab.run(self._app.averify()).values()]
            reached = "asks" if ending is None else "fails" if fails else "same"
            outcome = reached if scene.faulty.failed else "not reached"
            return Case(number, mode, outcome, problems, lab.history(scene.run) if problems else [])

    def _start(self, lab: Lab) -> Callable[[], Awaitable[RunHandle]]:
        for app in [self._app, *self._lab.apps]:  # children may be jobs of other apps
            lab.borrow(app)
        return lambda: self._app.astart(self._job, *self._args, **self._kwargs)

    @contextlib.contextmanager
    def _recorded(self) -> Any:
        """Record which calls of tools act."""
        acts: list[_Act] = []
        with contextlib.ExitStack() as stack:
            for call in {id(call): call for call in self._app.calls_by_name().values() if call.tool}.values():
                stack.enter_context(replaced(call, _Recorder(call, acts)))
            yield acts


class _Recorder:
    """A tool that notes when it acts."""

    def __init__(self, call: Call[..., Any], acts: list[_Act]) -> None:
        self._call = call
        self._function = call.function
        self._is_async = call.is_async
        self._acts = acts

    async def __call__(self, **arguments: Any) -> Any:
        act = _Act(self._call, external_key())
        self._acts.append(act)
        try:
            if self._is_async:
                return await call_fake(self._function, arguments)
            return await asyncio.to_thread(call_fake, self._function, arguments)
        except Exception:
            act.failed = True  # Holdfast knows that it failed, and may try again
            raise


class _Act:
    """One call of a tool."""

    def __init__(self, call: Call[..., Any], key: str) -> None:
        self.call = call
        self.key = key
        self.failed = False


class _Scene:
    """One run of the job, with at most one fault."""

    def __init__(self, lab: Lab, app: App, signals: Mapping[str, Any], acts: list[_Act]) -> None:
        self._lab = lab
        self._app = app
        self._signals = dict(signals)
        self.sent: set[tuple[str, str]] = set()  # keys of signals, and the places that waited for them
        self._acts = acts
        self.asks = False
        self.misfit: str | None = None  # how the code did not fit its own history
        self.run: RunHandle
        self._expiring: asyncio.Task[None] | None = None

    async def play(self, start: Callable[[], Awaitable[RunHandle]], number: int, mode: str) -> Any:
        """Run the job. Return how it ended, or None if it asks or does not go on."""
        self.run = await start()
        self.faulty = FaultyStore(self._lab.store, number, mode, self._overtake, self._on_error)
        self._first = self._lab.hire(cast("Store", self.faulty))
        await self._lab.until(self._is_over_or_crashed, self.faulty.gone)
        if self.faulty.crashed:
            await self._lab.kill(self._first)
            await self._free(self._first)
            self._lab.hire(self._lab.store)
        await self._lab.until(self._is_over)
        if self._expiring is not None:
            await end_tasks(self._expiring)
        await self._lab.settle(SETTLE_SECONDS)  # a worker that was overtaken tries to go on
        return await self._ending()

    async def _overtake(self) -> None:
        """Let a second worker take the job as far as it can, while the first one is stopped at a commit."""
        await self._free(self._first)
        self._lab.hire(self._lab.store)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OVERTAKEN_SECONDS):
                await self._lab.see(self._is_over, asyncio.Event())

    def _on_error(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self._expire())

    async def _expire(self) -> None:
        """Let the leases of the first worker end once it runs nothing, as short ones do: the lab has long ones."""
        await asyncio.sleep(LEASE_SECONDS)
        while self._first.running:  # noqa: ASYNC110 - no event says that it runs nothing
            await asyncio.sleep(LEASE_SECONDS)
        await self._free(self._first)

    async def _free(self, worker: Worker) -> None:
        await self._lab.store.commit([ReleaseLeases(worker.name), Reclaim()])

    async def _is_over_or_crashed(self) -> bool:
        return self.faulty.crashed or await self._is_over()

    async def _is_over(self) -> bool:
        current = await self._app.acurrent(self.run.id)  # the last one, if it continues as others
        job = await self._lab.store.get(job_of_run(current)[0])
        assert job is not None, "it was acknowledged"
        if job.state in TERMINAL_JOB_STATES:
            return job.course.continued_as is None
        if self._signals:
            await self._answer_waits()
        questions = await self._app.ainbox()
        self.asks = any(question.kind == "doubt" for question in questions)
        self.misfit = next((question.question for question in questions if question.kind == "deploy"), None)
        return self.asks or self.misfit is not None

    async def _answer_waits(self) -> None:
        """Send its signal to each place that waits for one: of the job, its children and the runs that they started."""
        last: str | None = None
        while page := await self._lab.store.open_jobs(before=last):
            last = page[-1].id
            for job in page:
                for place in job.wait.places() if job.wait is not None else ():
                    await self._answer_wait(job, place.node, place.correlation_key or "")

    async def _answer_wait(self, job: Job, node: str | None, key: str) -> None:
        waiting = key, f"{job.id} {node}"
        if key in self._signals and waiting not in self.sent:
            self.sent.add(waiting)
            await self._app.asignal(run_name(job.id, job.run), key, self._signals[key])

    async def _ending(self) -> Any:
        record = await self._app.aget(await self._app.acurrent(self.run.id))
        if self.asks or self.misfit is not None or record.finished_at is None:
            return None
        if record.status == "succeeded":
            return "succeeded", await self._app.aoutcome(self.run.id)
        return str(record.status), f"{record.error.code}: {record.error.message}" if record.error is not None else None

    def counted(self) -> Counter[str]:
        """Return how often each tool acted, without tries that failed visibly."""
        return Counter(act.call.name for act in self._acts if not act.failed and act.call.on_doubt != "retry")

    def missing(self, clean: Counter[str]) -> list[str]:
        """Return the tools that acted less often than in the clean run, although the run ended as that one did."""
        acted = self.counted()
        return [
            f"{name} acted {acted[name]} times, and without a crash {count} times, and still the job ended as if"
            " nothing had happened: does it catch the error of a call whose end is unknown?"
            for name, count in clean.items()
            if acted[name] < count
        ]

    def problems(self, clean: Counter[str]) -> list[str]:
        """Return what must not be, as far as the outside can see it."""
        once = [act for act in self._acts if not act.failed and act.call.on_doubt != "retry"]
        repeated = Counter((act.call.name, act.key) for act in once)
        found = [f"{name} acted {count} times for one call" for (name, _), count in repeated.items() if count > 1]
        if found:
            return found
        acted = self.counted()
        more = [name for name in acted if acted[name] > clean[name]]
        return [f"{name} acted {acted[name]} times, and without a crash {clean[name]} times" for name in more]
