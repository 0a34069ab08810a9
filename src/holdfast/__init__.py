"""Holdfast: durable jobs for Python. Kill the process at any moment; the job goes on, and nothing is done twice.

This package imports the errors eagerly. It imports every other public name on first use. A command that only prints a
table, or a program that only catches our errors, does not load the engine.
"""

from typing import TYPE_CHECKING, Any

from holdfast import errors
from holdfast.errors import *  # noqa: F403 - the whole tree, as errors.__all__ lists it

if TYPE_CHECKING:
    from holdfast.authoring.functions import Backoff, Done, NotDone
    from holdfast.authoring.job_api import (
        RetryAfter,
        attempt,
        changed,
        check_cancelled,
        continue_as,
        external_key,
        gather,
        map,
        now,
        random,
        sleep,
        spend,
        uuid4,
        wait_for,
    )
    from holdfast.authoring.reports import export, progress
    from holdfast.authoring.secrets import Codec, Secret
    from holdfast.client.app import App
    from holdfast.client.remote.client import connect
    from holdfast.client.run_handle import RunHandle
    from holdfast.config import Config
    from holdfast.plans.builder import Draft
    from holdfast.plans.model import Plan, extend
    from holdfast.schedules.tick import Tick
    from holdfast.store.limits import Limits

__all__ = [
    "App", "Backoff", "Codec", "Config", "Done", "Draft", "Limits", "NotDone", "Plan", "RetryAfter", "RunHandle",
    "Secret", "Tick", "__version__", "attempt", "changed", "check_cancelled", "connect", "continue_as", "export",
    "extend", "external_key", "gather", "map", "now", "progress", "random", "sleep", "spend", "uuid4", "wait_for",
]  # fmt: skip
__all__ += errors.__all__

__version__ = "0.1.0"

_LAZY = {
    "App": "holdfast.client.app",
    "Backoff": "holdfast.authoring.functions",
    "Codec": "holdfast.authoring.secrets",
    "Config": "holdfast.config",
    "Done": "holdfast.authoring.functions",
    "Draft": "holdfast.plans.builder",
    "Limits": "holdfast.store.limits",
    "NotDone": "holdfast.authoring.functions",
    "Plan": "holdfast.plans.model",
    "RetryAfter": "holdfast.authoring.job_api",
    "RunHandle": "holdfast.client.run_handle",
    "Secret": "holdfast.authoring.secrets",
    "Tick": "holdfast.schedules.tick",
    "attempt": "holdfast.authoring.job_api",
    "changed": "holdfast.authoring.job_api",
    "check_cancelled": "holdfast.authoring.job_api",
    "connect": "holdfast.client.remote.client",
    "continue_as": "holdfast.authoring.job_api",
    "export": "holdfast.authoring.reports",
    "extend": "holdfast.plans.model",
    "external_key": "holdfast.authoring.job_api",
    "gather": "holdfast.authoring.job_api",
    "map": "holdfast.authoring.job_api",
    "now": "holdfast.authoring.job_api",
    "progress": "holdfast.authoring.reports",
    "random": "holdfast.authoring.job_api",
    "sleep": "holdfast.authoring.job_api",
    "spend": "holdfast.authoring.job_api",
    "uuid4": "holdfast.authoring.job_api",
    "wait_for": "holdfast.authoring.job_api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - a program that uses no lazy name does not need it

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
