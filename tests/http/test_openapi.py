"""The OpenAPI document is true: thousands of requests made from it, good and bad, are answered as it says."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from holdfast import App
from holdfast.http.openapi import document
from holdfast.http.route import Bound, Operation
from holdfast.http.routes import routes
from holdfast.http.tokens import Scope
from holdfast.server import Limits, asgi, token
from support.scripts import ROOT, load
from support.stories import drain, play
from support.timeless import given, settings
from support.web import serving, small_shop

TABLE = routes()
SCHEMA = schemathesis.openapi.from_dict(document(TABLE))
SCHEMA.config.generation.update(with_security_parameters=False)  # every request has the token; one check leaves it out
PARTS = 4  # so that several processes can share the work
CASES = 500  # in each part, at least: 2,000 in all


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


async def some_runs(app: App) -> list[str]:
    """Runs in several states: the ids that requests are about."""
    ended, failed = await app.astart("greet", "Ada"), await app.astart("fail")
    waiting = await app.astart("ask")
    await drain(app)
    queued = await app.astart("greet", "Bob")
    return [ended.id, failed.id, waiting.id, queued.id]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_route_answers_thousands_of_requests_as_the_document_says(
    small: App, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    known = play(some_runs(small))
    small.close()
    count = 0
    service = asgi(small, tokens=[token("secret" * 6, scope="admin")], limits=Limits(stream_seconds=0.02))
    headers = {"Authorization": "Bearer " + "secret" * 6}
    operations: list[Any] = [cast("Any", result).ok() for result in SCHEMA.get_all_operations()]
    with serving(service) as url, requests.Session() as session, caplog.at_level(logging.ERROR):
        for operation in operations[part::PARTS]:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

                @settings(
                    max_examples=70,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode), run=st.sampled_from([*known, None]))
                def ask(case: Any, run: str | None) -> None:
                    nonlocal count
                    count += 1
                    # What a schema cannot say (that text is a duration, that a job has this name) may be refused.
                    excluded = [checks.positive_data_acceptance] if case.operation.body else []
                    if run is not None and "id" in (case.path_parameters or {}):
                        case.path_parameters["id"] = run  # which may have been what was wrong with it
                        excluded.append(checks.negative_data_rejection)
                    case.call_and_validate(base_url=url, session=session, headers=headers, excluded_checks=excluded)

                with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
                    ask()
    assert count >= CASES, count
    unexpected = [record for record in caplog.records if record.name != "holdfast.worker"]  # a job of these has failed
    assert not unexpected, caplog.text


def test_the_document_has_every_route_and_every_route_says_who_may_use_it() -> None:
    described = document(TABLE)
    listed = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert listed == {(one.method, one.path) for one in TABLE}
    names = [one["operationId"] for methods in described["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    assert {one.path for one in TABLE if one.needed is None} == {"/healthz", "/readyz"}
    shape: dict[str, Any] = {"handler": TABLE[0].handler, "summary": "", "gives": {}}
    for said in ({"bound": Bound.FREE}, {"needed": Scope.READ}):  # neither is chosen for whoever forgets it
        with pytest.raises(TypeError):
            Operation("GET", "/new", **said, **shape)
    for path, bound in (("/runs/{id}/new", Bound.FREE), ("/runs/{id}/new", Bound.OWN), ("/new", Bound.RUN)):
        with pytest.raises(ValueError, match="with a run id"):
            Operation("GET", path, Scope.READ, bound, **shape)


def test_the_page_of_the_reference_is_what_the_routes_make() -> None:
    assert (ROOT / "docs" / "reference" / "http.md").read_text() == load(ROOT / "tools" / "http_page.py").http_page()
