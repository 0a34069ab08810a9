"""Problem bodies: the fields of every refusal go to the client, and the client raises what the app raises."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, errors
from holdfast.client.remote.error_decoder import error_of
from holdfast.errors import HoldfastError
from holdfast.http.problems import problem_of
from support.error_examples import TREE, WITH_FIELDS, example
from support.stories import play
from support.web import near, small_shop

SERVER = "http://127.0.0.1:4653"
AWAY = [kind for kind in TREE if issubclass(kind, errors.StoreUnavailable)]
REFUSALS = [kind for kind in TREE if problem_of(example(kind)) is not None and kind not in AWAY]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


def body_of(error: HoldfastError) -> tuple[int, bytes]:
    problem = problem_of(error)
    assert problem is not None
    answer = problem.answer()
    return answer.status_code, bytes(answer.body)


def changed(error: HoldfastError, **parts: Any) -> tuple[int, bytes]:
    """The answer for an error as another release would send it; what is None here is not in it."""
    status, body = body_of(error)
    merged = {**json.loads(body), **parts}
    return status, json.dumps({name: part for name, part in merged.items() if part is not None}).encode()


def test_every_error_that_a_client_can_cause_has_fields() -> None:
    assert {kind.__name__ for kind in REFUSALS} == {
        "IdempotencyConflict", "InvalidArguments", "InvalidPlan", "InvalidRunTransition", "InvalidTransition",
        "IdempotencyKeyReused", "LimitsChanged", "NotInDoubt", "PayloadTooLarge", "QuestionClosed", "QueueFull",
        "ScheduleExists", "StaleAttempt", "TransitionRefused", "UnknownBuild", "UnknownEntry", "UnknownJob",
        "UnknownSchedule",
    }  # fmt: skip
    assert set(REFUSALS) <= set(WITH_FIELDS)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", REFUSALS)
def test_the_client_raises_the_error_that_the_server_met(kind: type[HoldfastError], whole: bool) -> None:
    error = example(kind, whole=whole)
    status, body = body_of(error)
    raised = error_of(status, body, "asked", SERVER)
    for copy in (raised, pickle.loads(pickle.dumps(raised))):  # noqa: S301 - our own bytes
        assert type(copy) is kind
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


def test_a_problem_has_the_fields_by_name_and_those_of_older_releases() -> None:
    status, body = body_of(errors.InvalidRunTransition("queued", "failed", detail="it takes running"))
    params = {
        "current": "queued", "event": "failed", "machine": "Run", "target": "failed", "detail": "it takes running",
        "index": None, "rule": None,
    }  # fmt: skip
    problem = json.loads(body)
    assert (status, problem["code"], problem["params"]) == (409, "invalid_run_transition", params)
    assert [problem[name] for name in ("machine", "current", "target")] == ["Run", "queued", "failed"]
    problem = json.loads(body_of(errors.InvalidPlan("trip", ["a: no", "b: no"]))[1])
    assert problem["params"] == {"plan": "trip", "problems": ["a: no", "b: no"]}
    assert (problem["plan"], problem["problems"]) == ("trip", ["a: no", "b: no"])


def test_a_body_that_does_not_fit_has_the_params_of_its_code(small: App) -> None:
    async def story() -> None:
        async with near(small) as client:
            created = await client.post("/api/v1/runs", json={"plugin_id": 5, "entry_id": "greet"})
            message = "Expected `str`, got `int` - at `$.plugin_id`"
            problem = created.json()
            assert (created.status_code, problem["code"], problem["message"]) == (422, "invalid_arguments", message)
            assert problem["params"] == {"name": "the request", "reason": message}
            raised = error_of(created.status_code, created.content, "asked", SERVER)
            assert (type(raised), str(raised)) == (errors.InvalidArguments, message)

    play(story())


@pytest.mark.parametrize("kind", AWAY)
def test_a_problem_says_nothing_of_the_store(kind: type[HoldfastError]) -> None:
    arguments = ["/srv/jobs.db", "deleted"] if kind in WITH_FIELDS else ["postgresql://ana:pw@db/jobs: SELECT 1"]
    status, body = body_of(kind(*arguments))
    problem = json.loads(body)
    assert (status, problem["code"], "params" in problem) == (503, "store_unavailable", False)
    assert not any(part in body for part in (b"/srv", b"deleted", b"postgresql", b"ana", b"SELECT"))
    raised = error_of(status, body, "asked", SERVER)
    assert type(raised) is errors.StoreUnavailable
    assert str(raised) == f"{SERVER}: {problem['message']}: {problem['hint']}"


@pytest.mark.parametrize("params", [None, {}, {"id": "a"}, {"job": 7}])
def test_params_that_do_not_fit_leave_the_class_to_the_status_and_the_text_to_the_server(
    params: dict[str, Any] | None,
) -> None:
    raised = error_of(*changed(errors.UnknownJob("a"), params=params, detail="gone since May"), "asked", SERVER)
    assert isinstance(raised, errors.UnknownJob)
    assert (type(raised), raised.job, str(raised)) == (errors.UnknownJob, "asked", "gone since May")
    copy = pickle.loads(pickle.dumps(raised))  # noqa: S301 - our own bytes
    assert (type(copy), vars(copy), str(copy)) == (errors.UnknownJob, vars(raised), "gone since May")


def test_the_message_of_another_release_is_shown_with_the_fields() -> None:
    answer = changed(errors.UnknownJob("a"), params={"job": "a", "since": 5}, detail="job a does not exist")
    raised = error_of(*answer, "asked", SERVER)
    assert isinstance(raised, errors.UnknownJob)
    assert (type(raised), raised.job, str(raised)) == (errors.UnknownJob, "a", "job a does not exist")


TOLD = "no: do this"
ADVICE = "set HOLDFAST_TOKEN, or pass token=…; `holdfast tokens create` on the server's machine makes one"


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (400, errors.InvalidArguments, "no"),
        (401, errors.NotAllowed, f"no: {ADVICE}"),
        (403, errors.NotAllowed, TOLD),
        (404, errors.UnknownJob, "no"),
        (405, HoldfastError, f"{SERVER}: {TOLD}"),
        (408, errors.StoreUnavailable, f"{SERVER}: {TOLD}"),
        (409, HoldfastError, f"{SERVER}: {TOLD}"),
        (413, errors.PayloadTooLarge, "no"),
        (421, errors.InvalidSetting, f"server={SERVER!r}: {TOLD}"),
        (422, errors.InvalidArguments, "no"),
        (429, errors.StoreUnavailable, f"{SERVER}: {TOLD}"),
        (500, errors.StoreUnavailable, f"{SERVER}: {TOLD} (4f)"),
        (503, errors.StoreUnavailable, f"{SERVER}: {TOLD} (4f)"),
    ],
)
@pytest.mark.parametrize("params", [{}, {"job": "a"}])
def test_a_code_that_the_client_does_not_know_leaves_the_class_to_the_status(
    status: int, kind: type[HoldfastError], text: str, params: dict[str, str]
) -> None:
    problem = {"code": "of_next_year", "message": "no", "hint": "do this", "params": params}
    body = json.dumps({**problem, **({"id": "4f"} if status >= 500 else {})}).encode()
    raised = error_of(status, body, "asked", SERVER)
    assert (type(raised), str(raised)) == (kind, text)


def test_a_server_that_failed_is_unavailable_whatever_its_code() -> None:
    body = json.dumps({"code": "unknown_job", "message": "no", "params": {"job": "a"}}).encode()
    assert type(error_of(500, body, "asked", SERVER)) is errors.StoreUnavailable


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"code": 7, "message": "no"}', b'{"code": "a"}', b"\xff"]
)
def test_a_body_that_is_no_problem_is_not_from_a_holdfast_server(body: bytes) -> None:
    raised = error_of(404, body, "asked", SERVER)
    assert type(raised) is errors.StoreUnavailable
    assert "is that the address of a Holdfast server?" in str(raised)
