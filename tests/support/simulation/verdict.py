"""The verdict on a simulation that has ended: what must hold when every job has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.client.verify import violations_of, wrong_schedules
from holdfast.machines import Event, JobState
from holdfast.schedules.calendar import calendar_of
from holdfast.schedules.schedule import stream_of
from holdfast.store import Job
from support.simulation.network import finished, finished_with_threads
from support.simulation.programs import acts_of, fails, mismatch
from support.simulation.scenario import JobSpec
from support.simulation.watch import final_fields

if TYPE_CHECKING:
    from support.simulation.world import Simulation

REPEATABLE = {"act_again"}  # tools that may act twice


def judge(simulation: Simulation) -> None:
    """Check a simulation at its end."""
    rows = simulation.store.rows()
    verify(simulation, rows)
    for stream, problems in finished(wrong_schedules(simulation.store)).items():
        simulation.violated("J6", f"{stream}: {problems}")
    for (name, number), fields in simulation.watch.ended.items():
        record = finished(simulation.store.record(name, number))
        if record is None or final_fields(record) != fields:
            simulation.violated("R5", f"run {number} of {name} has changed after its end: {fields} {record}")
    clients = simulation.clients
    for name in clients.acknowledged:
        if name not in rows:
            simulation.violated("P4", f"the start of {name} was acknowledged, and it does not exist")
    for name, row in rows.items():
        spec = clients.acknowledged.get(name) or clients.maybe.get(name)
        if spec is not None:
            _judge_job(simulation, row, spec)
    _judge_acts(simulation)
    _judge_schedules(simulation)
    for index, process in simulation.processes.items():
        worker = process.worker
        if worker is not None and (worker.running or worker.gate.busy):
            simulation.violated("L6", f"all jobs have ended, and process {index} still runs {list(worker.running)}")


def verify(simulation: Simulation, rows: Mapping[str, Job]) -> None:
    """Check the streams of jobs, and that their rows follow from them (J6)."""
    for name, row in rows.items():
        for violation in finished_with_threads(violations_of(simulation.store, row)):
            simulation.violated(violation.rule, f"{name}: {violation.message}")


def _judge_job(simulation: Simulation, row: Job, spec: JobSpec) -> None:
    events = finished(simulation.store.events(row.id))
    if events[0].payload["args"] != ({"ops": spec.ops} if spec.plan is None else {}):
        simulation.violated("E13", f"{row.id} has other arguments than it was started with")
    _judge_sleeps(simulation, row, events)
    _judge_timeouts(simulation, row, events)
    last = events[-1].payload
    simulation.count(f"jobs {row.course.status.value}")
    match row.state:
        case JobState.COMPLETED:
            _judge_result(simulation, row, spec, last.get("result"))
        case JobState.CANCELLED:
            if row.id not in simulation.clients.cancelled:
                simulation.violated("R6", f"{row.id} is cancelled, and no client asked for it")
        case _:
            reason = last.get("reason")
            poison = reason == "poison" and row.attempts >= spec.max_attempts
            ended = row.updated_at + simulation.clock_slack
            late = reason == "deadline" and row.ends_by is not None and ended >= row.ends_by
            if not (poison or late or fails(spec.ops)):
                simulation.violated("E10", f"{row.id} has failed: {last}")


def _judge_sleeps(simulation: Simulation, row: Job, events: list[Event]) -> None:
    """Check that time ended no sleep too early, by the store's clock."""
    due: dict[str, float] = {}
    claimed_at = 0.0
    for event in events:
        node = str(event.payload.get("node", ""))
        claimed_at = event.at if event.type == "job_running" else claimed_at
        if event.type == "value_recorded" and node.startswith("sleep:") and node.endswith(":until"):
            due[node.removesuffix(":until")] = until = event.payload["value"]
            named = node.split(":")[1].partition("#")[0]  # the duration, or the node of a plan
            if named[0].isdigit() and until < claimed_at + float(named) - simulation.clock_slack:
                simulation.violated("J12", f"{row.id}: {node} lasts {until - claimed_at:.3f} s at most")
        elif event.type == "wait_completed" and event.payload["outcome"] == "expired" and event.at < due.get(node, 0.0):
            simulation.violated("J12", f"{row.id}: {node} ended {due[node] - event.at:.3f} s too early")


def _judge_timeouts(simulation: Simulation, row: Job, events: list[Event]) -> None:
    """Check that a step timed out only if it took too long: by itself, or because its process was paused (L8)."""
    failed = [event.payload for event in events if event.type == "node_finished" and event.payload.get("reason")]
    for node, count in Counter(payload["node"] for payload in failed if payload["reason"] == "step timeout").items():
        if count > simulation.overran[f"holdfast:{row.id}:{node}"]:
            simulation.violated("L8", f"{row.id}: {node} timed out {count} times, and was too slow less often")


def _judge_result(simulation: Simulation, row: Job, spec: JobSpec, result: Any) -> None:
    sent = simulation.clients.sent[row.id]
    if spec.plan is not None:
        problem = _plan_mismatch(spec.plan, result, sent)
        expected = Counter(node["args"]["n"] for node in spec.plan if node.get("call") in {"act", "slow_act"})
        expected += Counter(node["args"]["ops"][0][1] for node in spec.plan if node["kind"] == "job")
    else:
        others = _sent_to_children(simulation)
        problem = mismatch(spec.ops, result, {key: [*sent[key], *others.get(key, ())] for key in [*sent, *others]})
        expected = acts_of(spec.ops)
    if problem is not None:
        simulation.violated("E13", f"the result of {row.id} is wrong: {problem}")
    if fails(spec.ops):
        simulation.violated("E10", f"{row.id} raises, and has succeeded")
    acted = Counter(act.number for act in simulation.acts)
    if missing := [number for number in expected if not acted[number]]:
        simulation.violated("E1", f"{row.id} has succeeded, and its tools {missing} have not acted")
    taken = Counter(part for part in _texts(result) if part.startswith("signal "))
    if twice := [payload for payload, count in taken.items() if count > 1]:
        simulation.violated("E12", f"{row.id} has got {twice} more than once")


def _sent_to_children(simulation: Simulation) -> dict[str, list[str]]:
    """Return what was sent to jobs that the scenario does not name, by key. Only children wait for such keys."""
    known = set(simulation.clients.jobs.values())
    found: dict[str, list[str]] = {}
    for name, keys in simulation.clients.sent.items():
        for key, payloads in keys.items() if name not in known else ():
            found.setdefault(key, []).extend(payloads)
    return found


def _plan_mismatch(nodes: list[dict[str, Any]], result: Any, sent: dict[str, list[str]]) -> str | None:
    """Compare the result of a plan: the results of all nodes that no other depends on."""
    needed = {other for node in nodes for other in node["after"]}
    ends = {node["id"]: node for node in nodes if node["id"] not in needed}
    if not isinstance(result, dict) or set(result) != set(ends):
        return f"{result!r} has not the nodes {sorted(ends)}"
    for name, node in ends.items():
        good = True
        match node["kind"]:
            case "call":
                number = node["args"]["n"]
                good = result[name] == (2 * number if node["call"] == "double" else f"acted {number}")
            case "job":
                good = result[name] == [f"acted {node['args']['ops'][0][1]}"]
            case "wait":
                good = result[name] in sent.get(node["key"], ())
            case _:
                pass
        if not good:
            return f"{node} returned {result[name]!r}"
    return None


def _texts(value: Any) -> list[str]:
    """Return all texts in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def _judge_acts(simulation: Simulation) -> None:
    """Check that no tool has acted twice for one external key (E1), nor in two children of one call (E15)."""
    retried = any(act.kind == "retry" for act in simulation.scenario.acts)  # a new run starts children again
    for number, count in Counter(act.number for act in simulation.acts if act.tool not in REPEATABLE).items():
        if count > 1 and number and not retried:
            simulation.violated("E15", f"operation {number} has acted {count} times")
    for (tool, key), count in Counter((act.tool, act.key) for act in simulation.acts).items():
        if count > 1 and tool not in REPEATABLE:
            simulation.violated("E1", f"{tool} has acted {count} times for {key}")


def _judge_schedules(simulation: Simulation) -> None:
    """Check that each tick of each schedule has one outcome, and each fired tick one run."""
    store, fired = simulation.store, list[str]()
    for row in finished(store.schedules()):
        stream = finished(store.events(stream_of(row.id)))
        calendar, outcomes = calendar_of(row.definition), Counter[float]()
        for event in stream:
            if event.type not in {"fired", "skipped", "missed"}:
                continue
            payload = event.payload
            simulation.count(f"ticks {event.type}")
            one = "nominal" in payload
            outcomes.update(
                [payload["nominal"]] if one else [tick.at for tick in calendar.between(payload["from"], payload["to"])]
            )
            fired += [payload["job"]] if event.type == "fired" else []
        if twice := [at for at, count in outcomes.items() if count > 1]:
            simulation.violated("schedule", f"ticks {twice} of {row.id} have more than one outcome")
        if row.next is not None:
            expected = {tick.at for tick in calendar.between(stream[0].payload["next"], row.next - 0.5)}
            missing = expected - set(outcomes) - {tick.at for tick in row.buffer}
            if missing:
                simulation.violated("schedule", f"ticks {sorted(missing)} of {row.id} have no outcome")
    started = [name for name, job in store.rows().items() if job.schedule is not None]
    if Counter(started) != Counter(fired):
        simulation.violated("schedule", f"ticks have fired {fired}, and schedules have started {started}")
