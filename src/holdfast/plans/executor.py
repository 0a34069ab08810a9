"""The run of one plan. It is job code like any other: its conductor makes the calls, waits and child jobs.

The executor starts every node whose dependencies have ended, up to the plan's limit of concurrent calls. Waits, sleeps
and child jobs do not count against the limit. Nor does a call in doubt, or one whose retry is far off. The engine
suspends the job when only such nodes are left.

A node that fails stops the nodes that depend on it, and no others. At the end the job fails, and the error lists every
failed node. With `fail_fast`, the executor starts nothing after the first failure. It cancels waits, and lets running
calls end.

The executor records nothing that the engine would not record for ordinary job code. A call is identified by the id of
its node. Its arguments are recorded as the plan has them. A replay finds recorded results in any order, but applies
extensions of the plan in their recorded order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.authoring.conductor import Conductor, PlanPlace, current, place
from holdfast.durations import seconds
from holdfast.errors import HoldfastError, InvalidPlan, PlanFailed, StepFailed, WaitTimeout
from holdfast.machines.keys import EXTENSION
from holdfast.plans.checker import Names
from holdfast.plans.extensions import ExtensionQueue, refusal, refusal_text, with_extension
from holdfast.plans.graph import LISTS, Graph, Missing, fill_references, get_path
from holdfast.plans.model import CallNode, ChoiceNode, JobNode, MapNode, Node, Plan, SleepNode, WaitNode, extension_of
from holdfast.plans.node_calls import NodeFunctions
from holdfast.plans.node_history import label

DONE, FAILED, SKIPPED = "done", "failed", "skipped"
STOPPED = "run:stopped"  # the value recorded when a failure ends a plan early


async def run(plan: Plan, inputs: Mapping[str, Any], names: Names) -> Any:
    """Run a checked plan and return its output.

    Raises:
        PlanFailed: nodes failed. The error lists all of them.
    """
    return await _PlanRun(plan, inputs, names, current()).run()


class _Unit:
    """A unit of work that can be started: a node, or one item of a map."""

    __slots__ = ("index", "item", "left", "node")

    def __init__(self, node: Node, index: int | None = None, item: Any = None) -> None:
        self.left = False  # whether it has freed its slot
        self.node = node
        self.index = index
        self.item = item

    @property
    def name(self) -> str:
        """The node's id, with the index of a map's item."""
        return self.node.id if self.index is None else f"{self.node.id}[{self.index}]"


class _Map:
    """A map in progress: items not yet started, results so far, and the number of unfinished items."""

    def __init__(self, node: MapNode, items: list[Any]) -> None:
        self.waiting = deque(_Unit(node, index, item) for index, item in enumerate(items))
        self.results: list[Any] = [None] * len(items)
        self.open = len(items)
        self.failed = False


class _PlanRun:
    def __init__(self, plan: Plan, inputs: Mapping[str, Any], names: Names, conductor: Conductor) -> None:
        self._plan = plan
        self._names = names
        self._conductor = conductor
        self._functions = NodeFunctions(names)
        self._graph = Graph(plan.nodes)
        self._left = {name: len(needs) for name, needs in self._graph.needs.items()}
        self._ended: dict[str, str] = {}
        self._stopped: list[str] | None = conductor.known(
            STOPPED
        )  # nodes that had started when a failure ended the plan
        self._begun: set[str] = set()
        # Whether any node failed or was skipped. Until then, every node that waits for no other starts.
        self._rough = self._stopped is not None
        defaults = {name: field.default for name, field in plan.input.items() if field.default is not msgspec.UNSET}
        self._results: dict[str, Any] = {"input": {**defaults, **inputs}}
        self._failures: list[tuple[str, Exception]] = []
        self._ready: deque[_Unit] = deque()
        self._maps: dict[str, _Map] = {}
        self._extensions = ExtensionQueue(conductor)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Task[None]] = set()  # the tasks among them that only wait
        self._runners = 0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Any:
        try:
            free = [name for name, left in self._left.items() if not left]
            while free:
                self._settle(free)
                self._go_on()
                if self._tasks:
                    self._over = asyncio.get_running_loop().create_future()
                    await self._over
                self._extensions.drop_missing()  # extensions of nodes that a failure stopped
                free = self._taken()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        if self._failures:
            raise self._failure()
        return self._given()

    # Which nodes start next

    def _settle(self, names: list[str]) -> None:
        """Start these nodes, which wait for no other, or end them unstarted. Repeat for each node that this frees."""
        self._begin_all(names)
        while self._extensions.waiting and (more := self._taken()):  # a node just failed for which they were held back
            self._begin_all(more)

    def _begin_all(self, names: list[str]) -> None:
        for name in names:  # the loop appends to it
            fate = self._fate(name) if self._rough or name in self._graph.guards else None
            if fate is not None:
                self._ended[name] = fate
                self._rough = True
                names += self._freed(name)
                continue
            node = self._graph.nodes[name]
            if type(node) is CallNode:  # most are
                self._ready.append(_Unit(node))
            else:
                names += self._begin(node)

    def _freed(self, name: str) -> list[str]:
        """Return the nodes that waited only for this node, which has ended."""
        freed = []
        for other in self._graph.feeds[name]:
            self._left[other] -= 1
            if not self._left[other]:
                freed.append(other)
        return freed

    def _fate(self, name: str) -> str | None:
        """Return the state in which a node ends unstarted; None if it must start."""
        if self._is_over(name):
            return FAILED
        ends = {self._ended[other] for other in self._graph.needs[name]}
        if FAILED in ends:
            return FAILED
        for choice in self._graph.guards.get(name, ()):
            if self._ended[choice] == SKIPPED or name not in self._results[choice]:
                return SKIPPED
        if SKIPPED in ends and (self._graph.nodes[name].needs == "all" or DONE not in ends):
            return SKIPPED
        return None

    def _is_over(self, name: str) -> bool:
        """Return whether a failure keeps a node from starting. Nodes that had started may end, also after a crash."""
        if self._stopped and name not in self._stopped:
            return True
        failed = bool(self._failures) and self._plan.policy == "fail_fast"
        return failed and (not self._stopped or _waits(self._graph.nodes[name]))

    def _begin(self, node: Node) -> list[str]:
        """Start a node. Return the nodes that it frees at once, because it ended immediately."""
        self._begun.add(node.id)
        try:
            if isinstance(node, ChoiceNode):
                chosen = node.chosen(fill_references(node.value, self._look_up))
                return self._end(node.id, self._conductor.recorded(f"choice:{node.id}", lambda: list(chosen)))
            if isinstance(node, MapNode):
                items = _listed(fill_references(node.over, self._look_up))
                if not items:
                    return self._end(node.id, [])
                running = self._maps[node.id] = _Map(node, items)
                for _ in range(min(node.limit or len(items), len(items))):
                    self._offer(running.waiting.popleft())
                return []
        except Missing as error:
            self._failed(node.id, StepFailed(node.id, "Missing", str(error)))
            return self._lost(node.id)
        self._offer(_Unit(node))
        return []

    def _end(self, name: str, result: Any) -> list[str]:
        self._ended[name] = DONE
        self._results[name] = result
        return self._freed(name)

    def _failed(self, name: str, error: Exception) -> None:
        """Keep a failure. With `fail_fast`, start nothing more and cancel every wait."""
        self._failures.append((name, error))
        self._rough = True
        if self._plan.policy == "fail_fast":
            self._ready = deque(unit for unit in self._ready if not self._is_over(unit.node.id))
            self._conductor.recorded(STOPPED, lambda: sorted(self._begun))  # a replay knows of it from its start
            for waiter in self._waiters:
                waiter.cancel()

    def _lost(self, name: str) -> list[str]:
        self._ended[name] = FAILED
        self._rough = True
        return self._freed(name)

    # Tasks

    def _offer(self, unit: _Unit) -> None:
        """Start a wait at once, because it takes no slot. Queue a call until a slot is free."""
        if _waits(unit.node):
            self._waiters.add(self._spawn(self._wait(unit)))
        else:
            self._ready.append(unit)

    def _go_on(self) -> None:
        """Start calls until the limit is reached."""
        while self._ready and self._runners < self._plan.limit:
            self._runners += 1
            self._spawn(self._work(self._ready.popleft()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiters.discard(task)
        error = task.exception() if not task.cancelled() else None
        if self._over.done():
            return
        if error is not None:
            self._over.set_exception(error)
        elif not self._tasks:
            self._over.set_result(None)

    async def _work(self, unit: _Unit) -> None:
        """Make queued calls one after the other until none is left. A chain of nodes is one task."""
        while True:
            await self._one(unit)
            if unit.left:
                self._go_on()
                return
            if not self._ready:
                break
            unit = self._ready.popleft()
            self._go_on()
        self._runners -= 1

    def _leave(self, unit: _Unit) -> None:
        """Free the slot of a call that waits for another attempt, and its slot among the items of its map."""
        if unit.left:
            return
        unit.left = True
        self._runners -= 1
        if unit.index is not None:
            self._next_item(self._maps[unit.node.id])
        self._go_on()

    def _next_item(self, running: _Map) -> None:
        if running.waiting and not (self._failures and self._plan.policy == "fail_fast"):
            self._offer(running.waiting.popleft())

    async def _wait(self, unit: _Unit) -> None:
        """Run one wait, then start the calls that depended on it."""
        await self._one(unit)
        self._go_on()

    async def _one(self, unit: _Unit) -> None:
        """Run one unit, then start the nodes that it frees."""
        result, failed = None, False
        self._begun.add(unit.node.id)
        try:
            node = unit.node
            if type(node) is CallNode:  # most are
                place.set(PlanPlace(node.id, node.args, partial(self._leave, unit)))
                args = fill_references(node.args, self._look_up)
                result = await self._conductor.call(self._functions.call(node), (), args)
            else:
                result = await self._act(unit)
        except (HoldfastError, Missing) as error:
            failed = True
            self._failed(unit.name, _node_failure(unit, error))
        if unit.index is not None:
            freed = self._item(unit, result, failed=failed)
        else:
            freed = self._lost(unit.name) if failed else self._extended(unit, result)
        self._settle(freed)

    def _item(self, unit: _Unit, result: Any, *, failed: bool) -> list[str]:
        """Record the end of a map's item. Return the nodes that the map frees, if this item was the last."""
        running = self._maps[unit.node.id]
        running.results[unit.index or 0] = result
        running.open -= 1
        running.failed = running.failed or failed
        if not unit.left:
            self._next_item(running)
        if running.open:
            return []
        del self._maps[unit.node.id]
        return self._lost(unit.node.id) if running.failed else self._end(unit.node.id, running.results)

    async def _act(self, unit: _Unit) -> Any:
        node = unit.node
        look_up = partial(self._look_up_in, unit) if unit.index is not None else self._look_up
        match node:
            case MapNode(call=str()):
                place.set(PlanPlace(unit.name, node.args, partial(self._leave, unit)))
                result = await self._conductor.call(self._functions.call(node), (), fill_references(node.args, look_up))
                if extension_of(result) is not None:
                    message = "an item of a map cannot extend the plan: extend it in another node"
                    raise StepFailed(unit.name, "InvalidPlan", message, label(node, unit.index))
                return result
            case JobNode() | MapNode():
                place.set(PlanPlace(unit.name, node.args))
                return await self._conductor.child(self._functions.job(node), (), fill_references(node.args, look_up))
            case WaitNode():
                place.set(PlanPlace(unit.name, {}))
                timeout = seconds(node.timeout) if node.timeout is not None else None
                return await self._conductor.wait(node.key or node.id, timeout, node.type)
            case SleepNode():
                place.set(PlanPlace(unit.name, {}))
                await self._conductor.sleep(_seconds(fill_references(node.duration, look_up)))
                return None
            case _:
                raise AssertionError("a choice is made where it stands")

    # Values

    def _look_up(self, ref: str) -> Any:
        name, _, path = ref.partition(".")
        if self._ended.get(name) == SKIPPED:
            return None
        try:
            return get_path(self._results[name], path)
        except Missing as error:
            raise Missing(f"{ref:.100}: {error}") from None

    def _look_up_in(self, unit: _Unit, ref: str) -> Any:
        name, _, path = ref.partition(".")
        if name == "index":
            return unit.index
        return get_path(unit.item, path) if name == "item" else self._look_up(ref)

    def _extended(self, unit: _Unit, result: Any) -> list[str]:
        """Keep a node's result. If it extends the plan, add the nodes."""
        name = unit.node.id
        more = extension_of(result) if type(unit.node) is CallNode else None  # a signal's payload is never a plan
        if more is None:
            return self._end(name, result)
        self._extensions.add(name, more)
        return self._taken()

    def _comes(self, name: str) -> bool:
        """Return whether a node with a recorded extension may still return it: it exists and has not ended."""
        return name in self._graph.nodes and name not in self._ended

    def _taken(self) -> list[str]:
        """Apply the extensions that are due, in order, or fail their nodes. Return the nodes that can start now."""
        freed = []
        while (extension := self._extensions.take(self._comes)) is not None:
            name, more = extension
            make = partial(refusal, self._plan, more, name, self._names)
            refused: str | None = self._conductor.recorded(f"{EXTENSION}{name}", make)
            wider = self._plan
            try:
                wider = with_extension(self._plan, Plan.from_dict(more), name, self._left) if refused is None else wider
            except InvalidPlan as error:
                refused = refusal_text(error)
            if refused is not None:
                self._failed(name, StepFailed(name, "InvalidPlan", refused, label(self._graph.nodes[name])))
                freed += self._lost(name)
                continue
            new = wider.nodes[len(self._plan.nodes) :]
            self._plan = wider
            self._graph.add(new)
            for node in new:
                self._left[node.id] = sum(other not in self._ended for other in self._graph.needs[node.id])
            freed += self._end(name, None)
        return freed

    def _given(self) -> Any:
        """Return the plan's output."""
        if not isinstance(self._plan.output, msgspec.UnsetType):
            return fill_references(self._plan.output, self._look_up)
        last = [name for name in self._graph.nodes if not self._graph.feeds.get(name)]
        return {name: self._results[name] for name in last if self._ended[name] == DONE}

    def _failure(self) -> PlanFailed:
        listed = "; ".join(f"{name}: {error}" for name, error in self._failures)
        failed_nodes = {
            name.partition("[")[0] for name, _ in self._failures
        }  # several items of a map count as one node
        count = f"{len(failed_nodes)} of {len(self._graph.nodes)} nodes"
        failed = PlanFailed(self._plan.name, count, listed)
        failed.__cause__ = ExceptionGroup("nodes of the plan", [error for _, error in self._failures])
        return failed


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, LISTS):
        raise Missing(f"the items of a map must be a list, got {value!r:.60}")
    return list(value)


def _seconds(duration: Any) -> float:
    try:
        return seconds(duration)
    except (TypeError, ValueError) as error:
        raise Missing(str(error)) from error


def _waits(node: Node) -> bool:
    """Return whether a node takes no slot among the calls."""
    return isinstance(node, (WaitNode, SleepNode, JobNode)) or (isinstance(node, MapNode) and node.job is not None)


def _node_failure(unit: _Unit, error: Exception) -> Exception:
    """Return the failure as an error that names the node, so that an operator's retry runs that node again."""
    if isinstance(error, StepFailed):
        return error
    node = f"wait:{unit.name}" if isinstance(error, WaitTimeout) else ""
    return StepFailed(unit.name, type(error).__name__, str(error), node)
