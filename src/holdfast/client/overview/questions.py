"""The inbox: everything that waits for a person, and the check of answers to forms.

- **doubt**: a tool was started, its worker died, and it may have acted. `resolve` answers it.
- **answer**: job code waits for a person: `wait_for` with ``form=`` or ``type="human"``. `signal` answers it.
- **deploy**: the code of a run does not fit its history. `answer` says which code goes on.
- **budget**: a run has spent more than its budget. `grant` answers it.

A run is listed while no part of it can move. A question of a branch appears when the other branches wait, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from holdfast.authoring import answer_form
from holdfast.engine.replay import call_text
from holdfast.errors import InvalidArguments, QuestionClosed, UnknownJob
from holdfast.machines import Event, HistoryEvent, JobEvent, OpenWait
from holdfast.machines.keys import BUDGET_KEY, DEPLOY, DEPLOY_KEY, DOUBT_KEY, END, HUMAN, is_reserved
from holdfast.machines.run_projection import run_name
from holdfast.store import Job, Store

LOOK_BACK = 256  # events in which the start of a call in doubt is looked for
CHUNK = 16  # events per read: each may have a megabyte
PAGE = 100  # jobs per read, at least
KINDS = ("doubt", "answer", "budget", "deploy")


class DoubtfulCall(msgspec.Struct, frozen=True):
    """The call that is in doubt: the name of its tool, and its arguments as text, without secrets."""

    name: str
    args: str


class Spending(msgspec.Struct, frozen=True):
    """What a run has spent of a unit, and may spend."""

    spent: float
    limit: float


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """Code that does not fit the history of a run.

    Attributes:
        call: The call that the code makes now.
        recorded: The calls of the same name that the history has, and that the code does not make.
        nodes: The nodes of all of these.
        line: The line of the code that makes the call, as file:line. None if it is not known.
        began: The build that recorded the history. None if it is not known.
        build: The build that does not fit.
    """

    call: str
    recorded: list[str]
    nodes: list[str]
    line: str | None = None
    began: str | None = None
    build: str | None = None

    @property
    def has_other_build(self) -> bool:
        """Whether the run can go back to the build that recorded the history."""
        return self.began is not None and self.began != self.build


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits for a person.

    Attributes:
        id: Its place in the inbox, the cursor of a listing.
        kind: ``doubt``, ``answer``, ``budget`` or ``deploy``.
        run_id: The run that waits.
        plugin_id: The app.
        entry_id: The job.
        attributes: The attributes of the run.
        since: When the run began to wait.
        until: When the wait ends by itself. None means never.
        key: What the answer names: the step for `resolve`, the key for `signal`. For a budget it has no meaning.
        node: The place of the wait in the job. `signal` and `grant` with this `node` count for this question only.
        title: The tool, the key, or ``budget``.
        question: The question in words.
        call: For a doubt, the call. None if its start is too far back in the history.
        started: For a doubt, the number of the event that started the call. `resolve` with it counts for this try only.
        form: For an answer, the JSON Schema of its type. None for a wait without a form.
        misfit: Why the last answer could not be used.
        amounts: For a budget, the units that are spent.
        deploy: For code that does not fit, both calls and both builds.
    """

    id: str
    kind: Literal["doubt", "answer", "budget", "deploy"]
    run_id: str
    plugin_id: str
    entry_id: str
    attributes: dict[str, Any]
    since: float
    until: float | None
    key: str
    node: str = ""
    title: str
    question: str
    call: DoubtfulCall | None = None
    started: int | None = None
    form: dict[str, Any] | None = None
    misfit: str | None = None
    amounts: dict[str, Spending] | None = None
    deploy: Misfit | None = None


async def questions(
    store: Store,
    *,
    after: str | None,
    limit: int,
    kind: str | None,
    group: str | None,
    run: tuple[str, int] | None = None,
) -> list[Question]:
    """List what waits for a person, oldest run first. `run` is the job and the number of the only run to look at."""
    if run is not None:
        row = await store.get(run[0])
        if row is None or row.run != run[1] or group not in {None, row.group}:
            return []
        asked = await _of_job(store, row, kind)
        return [one for one in asked if after is None or _number(one.id) > _number(after)][:limit]
    job, _, number = (after or "").rpartition("~")
    found: list[Question] = []
    row = await store.get(job) if job else None
    if row is not None and (group is None or row.group == group):
        found = [one for one in await _of_job(store, row, kind) if _number(one.id) > int(number)]
    last, count = job or None, max(limit, PAGE)
    while len(found) < limit:
        rows = await store.questions(group=group, after=last, limit=count)
        for row in rows:
            found += await _of_job(store, row, kind)
            if len(found) >= limit:
                break
        if len(rows) < count:
            break
        last = rows[-1].id
    return found[:limit]


def _number(question: str) -> int:
    """Return the place of a question among those of its run, from its id."""
    return int(question.rpartition("~")[2])


def _may_ask(wait: OpenWait, kind: str | None) -> bool:
    """Return whether a wait has a question of this kind. It costs no read."""
    keys = [place.correlation_key or "" for place in wait.places()]
    kinds = {
        "doubt": wait.in_doubt,
        "budget": BUDGET_KEY in keys,
        "deploy": wait.wait_type == DEPLOY,
        "answer": any(wait.asks_person(key) for key in keys),
    }
    return kinds[kind] if kind is not None else any(kinds.values())


async def _of_job(store: Store, row: Job, kind: str | None) -> list[Question]:
    """Return the questions of a job that waits."""
    if row.wait is None or not _may_ask(row.wait, kind):
        return []
    last = await _waiting_event(store, row)
    if last is None:
        return []
    asked = [one for one in _places(row, last) if kind is None or one.kind == kind]
    starts = await _starts(store, row, {one.key for one in asked if one.kind == "doubt"})
    return [_with_call(one, starts.get(one.key)) if one.kind == "doubt" else one for one in asked]


async def _waiting_event(store: Store, row: Job) -> Event | None:
    """Return the event with which a job began to wait: its last one, or None if it does not wait."""
    if row.wait is None:
        return None
    last = await store.events(row.id, row.version - 1, 1)
    return last[0] if last and last[0].type == JobEvent.WAITING else None


def _places(row: Job, event: Event) -> Iterator[Question]:
    payload = event.payload
    places: list[dict[str, Any]] = [payload, *(payload.get("also") or [])]
    for number, place in enumerate(places):
        key = place.get("correlation_key") or ""
        asked: dict[str, Any] = {
            "id": f"{row.id}~{number}",
            "run_id": run_name(row.id, row.run),
            "plugin_id": row.plugin,
            "entry_id": row.entry,
            "attributes": row.attributes or {},
            "since": event.at,
            "until": place.get("deadline"),
            "node": place.get("node") or "",
        }
        if key.startswith(DOUBT_KEY):
            node = key.removeprefix(DOUBT_KEY)
            tool = node.partition(":")[0]
            question = f"Did {tool} happen? It was started, and its end is unknown, so it may have acted."
            why = payload.get("misfit")
            yield Question(**asked, kind="doubt", key=node, title=tool, question=question, misfit=why)
        elif key.startswith(DEPLOY_KEY):
            misfit = msgspec.convert(payload.get(DEPLOY) or {}, Misfit)
            name = misfit.call.partition("(")[0]
            yield Question(
                **asked, kind="deploy", key=asked["node"], title=name, question=misfit_text(misfit), deploy=misfit
            )
        elif key == BUDGET_KEY:
            over = payload.get("over_budget") or {}
            amounts = {unit: Spending(spent, limit) for unit, (spent, limit) in sorted(over.items())}
            spent = ", ".join(f"{one.spent:g} of {one.limit:g} {unit}" for unit, one in amounts.items())
            question = f"It has spent {spent or 'more than its budget'}. How much may it spend in addition?"
            yield Question(**asked, kind="budget", key=key, title="budget", question=question, amounts=amounts)
        elif place.get("wait_type") == HUMAN and not is_reserved(key):
            form = place.get("form") or {}
            schema = form.get("schema")
            yield Question(
                **asked, kind="answer", key=key, title=key, question=_wording(key, schema), form=schema,
                misfit=form.get("misfit"),
            )  # fmt: skip


def misfit_text(misfit: Misfit) -> str:
    """Return in words how the code does not fit."""
    at = f" at {misfit.line}" if misfit.line is not None else ""
    build = f" of build {misfit.build}" if misfit.build is not None else ""
    began = f", which build {misfit.began} recorded" if misfit.began is not None else ""
    if misfit.call == END:
        ends = f"The code{build} ends, but the history has {', '.join(misfit.recorded)}{began}"
        return f"{ends}: it was begun, and whether it has acted is not known."
    calls = f"The code{build} calls {misfit.call}{at}, but the history has {', '.join(misfit.recorded)}{began}."
    return calls + _renamed(misfit)


def _renamed(misfit: Misfit) -> str:
    """Return what to do if the recorded call has the same arguments under another name."""
    name, _, arguments = misfit.call.partition("(")
    was, _, recorded = misfit.recorded[0].partition("(") if misfit.recorded else ("", "", "")
    if not arguments or name == was or arguments != recorded:
        return ""
    return f" If {was} was renamed, give {name} the alias {was!r}, start workers with that code, and accept."


def _wording(key: str, schema: dict[str, Any] | None) -> str:
    """Return the description of a form's type, or a sentence with the key."""
    described = schema or {}
    name = str(described.get("$ref", "")).rpartition("/")[2]
    described = described.get("$defs", {}).get(name, described)
    text = str(described.get("description") or "").strip().partition("\n")[0]
    return text or f"The run waits for {key!r}."


async def _starts(store: Store, row: Job, nodes: set[str]) -> dict[str, Event]:
    """Find the newest start of each of these calls. Look at the last events only."""
    found: dict[str, Event] = {}
    end = row.version
    while nodes - found.keys() and end > max(0, row.version - LOOK_BACK):
        begin = max(0, end - CHUNK)
        for event in reversed(await store.events(row.id, begin, end - begin)):
            node = event.payload.get("node")
            if event.type == HistoryEvent.TOOL_STARTED and node in nodes:
                found.setdefault(node, event)
        end = begin
    return found


def _with_call(question: Question, start: Event | None) -> Question:
    if start is None:
        return question
    name, args = str(start.payload.get("name") or question.title), start.payload.get("args")
    text = call_text(name, args, question.key)
    asked = f"Did {text} happen? It was started, and its end is unknown, so it may have acted."
    shown = text.removeprefix(f"{name}(").removesuffix(")") if text.startswith(f"{name}(") else ""
    call = DoubtfulCall(name, shown)
    return msgspec.structs.replace(question, title=name, question=asked, call=call, started=start.seq)


async def check_answer(store: Store, job: str, key: str, payload: Any, node: str | None = None) -> None:
    """Compare an answer with the form of the wait for a key, at a node if several places wait for the key.

    Raises:
        InvalidArguments: the answer does not fit. The message has the place of the problem.
    """
    row = await store.get(job)
    event = await _waiting_event(store, row) if row is not None else None
    if event is None:
        return
    for place in [event.payload, *(event.payload.get("also") or [])]:
        if place.get("correlation_key") == key and node in {None, place.get("node")}:
            problem = answer_form.misfit((place.get("form") or {}).get("schema"), payload)
            if problem is not None:
                raise InvalidArguments(f"the answer to {key!r}", problem)
            return


async def asked_misfit(store: Store, job: str, node: str | None) -> tuple[Job, str, Misfit]:
    """Return the row of a job that asks which code goes on, the node of its question, and what does not fit.

    Raises:
        UnknownJob: there is no such job.
        QuestionClosed: it does not ask this.
    """
    row = await store.get(job)
    if row is None:
        raise UnknownJob(job)
    event = await _waiting_event(store, row)
    asked = str(event.payload.get("node")) if event is not None and event.payload.get("wait_type") == DEPLOY else None
    if event is None or asked is None or node not in {None, asked}:
        raise QuestionClosed(job, node or await _last_misfit(store, row) or DEPLOY)
    return row, asked, msgspec.convert(event.payload[DEPLOY], Misfit)


async def _last_misfit(store: Store, row: Job) -> str | None:
    """Return the node at which a job has last asked which code goes on, if that is among its last events."""
    end, first = row.version, max(0, row.version - LOOK_BACK)
    while end > first:
        begin = max(first, end - CHUNK)
        for event in reversed(await store.events(row.id, begin, end - begin)):
            if event.type == JobEvent.WAITING and event.payload.get("wait_type") == DEPLOY:
                return str(event.payload.get("node"))
        end = begin
    return None


async def version_of_try(store: Store, job: str, node: str, started: int) -> int:
    """Return the version of a job whose call at a node was last started by this event; 0 if it was started again."""
    row = await store.get(job)
    if row is None:
        return 0
    newest = (await _starts(store, row, {node})).get(node)
    return row.version if newest is None or newest.seq == started else 0


async def answered_by(store: Store, job: str, node: str) -> str | None:
    """Return who has answered the question at a node, if the answer is among the last events of the job."""
    row = await store.get(job)
    end = row.version if row is not None else 0
    first = max(0, end - LOOK_BACK)
    while end > first:
        begin = max(first, end - CHUNK)
        for event in reversed(await store.events(job, begin, end - begin)):
            if event.type == JobEvent.WAIT_COMPLETED and event.payload.get("node") == node:
                details = event.payload.get("payload") if event.payload.get("outcome") == "resolved" else event.payload
                by = details.get("actor") if isinstance(details, dict) else None
                return by if isinstance(by, str) else None
        end = begin
    return None
