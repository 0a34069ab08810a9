"""Shrinking: the smallest scenario that still breaks the same rule, found by leaving out parts and trying again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from support.simulation.scenario import JobSpec, ProcessSpec, Scenario
from support.simulation.world import simulate

TRIES_MAX = 600  # simulations that one search may take


def broken_rules(scenario: Scenario) -> set[str]:
    """Return the rules that a scenario breaks."""
    return {violation.rule for violation in simulate(scenario).violations}


def shrink(
    scenario: Scenario, rules: Callable[[Scenario], set[str]] = broken_rules, tries_max: int = TRIES_MAX
) -> Scenario:
    """Return a smaller scenario that breaks one of the rules that this one breaks.

    Args:
        scenario: a scenario that breaks a rule.
        rules: returns the rules that a scenario breaks.
        tries_max: how many scenarios to try at most.
    """
    wanted, tries = rules(scenario), 0
    while True:
        for smaller in _smaller(scenario):
            tries += 1
            if tries > tries_max:
                return scenario
            if rules(smaller) & wanted:
                scenario = smaller
                break
        else:
            return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Return scenarios that are simpler by one part, the largest parts first."""
    change: Callable[..., Scenario] = lambda **fields: msgspec.structs.replace(scenario, **fields)  # noqa: E731 - short
    for faults in _without(scenario.faults):
        yield change(faults=faults)
    for acts in _without(scenario.acts):
        yield change(acts=acts)
    for jobs in _without_jobs(scenario.jobs):
        yield change(jobs=jobs)
    for place in reversed(range(1, len(scenario.processes))):
        yield change(processes=[*scenario.processes[:place], *scenario.processes[place + 1 :]])
    yield from _plainer(scenario)
    for place, job in enumerate(scenario.jobs):
        for simpler in _simpler_jobs(job):
            yield change(jobs=[*scenario.jobs[:place], simpler, *scenario.jobs[place + 1 :]])


def _plainer(scenario: Scenario) -> Iterator[Scenario]:
    """Return the scenario without each thing that makes it less plain."""
    plain = {"latency": 0.0, "notice_loss": 0.0, "notice_delay": 0.0, "supervised": False, "burst": 1}
    for name, value in plain.items():
        if getattr(scenario, name) != value:
            yield msgspec.structs.replace(scenario, **{name: value})
    for place, process in enumerate(scenario.processes):
        if process.skew:
            exact = ProcessSpec(build=process.build, slots=process.slots)
            processes = [*scenario.processes[:place], exact, *scenario.processes[place + 1 :]]
            yield msgspec.structs.replace(scenario, processes=processes)


def _without(parts: Sequence[Any]) -> Iterator[list[Any]]:
    """Return the list without its halves, then without each part."""
    half = len(parts) // 2
    if half:
        yield list(parts[half:])
        yield list(parts[:half])
    for place in range(len(parts)):
        yield [*parts[:place], *parts[place + 1 :]]


def _without_jobs(jobs: Sequence[JobSpec]) -> Iterator[list[JobSpec]]:
    """Return the jobs without each. A job that others come after is emptied, because acts name jobs by their places."""
    if len(jobs) > 1:
        yield list(jobs[:-1])
    for place, job in enumerate(jobs):
        if job.plan is not None or any(op[0] != "double" for op in job.ops):
            yield [*jobs[:place], JobSpec(at=job.at, entry="program", ops=[["double", 1]]), *jobs[place + 1 :]]


def _simpler_jobs(job: JobSpec) -> Iterator[JobSpec]:
    for ops in _without(job.ops):
        yield msgspec.structs.replace(job, ops=ops)
    for place, op in enumerate(job.ops):
        if op[0] in {"gather", "race"}:
            for parts in _without(op[1]):
                if parts:
                    yield msgspec.structs.replace(job, ops=[*job.ops[:place], [op[0], parts], *job.ops[place + 1 :]])
        elif op[0] == "child":
            for ops in _without(op[1]):
                yield msgspec.structs.replace(job, ops=[*job.ops[:place], ["child", ops], *job.ops[place + 1 :]])
    for name, value in (("delay", 0.0), ("deadline", None), ("group", None), ("key", None), ("priority", 0)):
        if getattr(job, name) != value:
            yield msgspec.structs.replace(job, **{name: value})
