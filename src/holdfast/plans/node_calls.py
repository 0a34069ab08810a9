"""The functions of an app as a plan calls them: with the node's own options, and giving JSON values.

What a node gives is referred to by others as JSON, so results are handed on as they are recorded; the function itself
is called with what its type hints say, as ever.
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

__all__ = ["NodeFunctions"]

F = TypeVar("F", Call[..., Any], JobFunction[..., Any])


class _JsonResults(Signature):
    """A signature whose results stay JSON values."""

    def __init__(self, of: Signature) -> None:
        self.__dict__.update(of.__dict__)

    def decode_result(self, plain: Any) -> Any:
        """Give a stored result as it is."""
        return plain


class NodeFunctions:
    """What the nodes of one plan call."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._usual: dict[str, Call[..., Any]] = {}  # steps and tools as nodes without options call them
        self._jobs: dict[str, JobFunction[..., Any]] = {}

    def call(self, node: CallNode | MapNode) -> Call[..., Any]:
        """Give the step or tool of a node."""
        name = node.call or ""
        made = self._usual.get(name)
        if made is None:
            made = self._usual[name] = _copy(_known(name, self._names.calls))
        if node.retries is node.timeout is node.on_doubt is node.gate is None:
            return made
        made = _copy(made)
        if node.retries is not None:
            made.backoff = msgspec.structs.replace(made.backoff, retries=node.retries)
        if node.timeout is not None:
            made.timeout_seconds = seconds(node.timeout) or None
        if node.on_doubt is not None:
            made.on_doubt, made.reconcile = node.on_doubt, None
        if node.gate is not None:
            made.gate = self._names.gates[node.gate]
        return made

    def job(self, node: JobNode | MapNode) -> JobFunction[..., Any]:
        """Give the job of a node."""
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
