"""Scenarios: everything that a seed decides before a simulation begins, as data that can be written down and shrunk.

A seed draws which kinds of jobs, acts and faults it uses at all, and then how many of each. So a seed has few kinds of
faults, and many of them. Positions of jobs and processes are numbers, and those that do not exist are ignored.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from support.simulation.programs import BUILDS, Op

LONG_NUMBER = 100_000  # of the call that a partition hits; others count from 1
CHAOS_SECONDS = 14.0  # for which faults and acts of clients happen; then everything is healed

Draw = random.Random


class ProcessSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker process: its build, its slots, and by how many seconds the clock of its host is wrong."""

    build: str = "1"
    slots: int = 4
    skew: float = 0.0


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that a client starts."""

    at: float
    entry: str
    ops: list[Op] = []
    queue: str = "default"
    priority: int = 0
    delay: float = 0.0
    deadline: float | None = None
    key: str | None = None
    group: str | None = None
    max_attempts: int = 100
    plan: list[dict[str, Any]] | None = None


class ActSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a client does: a signal, a cancel, limits of a queue and so on."""

    at: float
    kind: str
    job: int = 0
    key: str = ""
    options: dict[str, Any] = {}


class FaultSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that goes wrong: at a time, or if `call` is given, at that call of a process to the store.

    With `beats`, it is the number of a heartbeat with leases, and other calls are not counted. The heartbeats after it
    have the same fault.
    """

    kind: str
    process: int = 0
    at: float = 0.0
    call: int | None = None
    seconds: float = 0.0
    build: str | None = None
    beats: bool = False


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scenario."""

    seed: int
    burst: int = 1
    latency: float = 0.0
    notice_loss: float = 0.0
    notice_delay: float = 0.0
    supervised: bool = False
    processes: list[ProcessSpec] = []
    jobs: list[JobSpec] = []
    acts: list[ActSpec] = []
    faults: list[FaultSpec] = []


def drawn(seed: int) -> Scenario:
    """Draw the scenario of a seed."""
    draw = random.Random(seed)
    builds = list(BUILDS) if draw.random() < 0.3 else [draw.choice(BUILDS)]
    skewed = draw.random() < 0.3
    processes = [
        ProcessSpec(
            build=draw.choice(builds),
            slots=draw.choice([1, 2, 2, 4]),
            skew=round(draw.uniform(-300, 300), 3) if skewed else 0.0,
        )
        for _ in range(draw.choice([1, 1, 2, 2, 3]))
    ]
    jobs = _jobs(draw, builds)
    acts, faults = _acts(draw, jobs), _faults(draw, len(processes), builds)
    if any(fault.kind == "partition" or fault.beats for fault in faults):  # code that runs when the lease ends
        place = next((place for place, job in enumerate(jobs) if job.plan is None), None)
        if place is not None:
            ops = [["slow", LONG_NUMBER, 12.0], *jobs[place].ops]
            jobs[place] = msgspec.structs.replace(jobs[place], ops=ops)
    return Scenario(
        seed=seed,
        burst=draw.choice([1, 3, 20]),
        latency=draw.choice([0.0, 0.002, 0.002, 0.05, 0.4]),
        notice_loss=draw.choice([0.0, 0.0, 0.0, 0.3, 1.0]),
        notice_delay=draw.choice([0.0, 0.0, 0.0, 2.0]),
        supervised=draw.random() < 0.3,
        processes=processes,
        jobs=jobs,
        acts=acts,
        faults=faults,
    )


# Jobs


def _jobs(draw: Draw, builds: list[str]) -> list[JobSpec]:
    queues = draw.choice([["default"], ["default", "q"], ["q"]])
    entries = ["program"] * 4 + ["stubborn", "graph"] + (["pinned"] * 2 if len(builds) > 1 else [])
    kinds = draw.sample(LEAVES, draw.randint(1, 4))
    grouped, timed = draw.random() < 0.3, draw.random() < 0.25
    jobs: list[JobSpec] = []
    numbers = iter(range(1, 10_000))
    at = 0.0
    for _ in range(draw.choice([1, 2, 2, 3, 4, 6])):
        at += draw.choice([0.0, 0.0, 0.1, 1.0, 3.0])
        entry = draw.choice(entries)
        is_plan = entry == "graph"
        ops = [] if is_plan else _ops(draw, draw.randint(1, 5), kinds, lambda: next(numbers))
        if entry == "stubborn":
            ops.insert(draw.randrange(len(ops) + 1), _stumble(draw, kinds, lambda: next(numbers)))
        if entry == "program" and draw.random() < 0.08:
            ops.append(["raise"])
        jobs.append(
            JobSpec(
                at=at,
                entry=entry,
                ops=ops,
                queue=draw.choice(queues),
                priority=draw.choice([0, 0, 1, -1]),
                delay=draw.choice([0.0, 0.0, 0.0, 1.5, 7.0]) if timed else 0.0,
                deadline=draw.choice([None, 3.0, 9.0, 15.0]) if timed else None,
                key=f"key {draw.randrange(3)}" if draw.random() < 0.1 else None,
                group=draw.choice(["a", "b"]) if grouped else None,
                max_attempts=draw.choice([100, 100, 1, 2]),
                plan=_plan(draw, lambda: next(numbers)) if is_plan else None,
            )
        )
    return jobs


LEAVES = (
    "double", "double", "flaky", "slow", "limited", "act", "act", "act_again", "act_checked", "slow_act", "wait",
    "wait", "sleep", "child", "gather", "race", "value", "report",
)  # fmt: skip


def _ops(draw: Draw, count: int, kinds: list[str], number: Callable[[], int], depth: int = 0) -> list[Op]:
    ops: list[Op] = []
    for _ in range(count):
        kind = draw.choice([*kinds, *kinds, "double", "act"])
        if kind in {"child", "gather", "race"}:
            ops.append(_branches(draw, kind, kinds, number, depth))
        elif kind == "flaky":
            ops.append([kind, number(), draw.randint(1, 3)])
        elif kind in {"slow", "slow_act"}:
            ops.append([kind, number(), draw.choice([0.1, 1.0, 4.0, 12.0])])
        elif kind == "limited":
            ops.append([kind, number(), draw.choice([0.5, 5.0])])
        elif kind == "wait":
            timeout = draw.choice([None, None, 2.0, 8.0])
            ops.append([kind, f"{'c' if depth else 'k'}{draw.randrange(2)}", timeout if not depth else 3.0])
        elif kind == "sleep":
            ops.append([kind, draw.choice([0.05, 1.0, 3.0, 10.0])])
        elif kind == "value":
            ops.append([kind])
        else:
            ops.append([kind, number()] if kind != "report" else [kind, "here"])
    return ops


def _branches(draw: Draw, kind: str, kinds: list[str], number: Callable[[], int], depth: int) -> Op:
    if depth >= 2:
        return ["double", number()]
    if kind == "child":
        ops = _ops(draw, draw.randint(1, 3), kinds, number, depth + 2)
        return [kind, [*ops, ["raise"]] if draw.random() < 0.1 else ops]
    inner = [each for each in kinds if kind != "race" or each not in {"child", "act", "slow_act"}]
    parts = [_ops(draw, draw.randint(1, 2), inner, number, depth + 1) for _ in range(draw.choice([2, 3]))]
    if kind == "race":  # a tool that was cut off may have acted or not
        parts = [[op if not op[0].endswith("act") else ["double", op[1]] for op in part] for part in parts]
    return [kind, parts]


def _stumble(draw: Draw, kinds: list[str], number: Callable[[], int]) -> Op:
    """Draw an operation that raises in the job's own code. It may cut off calls, which a retry makes again."""
    op: Op = ["stumble", number(), draw.randint(1, 3)]
    if draw.random() < 0.5:
        return op
    rest = [["slow", number(), draw.choice([0.1, 1.0])], ["sleep", 1.0]]
    return ["gather", [[["double", number()], op], rest, _ops(draw, 1, kinds, number, 1)]]


def _plan(draw: Draw, number: Callable[[], int]) -> list[dict[str, Any]]:
    """Draw the nodes of a plan. Each may depend on those before it."""
    nodes: list[dict[str, Any]] = []
    for place in range(draw.randint(2, 5)):
        name = f"n{place}"
        after = draw.sample([node["id"] for node in nodes], min(len(nodes), draw.randrange(3)))
        kind = draw.choice(["double", "act", "slow_act", "sleep", "wait", "child"])
        node: dict[str, Any] = {"id": name, "after": after}
        match kind:
            case "double" | "act":
                node |= {"kind": "call", "call": kind, "args": {"n": number()}}
            case "slow_act":
                node |= {"kind": "call", "call": kind, "args": {"n": number(), "seconds": draw.choice([0.1, 5.0])}}
            case "sleep":
                node |= {"kind": "sleep", "duration": draw.choice([0.1, 2.0])}
            case "wait":
                node |= {"kind": "wait", "key": f"k{draw.randrange(2)}"}
            case _:
                node |= {"kind": "job", "job": "child", "args": {"ops": [["act", number()]]}}
        nodes.append(node)
    return nodes


# What clients do


def _acts(draw: Draw, jobs: list[JobSpec]) -> list[ActSpec]:
    acts: list[ActSpec] = []
    if draw.random() < 0.8:  # signals for what they wait for, early, late and twice
        for place, job in enumerate(jobs):
            keys = [op[1] for op in job.ops if op[0] == "wait"]
            keys += [node["key"] for node in job.plan or () if node["kind"] == "wait"]
            acts += [
                ActSpec(at=draw.uniform(0, 12), kind="signal", job=place, key=key)
                for key in keys
                if draw.random() < 0.8
            ]
    if draw.random() < 0.25:
        acts += [
            ActSpec(at=draw.uniform(0, 13), kind="signal", job=draw.randrange(len(jobs)), key=f"k{draw.randrange(2)}")
            for _ in range(3)
        ]
    for kind, chance, most in (
        ("cancel", 0.3, 3), ("pause", 0.2, 3), ("resume", 0.15, 3), ("retry", 0.15, 3), ("repeat", 0.2, 3),
        ("limits", 0.4, 3), ("pause_queue", 0.1, 2), ("resume_queue", 0.1, 2), ("schedule", 0.15, 1),
        ("pause_schedule", 0.05, 1),
    ):  # fmt: skip
        if draw.random() < chance:
            acts += [_act(draw, kind, len(jobs)) for _ in range(draw.randint(1, most))]
    return acts


def _act(draw: Draw, kind: str, jobs: int) -> ActSpec:
    options: dict[str, Any] = {}
    if kind == "limits":
        options = draw.choice(
            [
                {"concurrency": 1}, {"concurrency": 2}, {"concurrency": 1, "group_concurrency": 1},
                {"group_concurrency": 1}, {"rate": 1.0, "rate_seconds": 2.0, "burst": 1}, {"rate": 2.0, "burst": 2},
                {"depth": 2}, {},
            ]
        )  # fmt: skip
    elif kind == "schedule":
        options = {
            "every": draw.choice([2, 3, 5]),
            "overlap": draw.choice(["skip", "allow", "buffer_one", "cancel_other", "buffer_all"]),
            "catch_up": draw.choice(["none", "last", "all"]),
        }
    at = draw.uniform(0, 4) if kind in {"limits", "schedule"} else draw.uniform(0, 13)
    return ActSpec(at=at, kind=kind, job=draw.randrange(jobs), options=options)


# What goes wrong


FAULTS = (
    "refused", "applied", "late", "slow", "crash before", "crash after", "beat", "crash", "pause", "outage",
    "partition", "deploy",
)  # fmt: skip


def _faults(draw: Draw, processes: int, builds: list[str]) -> list[FaultSpec]:
    if draw.random() < 0.1:
        return []
    kinds = draw.sample(FAULTS, draw.randint(1, 3))
    faults = [_fault(draw, draw.choice(kinds), processes, builds) for _ in range(draw.choice([1, 2, 3, 5, 8]))]
    late = next((fault.process for fault in faults if fault.beats), None)
    if late is not None:  # only heartbeats get through, and they are late
        faults.append(FaultSpec(kind="mute", process=late, at=draw.uniform(0, 5), seconds=9.0))
    return faults


def _fault(draw: Draw, kind: str, processes: int, builds: list[str]) -> FaultSpec:
    place = draw.randrange(processes)
    if kind in {"refused", "applied", "late", "slow", "crash before", "crash after"}:
        seconds = draw.choice([0.5, 3.0, 5.5, 7.0, 14.0])
        return FaultSpec(kind=kind, process=place, call=1 + int(draw.random() ** 2 * 120), seconds=seconds)
    if kind == "beat":
        kind, seconds = draw.choice(["refused", "applied", "late", "slow"]), round(draw.uniform(4, 8), 3)
        return FaultSpec(kind=kind, process=place, call=draw.choice([1, 1, 2]), seconds=seconds, beats=True)
    at = round(draw.uniform(0, 12), 3)
    build = draw.choice(builds) if kind == "deploy" else None
    seconds = draw.choice([0.3, 2.0, 7.0, 12.0])
    if kind == "partition":  # longer than a lease, and early, so that a long call is under way when the lease ends
        at, seconds = at * 0.4, 12.0
    return FaultSpec(kind=kind, process=place, at=at, seconds=seconds, build=build)
