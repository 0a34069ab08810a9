"""The OpenAPI document is true: thousands of requests made from it, good and bad, are answered as it says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.http.openapi import document
from holdfast.http.route import Bound, Operation
from holdfast.http.routes import routes
from holdfast.http.tokens import Scope
from support.fuzzing import operations, site
from support.postgres import fresh_url
from support.scripts import ROOT, load

TABLE = routes()
PARTS = 2  # so that several processes can share the work
CASES = 500  # in each part on each store, at least: 2,000 in all
EACH = 6  # good requests to each route alone, and as many bad ones


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_route_answers_requests_of_all_kinds_as_the_document_says(
    store: str, part: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """2,000 cases in all: half of them each alone, half in chains along the links of the document."""
    url = fresh_url() if store == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"
    with site(url) as service, caplog.at_level(logging.ERROR):
        service.ask_each(operations()[part::PARTS], EACH)
        service.follow_links(CASES - service.count, first=part)
    assert service.count >= CASES
    assert not [answer for answer in service.seen if answer[1] >= 500 and answer[0] != "readyz"]
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
