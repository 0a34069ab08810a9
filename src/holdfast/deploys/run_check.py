"""The check of one run: its recorded history against the code as it is now. Nothing is called (SPEC E8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.client.app import App
from holdfast.client.verify import check_replay
from holdfast.engine.replay_report import Verdict
from holdfast.errors import UnknownEntry
from holdfast.machines import TERMINAL_JOB_STATES, Event, Fold
from holdfast.plans.model import Plan
from holdfast.plans.node_history import NodeHistory
from holdfast.store.result_blobs import FIELD, ReadPiece, with_results


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of a run has found.

    Attributes:
        run: the job of the run.
        entry: its app and name, as ``plugin.entry``.
        live: whether it has not ended.
        verdict: what was found, in one word.
        reasons: why the code does not fit; empty if it does.
        line: the line of the code, as file:line, that makes the call at which the run stops, or would continue.
        unused: recorded calls that the code no longer makes. A new call of the same name would stop the run later.
        signals: waits that a signal has ended, and that the code has not made when it waits for something else or ends.
        unreached: number of recorded calls that the code may make after its next new call, which is not made here.
        next: calls with which the run would continue.
        build: the build that took the run last.
        aliases: earlier names of functions under which the run or its calls were recorded.
    """

    run: str
    entry: str
    live: bool
    verdict: Verdict
    reasons: list[str] = []
    line: str | None = None
    unused: list[str] = []
    signals: list[str] = []
    unreached: int = 0
    next: list[str] = []
    build: str | None = None
    aliases: list[str] = []


async def check_run(app: App, events: Sequence[Event], read: ReadPiece | None = None, *, keys: bool = True) -> RunCheck:
    """Check a history against the current code of its app.

    Args:
        app: the app with the code.
        events: the whole history.
        read: reads a piece of a large result; None if the events have their results.
        keys: whether the secrets of the run must be available here.

    Raises:
        StoreUnavailable: a large result cannot be read.
    """
    state = Fold(calls=False)
    for event in events:
        state.push(event)
    created = events[0].payload
    live = state.state not in TERMINAL_JOB_STATES
    builds = [event.payload.get("build") for event in events if event.type == "job_running"]
    found = RunCheck(
        run=events[0].job,
        entry=f"{created.get('plugin')}.{created.get('entry')}",
        live=live,
        verdict=Verdict.FITS,
        build=builds[-1] if builds else None,
    )
    if read is not None and any(FIELD in event.payload for event in events):
        events = await with_results(read, app.blobs(), events)
    missing = _missing_key(app, events) if live and keys else None
    if missing is not None:
        return msgspec.structs.replace(found, verdict=Verdict.KEY_MISSING, reasons=[missing])
    try:
        report = await check_replay(app, events)
    except UnknownEntry as error:
        return msgspec.structs.replace(found, verdict=Verdict.GONE, reasons=[str(error)])
    if live and report.fits and (missing_calls := _missing_of_plan(app, events)):
        return msgspec.structs.replace(found, verdict=Verdict.STOPS, reasons=missing_calls)
    unused = report.unasked if report.verdict is Verdict.UNUSED else []
    verdict, unreached = report.verdict, 0
    if verdict is Verdict.FITS and report.unasked:  # the code has come to a new call, and may ask for them after it
        unused = _gone(app, report.unasked)
        verdict, unreached = Verdict.UNUSED if unused else verdict, len(report.unasked) - len(unused)
    signals = report.signals if verdict in {Verdict.FITS, Verdict.UNUSED} and live else []
    return msgspec.structs.replace(
        found,
        verdict=Verdict.UNUSED if signals else verdict,
        reasons=report.reasons,
        line=report.line,
        unused=unused,
        signals=signals,
        unreached=unreached,
        next=report.beyond if report.fits else [],
        aliases=_through_aliases(app, str(created.get("entry")), report.names),
    )


def _through_aliases(app: App, entry: str, names: Sequence[str]) -> list[str]:
    """Return the names that functions of the app have as aliases: without these, the run would not fit."""
    jobs = {name for (_, name), job in app.entries.items() if name != job.name}
    calls = {name for name, call in app.calls_by_name().items() if name != call.name}
    for job in app.entries.values():
        calls |= {name for name, call in job.starter.calls_by_name().items() if name != call.name}
    runs = {name.partition(".")[2] for name in names if name.startswith(("job.", "start."))}
    return sorted((calls & set(names)) | (jobs & {entry, *runs}))


def _missing_of_plan(app: App, events: Sequence[Event]) -> list[str]:
    """Return the steps, tools and jobs that nodes of the run's plan still have to call, and that do not exist."""
    history = NodeHistory(events)
    nodes = Plan.from_dict(history.plan).nodes if history.plan is not None else ()
    if any(hasattr(node, "cases") for node in nodes):
        return []  # which of them will run is not known
    names, found = app.names(), []
    for node in nodes:
        call, job = getattr(node, "call", None), getattr(node, "job", None)
        if history.newest(node.id) in history.ended:
            continue
        if (call and call not in names.calls) or (job and job not in names.jobs):
            found.append(f"the node {node.id} of its plan calls {call or job}, which the code does not have")
    return found


def _gone(app: App, nodes: Sequence[str]) -> list[str]:
    """Return the calls whose function no longer exists: no code can ask for them."""
    calls = set(app.calls_by_name())
    for job in app.entries.values():
        calls |= set(job.starter.calls_by_name())
    jobs = {f"{kind}.{name}" for _, name in app.entries for kind in ("job", "start")}
    return [node for node in nodes if node.partition(":")[0] not in calls | jobs | {"signal"}]


def _missing_key(app: App, events: Sequence[Event]) -> str | None:
    """Return why a secret in the arguments of a run, or in its results, cannot be revealed here."""
    created = events[0].payload
    function = app.entries.get((str(created.get("plugin")), str(created.get("entry"))))
    if function is None:
        return None
    values: list[Any] = [
        created.get("args"),
        *(event.payload["result"] for event in events if "result" in event.payload),
    ]
    return function.vault.missing_key(values)
