"""The clients of a simulation: they start, signal, cancel, pause; and the operator who clears up after all faults.

Clients try again when the store is unavailable, with the same ids. What was acknowledged is written down: it must not
be lost. All their writes go through one journal.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from holdfast.authoring.signature import fingerprint
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.group_commit import Journal
from holdfast.ids import new_id
from holdfast.machines import TERMINAL_JOB_STATES, JobState
from holdfast.machines.keys import parse_key
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.store import Job, Store
from holdfast.store import commands as c
from holdfast.store.limits import Limits
from holdfast.store.schedule_commands import CreateSchedule, PauseSchedule, ResumeSchedule
from support.simulation.processes import START, Process
from support.simulation.programs import CONFIG, PLUGIN
from support.simulation.scenario import ActSpec, JobSpec

if TYPE_CHECKING:
    from support.simulation.world import Simulation

TRIES = 4
TRY_SECONDS = 1.0
ROUND_SECONDS = 3.0  # between two rounds of the operator
ROUNDS_MAX = 120
PROMPT_SECONDS = CONFIG.lease_seconds / 3 + 1.0  # by which a healthy worker has noticed what is due, without a notice
QUEUES = ("default", "q")


class Clients:
    """Does what the scenario says, and writes down what was acknowledged."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self.process = process
        self._simulation = simulation
        self._tasks: list[asyncio.Task[None]] = []
        self.jobs: dict[int, str] = {}  # ids, by place in the scenario
        self.acknowledged: dict[str, JobSpec] = {}
        self.maybe: dict[str, JobSpec] = {}  # no answer has come
        self.sent: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.delivered: Counter[str] = Counter()  # outcomes of signals
        self.cancelled: set[str] = set()
        self.keys: dict[tuple[str, str], str] = {}  # the job of an idempotency key
        self._numbers = 0
        self._due = 0  # writes of the scenario whose time has not come
        process.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._journal = Journal(cast("Store", self.process.connection))
        scenario = self._simulation.scenario
        for place, job in enumerate(scenario.jobs):
            self.jobs[place] = new_id()
            self._at(job.at, partial(self._start, place, job, self.jobs[place]))
        for act in scenario.acts:
            self._at(act.at, partial(self._act, act))

    def _at(self, at: float, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._due += 1
        self.process.loop.call_later(at, self._do, do)

    def _do(self, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._due -= 1
        self._tasks.append(self.process.loop.create_task(do()))

    async def _write(self, command: Any) -> Any:
        """Write a command, and try again while the store is unavailable. Return None if it stays so."""
        for _ in range(TRIES):
            try:
                return await self._journal.write(command)
            except StoreUnavailable:
                await asyncio.sleep(TRY_SECONDS)
            except HoldfastError as refusal:
                return refusal
        return None

    # Starts

    async def _start(self, place: int, spec: JobSpec, name: str) -> None:
        del place
        self.maybe[name] = spec
        now = START + self._simulation.scheduler.now
        args = {"ops": spec.ops} if spec.plan is None else {}
        plan = {"name": "graph", "nodes": spec.plan, "input": {}} if spec.plan is not None else None
        key = f"{spec.entry} {spec.key} {fingerprint([args, plan])}" if spec.key is not None else None
        answer = await self._write(
            c.Submit(
                job=name, plugin=PLUGIN, entry=spec.entry, args=args, queue=spec.queue, priority=spec.priority,
                due_at=now + spec.delay if spec.delay else None,
                deadline=now + spec.deadline if spec.deadline is not None else None,
                max_attempts=spec.max_attempts, idempotency_key=key, fingerprint=fingerprint([args, plan]),
                group=spec.group, plan=plan,
            )
        )  # fmt: skip
        if not isinstance(answer, c.Submitted):
            return
        self.acknowledged[answer.job] = spec
        if key is not None and self.keys.setdefault((spec.entry, key), answer.job) != answer.job:
            self._simulation.violated("R8", f"{key} named {self.keys[spec.entry, key]}, and now {answer.job}")

    # Other acts

    async def _act(self, act: ActSpec) -> None:
        name = self.jobs.get(act.job)
        if name is None:
            return
        if act.kind == "signal":
            await self.signal(name, act.key)
        elif act.kind == "repeat":
            spec = self._simulation.scenario.jobs[act.job]
            await self._start(act.job, spec, name if spec.key is None else new_id())
        else:
            self.cancelled |= {name} if act.kind == "cancel" else set()
            for command in self._commands(act, name):
                await self._write(command)

    def _commands(self, act: ActSpec, name: str) -> list[Any]:
        schedule = f"{PLUGIN}.every"
        match act.kind:
            case "cancel":
                return [c.Cancel(name, "no longer wanted", "client")]
            case "pause":
                return [c.Pause(name, "client")]
            case "resume":
                return [c.Resume(name, "client")]
            case "retry":
                return [c.Retry(name, "client", "try again")]
            case "limits":
                return [c.SetLimits(Limits(queue="q", **act.options), "client")]
            case "pause_queue" | "resume_queue":
                return [c.PauseQueue("q", act.kind == "pause_queue", "client")]
            case "schedule":
                queue = self._simulation.scenario.jobs[act.job].queue
                template = JobTemplate(plugin=PLUGIN, entry="tick", queue=queue, max_attempts=100)
                definition = define(**act.options)
                return [CreateSchedule(plugin=PLUGIN, name="every", definition=definition, template=template)]
            case _:
                return [PauseSchedule(schedule, None, "client"), ResumeSchedule(schedule, "client")]

    async def signal(self, name: str, key: str) -> None:
        """Send a signal with a payload of its own, twice."""
        self._numbers += 1
        payload = f"signal {self._numbers}"
        self.sent[name][key].append(payload)
        for _ in range(2):
            answer = await self._write(c.SendSignal(name, key, payload, payload))
            if isinstance(answer, c.SignalResult):
                self.delivered[answer.outcome] += 1

    # The operator

    def heal(self) -> None:
        """Let the operator clear up."""
        self._tasks.append(self.process.loop.create_task(self._heal()))

    async def _heal(self) -> None:
        simulation = self._simulation
        await asyncio.sleep(0.5)
        for _ in range(ROUNDS_MAX):
            self._check_prompt()
            left = [row for row in simulation.store.rows().values() if row.state not in TERMINAL_JOB_STATES]
            if not left and not self._writes_left() and not await self._clear_queues():
                await asyncio.sleep(1.0)  # for workers to settle
                simulation.scheduler.over = True
                return
            await self._clear_queues()
            for row in left:
                await self._clear(row)
            await asyncio.sleep(ROUND_SECONDS)
        ways = [f"{row.id} ({row.entry}) is {row.state.value}, {row.wait}" for row in left]
        simulation.violated("liveness", f"jobs have not ended after {ROUNDS_MAX} rounds: {'; '.join(ways)}")

    def _writes_left(self) -> bool:
        """Return whether a client has still to write, such as a start that may come after all jobs have ended."""
        healing = asyncio.current_task()
        return self._due > 0 or any(not task.done() for task in self._tasks if task is not healing)

    async def _clear_queues(self) -> bool:
        """End schedules, limits and pauses of queues. Return whether there were any."""
        found = False
        for row in await self.process.connection.schedules():
            if row.state.value == "active":
                found = True
                await self._write(PauseSchedule(row.id, None, "operator"))
        for queue in QUEUES:
            row = self._simulation.store.queue_limits().get(queue)
            if row is not None and row.limits != Limits(queue=queue):
                found = True
                await self._write(c.PauseQueue(queue, paused=False, actor="operator"))
                await self._write(c.SetLimits(Limits(queue=queue), "operator"))
        return found

    async def _clear(self, row: Job) -> None:
        """Do what a job waits for."""
        if row.pause:
            await self._write(c.Resume(row.id, "operator"))
        if row.wait is None:
            return
        if await self._has_unseen(row):
            return
        for place in row.wait.places():
            key = place.correlation_key or ""
            reserved = parse_key(key)
            if reserved is None:
                await self.signal(row.id, key)
            elif reserved.kind == "pause":
                await self._write(c.Resume(row.id, "operator"))
            elif reserved.kind == "doubt":
                await self._resolve(row, reserved.node)
            elif reserved.kind == "deploy":
                await self._write(c.Answer(row.id, reserved.node, "build", row.version, "operator", build="2"))

    async def _has_unseen(self, row: Job) -> bool:
        """Check that no signal waits in the inbox of a job that waits for it (E12)."""
        wait = row.wait
        if wait is None or row.wake_at is not None:
            return False
        for signal in await self.process.connection.inbox(row.id):
            now = self._simulation.store.rows()[row.id]
            if now.version == row.version and wait.place(signal.key) is not None:
                self._simulation.violated("E12", f"{row.id} waits for {signal.key}, which is in its inbox")
                return True
        return False

    async def _resolve(self, row: Job, node: str) -> None:
        """Answer truthfully whether a tool in doubt has acted."""
        act = next((act for act in self._simulation.acts if act.key == f"holdfast:{row.id}:{node}"), None)
        self._simulation.count("answers of the operator")
        if act is None:
            await self._write(c.Resolve(row.id, node, "not_done", None, "operator"))
        else:
            await self._write(c.Resolve(row.id, node, "done", f"acted {act.number}", "operator"))

    def _check_prompt(self) -> None:
        """Check that healthy workers have done what is due, with some time to notice it.

        A job may begin to wait after its wait's deadline, if it was queued for long: the deadline is recorded earlier.
        """
        simulation = self._simulation
        since = START + simulation.scheduler.now - PROMPT_SECONDS
        if since <= START + simulation.healed_at + PROMPT_SECONDS:
            return
        limits = simulation.store.queue_limits()
        for row in simulation.store.rows().values():
            if row.lease is not None and row.lease.until < since:
                simulation.violated("L5", f"the lease of {row.id} ended long ago: {row.lease}")
            if (
                row.wait is not None
                and row.wait.deadline is not None
                and max(row.wait.deadline, row.updated_at) < since
            ):
                simulation.violated("J12", f"the wait of {row.id} ended long ago: {row.wait}")
            overdue = row.lease is None and row.ends_by is not None and row.ends_by < since
            if overdue and row.state not in TERMINAL_JOB_STATES:
                simulation.violated("R7", f"the deadline of {row.id} passed long ago")
            if row.state is not JobState.QUEUED or max(row.due_at, row.updated_at) > since or row.queue in limits:
                continue
            if any(self._was_free(process, since, row.kept_for) for process in simulation.processes.values()):
                simulation.violated("S7", f"{row.id} could be claimed since {row.due_at - START:.3f} s")

    def _was_free(self, process: Process, since: float, build: str | None) -> bool:
        """Return whether a process could have claimed a job of a build at any moment since then."""
        worker = process.worker
        if worker is None or START + process.free_since > since:
            return False
        return worker.gate.busy < worker.gate.slots and build in {None, worker.card().build}
