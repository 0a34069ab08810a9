"""The jobs of an app as others see them: names, a line about each, and a JSON Schema of the arguments."""

from __future__ import annotations

from typing import Any

from holdfast.authoring.functions import JobFunction
from holdfast.client.views import Entry

__all__ = ["described"]


def described(job: JobFunction[..., Any]) -> Entry:
    """Describe a job."""
    lines = (job.__doc__ or "").strip().splitlines()
    return Entry(
        plugin_id=job.plugin,
        entry_id=job.name,
        description=lines[0] if lines else "",
        queue=job.queue,
        deadline_seconds=job.deadline_seconds or None,
        parameters=job.signature.schema(),
    )
