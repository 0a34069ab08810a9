"""Writes the generated pages of docs/. `make docs` runs it, and a test compares the pages."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from api_page import api_page
from cli_page import cli_page
from diagrams import DOUBT, FLOW, picture, state_picture
from holdfast import Plan
from holdfast.machines import JOB, READY, RUN, Table
from http_page import http_page

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """\
# The three state machines

<!-- Made by `make docs` from the tables in src/holdfast/machines. Do not edit. -->

Three tables decide what may happen: one for jobs, one for runs (what a user sees of a job), and one for readiness (may
a part of the system take more work). Every write is checked against them. The tables and diagrams below are generated
from the code. `holdfast machines` prints the same.
"""

JOB_TEXT = """\
A job is a stream of events. The table derives its state from them. A dash is a refusal: the event raises
`InvalidTransition` in that state and changes nothing. Events that are not in this table never change the state.

`parked` and `retrying` are display names. A waiting job that waits long is shown as `parked`. A queued job that is not
due yet is shown as `retrying`. No event enters them, and their rows equal those of `waiting` and `queued`.
"""

RUN_TEXT = """\
A run is what a user sees of a job. A transition names the next status. Any transition that is not in the table raises
`InvalidRunTransition` with `.current` and `.target`. `succeeded`, `failed`, `canceled` and `timeout` are final. If an
operator retries a failed job, a new run begins.
"""

READY_TEXT = """\
Readiness says whether more work may be taken now. If not, it says why, and what will change that. An exhausted budget
and a back-off are reported once. `pending` ends with a wake from a source that it named before. These are the three
dashes. A new machine starts in `ready`. [Readiness](readiness.md) describes the whole contract.
"""


def states_page() -> str:
    """Return docs/reference/states.md."""
    parts = [HEAD, _part("Job", JOB, JOB_TEXT), _part("Run", RUN, RUN_TEXT), _part("ReadyState", READY, READY_TEXT)]
    return "\n".join(parts)


def _part(title: str, table: Table[Any, Any], text: str) -> str:
    image = f"![every transition of {title}](../images/{title.lower()}-states.svg)"
    return f"## {title}\n\n{text}\n{table.markdown()}\n\n{image}\n"


def schema_page() -> str:
    """Return docs/reference/plan.schema.json."""
    return json.dumps(Plan.schema(), indent=2) + "\n"


def cookbook_page() -> str:
    """Return docs/tutorial/cookbook.md with each program in the place that a comment names."""
    page = (DOCS / "tutorial" / "cookbook.md").read_text()
    return re.sub(
        r"^<!-- (examples/\S+) -->\n```py\n.*?^```$",
        lambda found: f"<!-- {found[1]} -->\n```py\n{(DOCS.parent / found[1]).read_text()}```",
        page,
        flags=re.MULTILINE | re.DOTALL,
    )


PAGES = {
    "reference/api.md": api_page,
    "reference/cli.md": cli_page,
    "images/doubt.svg": lambda: picture(DOUBT),
    "images/flow.svg": lambda: picture(FLOW),
    "images/job-states.svg": lambda: state_picture(JOB),
    "images/readystate-states.svg": lambda: state_picture(READY),
    "images/run-states.svg": lambda: state_picture(RUN),
    "tutorial/cookbook.md": cookbook_page,
    "reference/http.md": http_page,
    "reference/plan.schema.json": schema_page,
    "reference/states.md": states_page,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (DOCS / page).write_text(write())
        print(f"wrote docs/{page}")
