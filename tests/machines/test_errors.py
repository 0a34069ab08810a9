"""Every error of the tree: its fields go over a wire or into another process, and come back the same."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, code_of, from_params, params_of
from support.error_examples import TREE, WITH_FIELDS, example


def over_the_wire(error: HoldfastError) -> HoldfastError | None:
    params = json.loads(json.dumps(params_of(error)))
    return from_params(code_of(type(error)), params, str(error))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", TREE)
def test_an_error_is_built_again_from_its_code_and_params(kind: type[HoldfastError], whole: bool) -> None:
    error = example(kind, whole=whole)
    for copy in (over_the_wire(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert type(copy) is kind
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


@pytest.mark.parametrize("kind", WITH_FIELDS)
def test_an_error_with_fields_needs_no_message_to_be_built_again(kind: type[HoldfastError]) -> None:
    error = example(kind)
    params = params_of(error)
    assert list(params) == list(inspect.signature(kind).parameters), "every argument is a param, by its name"
    copy = from_params(code_of(kind), params)
    assert (type(copy), vars(copy or error), str(copy)) == (kind, vars(error), str(error))


@pytest.mark.parametrize("kind", WITH_FIELDS)
def test_every_field_is_needed_or_has_a_default(kind: type[HoldfastError]) -> None:
    params = params_of(example(kind))
    for argument in inspect.signature(kind).parameters.values():
        others = {name: value for name, value in params.items() if name != argument.name}
        built = from_params(code_of(kind), others)
        assert (built is None) == (argument.default is argument.empty)


def test_the_tree_has_every_class_of_the_module() -> None:
    def below(kind: type[HoldfastError]) -> set[type[HoldfastError]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    ours = {kind for kind in below(HoldfastError) if kind.__module__ == errors.__name__}
    assert {kind for kind in ours if not kind.__name__.startswith("_")} == set(TREE)


def test_a_code_is_the_class_name_in_snake_case_and_belongs_to_one_class() -> None:
    assert code_of(errors.UnknownJob) == "unknown_job"
    assert code_of(errors.InvalidRunTransition) == "invalid_run_transition"
    assert code_of(errors.NotInDoubt) == "not_in_doubt"
    assert code_of(errors.QuestionClosed) == "question_closed"
    assert len({code_of(kind) for kind in TREE}) == len(TREE)


def test_states_and_sets_are_params_as_plain_json() -> None:
    from holdfast.machines import JobState

    refused = errors.InvalidTransition(JobState.QUEUED, "job_completed", index=4, rule="J3")
    assert params_of(refused) == {
        "current": "queued", "event": "job_completed", "machine": "Job", "target": None, "detail": "", "index": 4,
        "rule": "J3",
    }  # fmt: skip
    assert type(params_of(refused)["current"]) is str
    registered = params_of(errors.InvalidWake("moon", frozenset({"timer", "io_ready"})))["registered"]
    assert type(registered) is list
    assert sorted(registered) == ["io_ready", "timer"]


@pytest.mark.parametrize(
    ("code", "params"),
    [
        ("no_such_error", {}),
        ("UnknownJob", {"job": "a"}),
        ("unknown_job", {}),
        ("unknown_job", {"id": "a"}),
        ("unknown_job", {"job": 7}),
        ("unknown_job", {"job": None}),
        ("unknown_entry", {"name": "a", "known": "b"}),
        ("unknown_entry", {"name": "a", "known": [1]}),
        ("queue_full", {"queue": "a", "depth": "many", "retry_after_seconds": 1}),
        ("queue_full", {"queue": "a", "depth": 1.5, "retry_after_seconds": 1}),
    ],
)
def test_what_does_not_fit_builds_nothing(code: str, params: dict[str, Any]) -> None:
    assert from_params(code, params, "words") is None


def test_params_of_a_later_release_are_left_out_and_its_message_is_kept() -> None:
    error = from_params("unknown_job", {"job": "a", "since": 3}, "no job is named a")
    assert isinstance(error, errors.UnknownJob)
    assert type(error) is errors.UnknownJob
    assert (error.job, str(error)) == ("a", "no job is named a")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), copy.job, str(copy)) == (errors.UnknownJob, "a", "no job is named a")


def test_an_error_of_a_user_may_have_code_and_params_of_its_own() -> None:
    class Declined(errors.Permanent):
        def __init__(self, code: int, params: list[str]) -> None:
            self.code, self.params = code, params
            super().__init__(f"declined with {code}")

    assert str(Declined(51, ["card"])) == "declined with 51"
