"""Writes the pages of docs/ that are made from the code. `make docs` runs it; a test compares."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cli_page import cli_page
from holdfast import Plan
from holdfast.machines import JOB, READY, RUN, Table
from http_page import http_page

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """\
# The three state machines

<!-- Made by `make docs` from the tables in src/holdfast/machines. Do not edit. -->

Holdfast decides three things by table: what may happen to a job, what a user sees of it, and whether a part of the
system may take more work. Each table is enforced on every write. Everything below is made from those tables; nothing is
drawn by hand. `holdfast machines` prints the same.
"""

JOB_TEXT = """\
A job is one stream of events, and its state is what the table makes of them. A dash is a refusal: an event that comes
in that state raises `InvalidTransition` and changes nothing. Events that are not in this table never move a job.

`parked` and `retrying` are names under which a waiting job that waits long, and a queued job that is not due yet, are
shown. No event enters them, and their rows are those of `waiting` and `queued`.
"""

RUN_TEXT = """\
A run is what a user sees of a job. It is asked to change by the name of its next status; anything else raises
`InvalidRunTransition` with `.current` and `.target`. Nothing leaves `succeeded`, `failed`, `canceled` and `timeout`:
an operator's retry of a failed job opens a new run.
"""

READY_TEXT = """\
Readiness says whether more work may be taken now, and if not, why and what will change it. An exhausted budget and a
back-off are reported once, and `pending` ends by a wake from a source it named before: these are the three dashes. A
new machine begins in `ready`. [Readiness](readiness.md) tells the whole contract.
"""


def states_page() -> str:
    """Draw docs/states.md."""
    parts = [HEAD, _part("Job", JOB, JOB_TEXT), _part("Run", RUN, RUN_TEXT), _part("ReadyState", READY, READY_TEXT)]
    return "\n".join(parts)


def _part(title: str, table: Table[Any, Any], text: str) -> str:
    return f"## {title}\n\n{text}\n{table.markdown()}\n\n```mermaid\n{table.mermaid()}\n```\n"


def schema_page() -> str:
    """Write docs/plan.schema.json."""
    return json.dumps(Plan.schema(), indent=2) + "\n"


def cookbook_page() -> str:
    """Give docs/cookbook.md with the programs as they are, each where a comment names it."""
    page = (DOCS / "cookbook.md").read_text()
    return re.sub(
        r"^<!-- (examples/\S+) -->\n```py\n.*?^```$",
        lambda found: f"<!-- {found[1]} -->\n```py\n{(DOCS.parent / found[1]).read_text()}```",
        page,
        flags=re.MULTILINE | re.DOTALL,
    )


PAGES = {
    "cli.md": cli_page,
    "cookbook.md": cookbook_page,
    "http.md": http_page,
    "plan.schema.json": schema_page,
    "states.md": states_page,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (DOCS / page).write_text(write())
        print(f"wrote docs/{page}")
