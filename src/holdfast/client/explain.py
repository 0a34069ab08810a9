"""An explanation of one job in words: why it does not run, which worker holds it, what will wake it, and when.

`explain` is pure. `look` reads the other facts that it needs: the live workers, the job's last event, and the names of
the children that it waits for.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.client.overview.questions import Misfit, misfit_text
from holdfast.machines import Event, HistoryEvent, JobEvent, JobState
from holdfast.machines.keys import (
    BUDGET_KEY,
    BUILTIN,
    CHILD_KEY,
    DEPLOY,
    DOUBT_KEY,
    PAUSE_KEY,
    RETRY_KEY,
    TIMER_KEY,
    id_name,
    is_reserved,
)
from holdfast.store import Evidence, Job, QueueState, Store, WorkerCard
from holdfast.store.run_queries import RunFilter

FOLLOWED_MAX = 20  # children whose forks and continuations are looked up, and how many of each


class Around(msgspec.Struct, frozen=True):
    """Facts about a job that are not in its row.

    Attributes:
        alive: The live workers; None if they were not read.
        last: The job's newest event.
        children: The children that the job waits for, by the key of the wait.
        queue: The state of the job's queue, if the queue has limits.
        unread: The keys of signals that came for the job, and that it has not waited for.
    """

    alive: Sequence[WorkerCard] | None = None
    last: Event | None = None
    children: Mapping[str, str] = {}
    queue: QueueState | None = None
    unread: Sequence[str] = ()


async def look(store: Store, job: Job, now: float) -> Around:
    """Read the facts that `explain` needs in addition to the row."""
    alive = [card for card in await store.workers() if now - card.seen_at <= card.lease_seconds]
    waits = [place.correlation_key or "" for place in job.wait.places()] if job.wait is not None else []
    keys = [key for key in waits if key.startswith(CHILD_KEY)]
    stream = await store.events(job.id, 0 if keys else max(0, job.version - 1))
    values = {event.payload.get("node"): event.payload for event in stream if event.type == HistoryEvent.VALUE_RECORDED}
    run = f".{job.run}" if job.run > 1 else ""  # a new run has its own children
    children: dict[str, str] = {}
    for key in keys:
        node = key.removeprefix(CHILD_KEY).removesuffix(run)
        child = values.get(id_name(node, run), {}).get("value")
        if isinstance(child, str):
            children[key] = await _current(store, job.id, child) if len(keys) <= FOLLOWED_MAX else child
    queued = job.state is JobState.QUEUED and job.due_at <= now
    queues = await store.limits() if queued else []
    queue = next((state for state in queues if state.limits.queue == job.queue), None)
    unread = sorted({signal.key for signal in await store.inbox(job.id)} - set(waits)) if waits else []
    return Around(alive, stream[-1] if stream else None, children, queue, unread)


async def _current(store: Store, parent: str, child: str) -> str:
    """Return the run whose end a parent waits for: a fork or a continuation of the child that it started, if any."""
    for _ in range(FOLLOWED_MAX):
        row = await store.get(child)
        following = row.course.continued_as if row is not None else None
        if row is not None and row.state is JobState.CANCELLED:
            of_child = RunFilter(attributes={"forked_from": child}, parent=parent, newest=True)
            following = next((record.task_id for record in await store.records(of_child, 1)), None)
        if following is None:
            break
        child = following
    return child


def explain(
    job: Job,
    now: float,
    entries: Container[tuple[str, str]] | None = None,
    evidence: Sequence[Evidence] = (),
    around: Around | None = None,
) -> str:
    """Return sentences that say where a job is and what it waits for.

    Args:
        job: The job's row.
        now: The store's time.
        entries: The jobs that the caller's app can run; None if the caller has no app.
        evidence: Results that calls of the job reported too late.
        around: Other facts, from `look`.
    """
    around = around or Around()
    sentences = [_where(job, now, around), *map(_late, evidence)]
    if job.state is JobState.QUEUED and job.due_at <= now:
        held = _held(job, around.queue, now)
        sentences += [held] if held is not None else _takers(job, entries, around.alive)
    elif job.state is JobState.QUEUED and entries is not None and (job.plugin, job.entry) not in entries:
        sentences.append(
            f"This app does not have the job {job.plugin}.{job.entry}. The run waits for a worker that has it."
        )
    if job.cancel is not None and job.state in {JobState.QUEUED, JobState.RUNNING, JobState.WAITING}:
        why = f" ({job.cancel.reason})" if job.cancel.reason else ""
        sentences.append(f"Its cancellation was requested{why}. It may still clean up.")
    if job.pause:
        sentences.append("It will pause at its next step.")
    if job.ends_by is not None and job.state in {JobState.QUEUED, JobState.RUNNING, JobState.WAITING}:
        sentences.append(f"Its deadline is {_time(job.ends_by, now)}.")
    return " ".join(sentences)


def _held(job: Job, queue: QueueState | None, now: float) -> str | None:
    """Return which limit of the queue holds the job back, and until when. Return None if no limit does."""
    if queue is None:
        return None
    limits, name = queue.limits, f"queue {job.queue!r}"
    if limits.paused:
        return f"The {name} is paused until an operator resumes it."
    if limits.concurrency is not None and queue.running >= limits.concurrency:
        return f"The {name} runs {queue.running} of at most {limits.concurrency} jobs. One must end first."
    if queue.held_until is not None:
        rate = f"{limits.rate:g} jobs in {limits.rate_seconds:g} s"
        return f"The {name} may start {rate}. The next start is {_time(queue.held_until, now)}."
    of_group = queue.groups.get(job.group or "", 0)
    if limits.group_concurrency is not None and job.group and of_group >= limits.group_concurrency:
        may = f"may run {limits.group_concurrency} at once"
        return f"Its group {job.group!r} runs {of_group} jobs of the {name}, and {may}: one has to end first."
    return None


def _takers(job: Job, entries: Container[tuple[str, str]] | None, alive: Sequence[WorkerCard] | None) -> list[str]:
    """Return which workers could take a due job, or that no worker can."""
    name = f"{job.plugin}.{job.entry}"
    if job.plugin == BUILTIN:
        return ["A server executes it: one that runs takes it within ten seconds, or start one with `holdfast serve`."]
    waits = [f"It waits for a worker that has the job {name}."] if entries is None else []
    if entries is not None and (job.plugin, job.entry) not in entries:
        waits = [f"This app does not have the job {name}. The run waits for a worker that has it."]
    if alive is None:
        return waits
    having = [card for card in alive if name in card.entries]
    takers = [card for card in having if _may_take(card, job)]
    if having and not takers and job.kept_for is None:
        builds = " and ".join(sorted({str(card.build) for card in having}))
        return [f"Only draining workers of build {builds} have it. They take no new runs: start a worker that does."]
    if not takers and job.kept_for is not None:
        cure = f"start one, or move its runs with `holdfast builds move {job.kept_for} NEW TARGET`"
        return [f"It is kept for workers of build {job.kept_for}, and none is alive: {cure}."]
    having = takers
    serving = [card for card in having if card.queues is None or job.queue in card.queues]
    answering = [card for card in serving if card.blocked is None]
    if serving and not answering:
        return [f"The worker {serving[0].name} that has it does not answer: {serving[0].blocked}."]
    if serving:
        serving = answering
        if len(serving) == 1:
            return ["A worker that has this job is alive and will take it when a slot is free."]
        return [f"{len(serving)} workers that have this job are alive. One will take it when a slot is free."]
    if having:
        return [f"No live worker that has it serves the queue {job.queue!r}.", *waits]
    missing = (
        "No worker that has this job is alive." if alive else "No worker is alive: start one with `holdfast worker`."
    )
    return [missing, *waits]


def _may_take(card: WorkerCard, job: Job) -> bool:
    """Return whether a worker takes a job in view of the build that the job is kept for."""
    return not card.draining if job.kept_for is None else card.build == job.kept_for


def _where(job: Job, now: float, around: Around) -> str:
    match job.state:
        case JobState.QUEUED if job.due_at > now and job.started:
            node = (around.last.payload.get("node") if around.last is not None else None) or None
            gate = around.last.payload.get("gate") if around.last is not None else None
            if gate is not None:
                return f"It waits for the gate {gate}, to call {node}: it is tried again {_time(job.due_at, now)}."
            what = f"It tries {node} again" if node is not None else "It is tried again"
            why = _because(around.last) if node is None else ""
            return f"{what} {_time(job.due_at, now)}{why}; {_attempts(job)}."
        case JobState.QUEUED if job.due_at > now:
            return f"It is queued and due {_time(job.due_at, now)}; {_attempts(job)}."
        case JobState.QUEUED:
            return f"It is queued in {job.queue!r}, due since {_time(job.due_at, now)}: no worker has taken it yet."
        case JobState.RUNNING if job.lease is not None and job.lease.until <= now:
            return f"The lease of its worker {job.lease.worker} has expired. Another worker will take the job."
        case JobState.RUNNING:
            holder = job.lease.worker if job.lease is not None else "unknown"
            details = f"{_at_gate(job, now, around)}{_blocked(holder, around)}"
            return f"It runs: worker {holder} holds it, attempt {job.attempt}.{details}"
        case JobState.WAITING:
            return _waits(job, now, around)
        case JobState.FAILED:
            return f"It has failed{_because(around.last)}. An operator may retry it."
        case state:
            successor = job.course.continued_as
            return f"It has ended: {state}." + (f" It was continued as run {successor}." if successor else "")


def _at_gate(job: Job, now: float, around: Around) -> str:
    """Return which gate a running job waits for, as its worker last reported."""
    gates = [gate for card in around.alive or () for gate in card.gates if job.id in gate.jobs]
    text = ""
    for gate in gates:
        opens = f", which opens {_time(gate.opens_at, now)}" if gate.opens_at is not None else ""
        text += f" It waits for the gate {gate.name}{opens}{f' ({gate.why})' if gate.why else ''}."
    return text


def _blocked(holder: str, around: Around) -> str:
    """Return what blocks the worker that holds the job, as the worker last reported."""
    blocked = next((card.blocked for card in around.alive or () if card.name == holder), None)
    return f" Its worker does not answer: {blocked}." if blocked is not None else ""


def _because(last: Event | None) -> str:
    """Return why the job is retried or has failed, from its last event."""
    if last is None or last.type not in {JobEvent.REQUEUED, JobEvent.FAILED}:
        return ""
    error = last.payload.get("error") or {}
    reason = error.get("message") or last.payload.get("message") or last.payload.get("reason")
    return f" ({reason})" if reason else ""


def _waits(job: Job, now: float, around: Around) -> str:
    wait = job.wait
    assert wait is not None, "a job that waits has a wait"
    places = [place.correlation_key or "" for place in wait.places()]
    if places[0] == PAUSE_KEY:
        return "It is paused until an operator resumes it."
    if wait.wait_type == DEPLOY and around.last is not None and DEPLOY in around.last.payload:
        return _misfit(msgspec.convert(around.last.payload[DEPLOY], Misfit))
    sentences = [_question(key) for key in places if key.startswith(DOUBT_KEY)]
    misfit = around.last.payload.get("misfit") if around.last is not None and sentences else None
    sentences += [f"The last answer could not be used: {misfit}."] if misfit else []
    sentences += [_over_budget(around.last) for key in places if key == BUDGET_KEY]
    answers = [repr(key) for key in places if wait.asks_person(key)]
    signals = [repr(key) for key in places if not is_reserved(key) and not wait.asks_person(key)]
    until = f", until {_time(wait.deadline, now)}" if wait.deadline is not None else ", without a time limit"
    if answers:
        sentences.append(f"It waits for a person to answer {' or '.join(answers)}{until}: see `holdfast inbox`.")
    if signals:
        sentences.append(f"It waits for the signal {' or '.join(signals)}{until}.")
        others = [repr(key) for key in around.unread if not is_reserved(key)]
        sentences += [f"Signals came that it does not wait for: {', '.join(others[:3])}."] if others else []
    sentences += [_child(key, around) for key in places if key.startswith(CHILD_KEY)]
    if places[0].startswith(RETRY_KEY):
        sentences.append(f"It tries {places[0].removeprefix(RETRY_KEY)} again {_time(wait.deadline or now, now)}.")
    elif places[0].startswith(TIMER_KEY):
        sentences.append(f"It sleeps until {_time(wait.deadline or now, now)}.")
    return " ".join(sentences)


def _misfit(misfit: Misfit) -> str:
    build = f"build to go on with workers of build {misfit.began}, " if misfit.has_other_build else ""
    answers = f"accept to go on with the new call, {build}fork, or fail"
    return f"The code does not fit its history. {misfit_text(misfit)} Answer with `holdfast answer`: {answers}."


def _child(key: str, around: Around) -> str:
    name = key.removeprefix(CHILD_KEY).removeprefix("job.").partition(":")[0]
    child = f", run {around.children[key]}" if key in around.children else ""
    return f"It waits for its child job {name}{child}."


def _over_budget(last: Event | None) -> str:
    over = (last.payload.get("over_budget") if last is not None else None) or {}
    spent = ", ".join(f"{unit} {amount:g} of {limit:g}" for unit, (amount, limit) in sorted(over.items()))
    return f"It has spent more than its budget{f': {spent}' if spent else ''}. It continues after a grant."


def _question(key: str) -> str:
    node = key.removeprefix(DOUBT_KEY)
    answers = "Answer with `resolve`: done, not_done or fail."
    return f"The call {node} is in doubt: it was started, and its end is unknown, so it may have acted. {answers}"


def _late(evidence: Evidence) -> str:
    reported = f"it raised {evidence.error}" if evidence.error is not None else f"its result was {evidence.result!r}"
    return f"Attempt {evidence.attempt} reported a late end of {evidence.node}: {reported}."


def _attempts(job: Job) -> str:
    if not job.attempts and not job.started:
        return "it has not started yet"
    return f"{job.attempts} of {job.max_attempts} attempts are used"


def _time(at: float, now: float) -> str:
    distance = abs(at - now)
    steps = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    size, unit = next(((size, unit) for size, unit in steps if distance >= size), (1.0, "s"))
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{stamp} ({'in ' if at > now else ''}{distance / size:.0f} {unit}{'' if at > now else ' ago'})"
