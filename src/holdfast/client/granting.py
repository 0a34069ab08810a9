"""A grant: more for a run to spend than its budget says. It is a signal of Holdfast's own, kept until it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.authoring.gating import amounts
from holdfast.ids import new_id
from holdfast.store import SendSignal
from holdfast.store.decide import BUDGET_KEY

__all__ = ["granting"]


def granting(
    job: str,
    given: Mapping[str, Any] | None = None,
    *,
    actor: str | None = None,
    id: str | None = None,  # noqa: A002 - the name users know
    **more: Any,
) -> SendSignal:
    """Put together the command that grants amounts to a job; who granted them is in the signal's id.

    Raises:
        InvalidArguments: an amount that is none.
    """
    name = f"grant by {actor or 'somebody'}: {id or new_id()}"
    return SendSignal(job, BUDGET_KEY, amounts("grant", {**(given or {}), **more}), name)
