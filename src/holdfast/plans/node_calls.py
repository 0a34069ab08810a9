"""An app's functions as the nodes of a plan call them: with the node's options, and with JSON results.

Other nodes refer to a result as JSON, so results stay in their recorded form. The function itself still receives
arguments converted to its type hints.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.authoring.functions import Call, JobFunction
from holdfast.authoring.signature import Signature
from holdfast.durations import seconds
from holdfast.errors import UnknownEntry
from holdfast.plans.checker import Names
from holdfast.plans.model import CallNode, JobNode, MapNode

F = TypeVar("F", Call[..., Any], JobFunction[..., Any])


class _JsonResults(Signature):
    """A signature whose results stay JSON values."""

    def __init__(self, of: Signature) -> None:
        self.__dict__.update(of.__dict__)

    def decode_result(self, encoded: Any) -> Any:
        """Return a stored result unchanged."""
        return encoded


class NodeFunctions:
    """The functions that the nodes of one plan call."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._plain_calls: dict[str, Call[..., Any]] = {}  # steps and tools for nodes without options
        self._jobs: dict[str, JobFunction[..., Any]] = {}

    def call(self, node: CallNode | MapNode) -> Call[..., Any]:
        """Return the step or tool of a node, with the node's options."""
        name = node.call or ""
        function = self._plain_calls.get(name)
        if function is None:
            function = self._plain_calls[name] = _copy(_known(name, self._names.calls))
        if node.retries is node.timeout is node.on_doubt is node.gate is None:
            return function
        function = _copy(function)
        if node.retries is not None:
            function.backoff = msgspec.structs.replace(function.backoff, retries=node.retries)
        if node.timeout is not None:
            function.timeout_seconds = seconds(node.timeout) or None
        if node.on_doubt is not None:
            function.on_doubt, function.reconcile = node.on_doubt, None
        if node.gate is not None:
            function.gate = self._names.gates[node.gate]
        return function

    def job(self, node: JobNode | MapNode) -> JobFunction[..., Any]:
        """Return the job of a node."""
        name = node.job or ""
        if name not in self._jobs:
            self._jobs[name] = _copy(_known(name, self._names.jobs))
        return self._jobs[name]


def _known(name: str, known: Any) -> Any:
    if name not in known:
        raise UnknownEntry(name, list(known))
    return known[name]


def _copy(function: F) -> F:
    other: F = object.__new__(type(function))
    other.__dict__.update(function.__dict__)
    other.__dict__["signature"] = _JsonResults(function.signature)
    return other
