"""API v1 changes only by additions, as docs/reference/compatibility.md promises."""

from __future__ import annotations

from types import ModuleType

import pytest

from support.scripts import ROOT, load


@pytest.fixture(scope="module")
def api() -> ModuleType:
    return load(ROOT / "tools" / "api_contract.py")


def test_nothing_that_v1_has_offered_is_gone_or_has_another_type(api: ModuleType) -> None:
    """A field, parameter, route or code that is missing here breaks clients: keep it, or begin a v2."""
    assert sorted(line for line in api.read() - api.contract() if " needs " not in line) == []


def test_nothing_that_clients_could_leave_out_is_required_now(api: ModuleType) -> None:
    """Only a route or body that is new as a whole may need something."""
    known = {line.split(" needs ")[0] for line in api.read()}
    needed = {line for line in api.contract() - api.read() if " needs " in line}
    assert sorted(line for line in needed if line.split(" needs ")[0] in known) == []


def test_new_parts_are_promised_from_now_on(api: ModuleType) -> None:
    assert sorted(api.contract() - api.read()) == [], "run `make docs`, which adds them to v1_contract.txt"


def test_the_contract_has_the_record_of_a_run_with_its_types(api: ModuleType) -> None:
    lines = api.contract()
    assert {
        "GET /api/v1/runs/{id} 200 .run_id: string",
        "GET /api/v1/runs/{id} 200 .finished_at: null number",
        "POST /api/v1/runs needs body.plugin_id",
        "GET /api/v1/runs ?cursor: string",
    } <= lines
