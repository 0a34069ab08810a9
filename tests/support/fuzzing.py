"""Requests made from the OpenAPI document, on a served app: each alone, and in chains along the links of the document.

Every answer is checked against the document: its status, its media type, its schema, and that the server refuses what
the document forbids. `Site.seen` counts the answers by operation and status.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, seed, strategies
from hypothesis.errors import FlakyStrategyDefinition, Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi.checks import ensure_resource_availability, ignored_auth, use_after_free

from holdfast import App, export
from holdfast.http.handlers.reads import WAIT_MAX
from holdfast.http.openapi import document
from holdfast.http.routes import routes
from holdfast.server import Limits, asgi, token
from holdfast.store import Append, Claim
from support.stories import drain, play
from support.timeless import given, settings
from support.web import serving, shop

EXAMPLES = 5  # of one seed: the first is always the simplest
ANSWER_SECONDS = 60  # an answer that takes longer does not come
SECRET = "secret" * 6
SCHEMA = schemathesis.openapi.from_dict(document(routes()))
SCHEMA.config.checks.negative_data_rejection.expected_statuses = [
    "400",
    "404",
    "409",
    "413",
    "414",
    "415",
    "422",
    "431",
]
SCHEMA.config.generation.update(with_security_parameters=False)  # every request has the token; one check leaves it out
STARTS: list[tuple[str, dict[str, Any]]] = [  # jobs, for requests that shall create a run
    ("greet", {"name": "Ada"}), ("ask", {}), ("fail", {}), ("publish", {}), ("pay", {}), ("open", {}),
]  # fmt: skip
# A schema cannot say that text is a duration, or that a job has this name: a body that fits may be refused. A queue
# without limits is no missing resource.
NOT_CHECKED = [checks.positive_data_acceptance, use_after_free, ensure_resource_availability]


def extended(app: App) -> App:
    """Add jobs with exports, with a call in doubt, and with plans."""

    @app.tool
    async def charge() -> str:
        return "paid"

    @app.step
    async def price() -> int:
        return 3

    @app.job
    async def publish() -> None:
        export(await price(), "page")

    @app.job
    async def pay() -> str:
        return await charge()

    app.plan("open", open=True)
    return app


class Site:
    """A served app with runs in several states, and a worker that works as the requests come."""

    def __init__(self, url: str, known: list[str]) -> None:
        self.url, self.known = url, known
        self.seen: Counter[tuple[str, int]] = Counter()
        self.session = requests.Session()
        headers = {"Authorization": f"Bearer {SECRET}"}
        self.sent: dict[str, Any] = {"session": self.session, "headers": headers, "timeout": ANSWER_SECONDS}

    @property
    def count(self) -> int:
        """How many cases were answered."""
        return self.seen.total()

    def ask_each(self, operations: Sequence[Any], examples: int) -> None:
        """Send so many good and so many bad requests to each operation."""
        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
                    self._ask(operation, mode, examples)

    def _ask(self, operation: Any, mode: GenerationMode, examples: int) -> None:
        @_settings(examples)
        @given(
            case=operation.as_strategy(generation_mode=mode),
            run=strategies.sampled_from([*self.known, None]),
            start=strategies.sampled_from([*STARTS, None]),
        )
        def ask(case: Any, run: str | None, start: tuple[str, dict[str, Any]] | None) -> None:
            excluded = [*NOT_CHECKED] if case.operation.body else []
            if run is not None and "id" in (case.path_parameters or {}):
                case.path_parameters["id"] = run  # which may have been what was wrong with it
                excluded.append(checks.negative_data_rejection)
            if mode is GenerationMode.POSITIVE:
                _start(case, start)
            _wait_less(case)
            answer = case.call(base_url=self.url, **self.sent)
            self._count(case, answer)
            case.validate_response(answer, excluded_checks=excluded, transport_kwargs=self.sent)

        ask()

    def follow_links(self, cases: int, steps: int = 20, first: int = 0) -> None:
        """Send at least so many requests in chains along the links of the answers, from the seeds of part `first`."""
        site = self

        class Machine(SCHEMA.as_state_machine()):  # type: ignore[misc]  # a class made at run time
            def before_call(self, case: Any) -> None:
                number = len(site.seen) + site.count
                _start(case, STARTS[number % len(STARTS)])
                _wait_less(case)

            def get_call_kwargs(self, case: Any) -> dict[str, Any]:
                del case
                return {"base_url": site.url, **site.sent}

            def after_call(self, response: Any, case: Any) -> None:
                super().after_call(response, case)
                site._count(case, response)

            def validate_response(self, response: Any, case: Any, additional_checks: Any = None, **sent: Any) -> None:
                del additional_checks
                sent.pop("base_url", None)
                excluded = [
                    *NOT_CHECKED,
                    ignored_auth,
                    checks.negative_data_rejection,
                ]  # a link may replace what was wrong
                case.validate_response(response, excluded_checks=excluded, transport_kwargs=sent)

        chosen = settings(_settings(EXAMPLES), stateful_step_count=steps, derandomize=False)
        end = self.count + cases
        for number in itertools.count(first * 1_000_000):
            # What an answer makes possible next depends on the store, which an example leaves changed. Hypothesis stops
            # when it notices. So each seed has few examples, and the next goes on.
            with contextlib.suppress(FlakyStrategyDefinition):
                seed(number)(Machine).run(settings=chosen)
            if self.count >= end:
                return

    def _count(self, case: Any, response: Any) -> None:
        self.seen[case.operation.definition.raw["operationId"], response.status_code] += 1


def operations() -> list[Any]:
    """The operations of the document."""
    return [cast("Any", result).ok() for result in SCHEMA.get_all_operations()]


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _start(case: Any, start: tuple[str, dict[str, Any]] | None) -> None:
    """Let a request that creates runs name a job, which random text never does."""
    name = case.operation.definition.raw["operationId"]
    if start is None or not isinstance(case.body, dict):
        return
    changed = {"plugin_id": "shop", "entry_id": start[0], "args": start[1]}
    if name == "create_run":
        case.body = {**case.body, **changed}
    elif name == "create_runs" and isinstance(case.body.get("runs"), list):
        case.body = {
            "runs": [{**run, **changed} for run in case.body["runs"] if isinstance(run, dict)][:5] or [changed]
        }


def _wait_less(case: Any) -> None:
    """Let a request that may wait a minute for the end of a run wait no longer than a test may."""
    wait = (case.query or {}).get("wait")
    if isinstance(wait, (int, float)) and 0 < wait <= WAIT_MAX:
        case.query["wait"] = min(wait, 0.01)


@contextmanager
def site(url: str) -> Iterator[Site]:
    """Serve an app of these jobs, with a worker."""
    app, other = extended(shop(url)), extended(shop(url))
    known = play(some_runs(app))
    app.close()
    worker = other.worker()
    working = threading.Thread(target=worker.run)
    service = asgi(app, tokens=[token(SECRET, scope="admin")], limits=Limits(stream_seconds=0.02))
    with serving(service) as place:
        made = Site(place, list(known.values()))
        working.start()
        try:
            yield made
        finally:
            made.session.close()
            worker.stop(at_once=True)
            working.join()
            other.close()


async def some_runs(app: App) -> dict[str, str]:
    """Runs in several states, by a name for each."""
    made = {name: await app.astart(name, **args) for name, args in STARTS[:4]}
    await drain(app)
    made["pay"] = await app.astart("pay")
    await _die_in_tool(app)
    made["queued"] = await app.astart("greet", "Bob")
    return {name: run.id for name, run in made.items()}


async def _die_in_tool(app: App) -> None:
    """Leave the one queued job as a worker leaves it that ends in the middle of a call, and another that asks."""
    store = app.store()
    claim = Claim(worker="w", entries=frozenset(app.entries), queues=None, limit=1, lease_seconds=60)
    ((held,),) = [answer.claimed for answer in await store.commit([claim])]
    started = ("tool_invocation_started", {"node": "charge:1", "name": "charge", "try": 1, "args": {}})
    doubt = {"node": "charge:1", "correlation_key": "holdfast:doubt:charge:1", "wait_type": "human", "park": True}
    await store.commit([Append(held.job.id, held.job.attempt, (started, ("job_waiting", doubt)))])
