"""The page docs/reference/api.md: the public names of `holdfast`, with their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_overloads

import holdfast
from holdfast import App, RunHandle
from holdfast.authoring.functions import Call, JobFunction
from holdfast.client.interface import Client
from holdfast.client.schedules.schedules_interface import Backfill, ScheduleInfo, Schedules, TickTime
from holdfast.errors import HoldfastError
from holdfast.schedules.outcome import TickOutcome

__all__ = ["api_page"]

HEAD = """\
# The Python API

<!-- Made by `make docs` from the docstrings of the package. Do not edit. -->

`from holdfast import …` gives every name on this page, except `JobFunction` and `Call`, which decorators return, and
`Schedules`, which is `app.schedules`, with what its methods return. Most methods exist twice: `start` blocks, and
`astart` is a coroutine. The page lists the plain one. [Job code](job-code.md) says what works inside a job.

| you want the options of | see |
|---|---|
| `@app.job`, `@app.step`, `@app.tool` | [job](#job), [step](#step), [tool](#tool) |
| one start of a job: `checkout.options(…).start(…)` | [JobFunction](#jobfunction) |
| one call of a step or tool: `charge.options(…)(…)` | [Call](#call) |
| `@app.schedule` | [schedule](#schedule) |
| an app, a worker, a server | [Settings](settings.md) |
"""

# What a decorator returns. Only these methods are for users.
RETURNED = {JobFunction: ("start", "options"), Call: ("options",)}
OF_SCHEDULES = {
    Schedules: tuple(name for name in vars(Schedules) if f"a{name}" in vars(Schedules)),
    ScheduleInfo: (),
    TickOutcome: (),
    TickTime: (),
    Backfill: (),
}
SECTIONS = ("Args", "Options of the decorator", "Attributes", "Raises", "Returns", "Yields")
PAIRS = {f"a{name}" for name in vars(Client) if f"a{name}" in vars(Client)}


def api_page() -> str:
    """Return docs/reference/api.md."""
    names = [name for name in holdfast.__all__ if not name.startswith("_")]
    things = {name: getattr(holdfast, name) for name in names}
    errors = {name: thing for name, thing in things.items() if _is_error(thing)}
    classes = {name: thing for name, thing in things.items() if inspect.isclass(thing) and name not in errors}
    functions = {name: thing for name, thing in things.items() if name not in errors and name not in classes}
    first = {"App": App, "RunHandle": RunHandle}
    classes = first | {name: thing for name, thing in classes.items() if name not in first}
    parts = [HEAD, "## Functions\n", *(_described(name, thing, "###") for name, thing in functions.items())]
    for name, thing in classes.items():
        parts += [_described(name, thing, "##"), *_methods(thing)]
        if thing is RunHandle:
            returned = RETURNED | OF_SCHEDULES
            parts += [part for kind, methods in returned.items() for part in _returned(kind, methods)]
    rows = [f"| `{name}` | {_cell(thing)} |" for name, thing in errors.items()]
    parts.append(
        "## Errors\n\n`holdfast.errors` has the whole tree.\n\n| error | means |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    return "\n".join(parts)


def _returned(kind: type, methods: tuple[str, ...]) -> list[str]:
    """Return the entries of what a decorator returns; users never call its constructor."""
    heading = f"## {kind.__name__}\n\n{_text(inspect.getdoc(kind) or '')}\n"
    return [heading, *(_described(f"{kind.__name__}.{name}", getattr(kind, name), "###") for name in methods)]


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, HoldfastError)


def _methods(kind: type) -> list[str]:
    members = [(name, member) for name, member in inspect.getmembers(kind) if not name.startswith("_")]
    return [
        _described(name, member, "###")
        for name, member in members
        if (inspect.isfunction(member) or inspect.ismethod(member)) and name not in PAIRS and _own(member)
    ]


def _own(member: Any) -> bool:
    """Whether a method is ours, and not of a base from another package."""
    return str(member.__module__).startswith("holdfast")


def _described(name: str, thing: Any, level: str) -> str:
    try:
        overloads = get_overloads(thing)  # of a decorator, the last one names its options
        signature = str(inspect.signature(overloads[-1] if overloads else thing))
    except (TypeError, ValueError):
        signature = ""
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)  # annotations, which are kept as text
    signature = re.sub(r"<[^>]*>", "…", signature).replace("self, ", "").replace("(self)", "()")
    shown = f"```text\n{name}{signature}\n```\n\n" if signature else ""
    return f"{level} {name}\n\n{shown}{_text(inspect.getdoc(thing) or '')}\n"


def _text(docstring: str) -> str:
    """Turn the sections of a docstring into lists."""
    lines: list[str] = []
    section = ""
    for line in docstring.splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            section = line.rstrip(":")
            lines += [f"{section}:", ""]
        elif section and (item := re.match(r" {4}(\*{0,2}\w[\w, ]*): (.*)", line)) is not None:
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            section = "" if line.strip() else section
            lines.append(line)
    return "\n".join(lines)


def _cell(kind: type) -> str:
    first = (inspect.getdoc(kind) or "").split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")
