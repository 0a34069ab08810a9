"""The page of a run: tables, charts, verdicts, settings, and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from compare.floors import judge
from compare.plot import Bar, Group, write_chart
from compare.results import Cell, Results
from compare.systems import BY_KEY, SYSTEMS, System

Row = tuple[str, str]  # key, name
Heading = tuple[str, str, str]  # column, figure, words
Format = Literal["whole", "tenth"]

STEP_HEADINGS: list[Heading] = [("c1", "rate", "1 job"), ("c8", "rate", "8 jobs"), ("c64", "rate", "64 jobs"),
                                ("c128", "rate", "128 jobs"), ("p2", "rate", "2 processes × 64")]  # fmt: skip
JOB_HEADINGS: list[Heading] = [("single", "rate", "single starts"), ("bulk", "rate", "bulk starts"),
                               ("drain", "rate", "drain"), ("drain2", "rate", "drain, 2 processes")]  # fmt: skip
LATENCY_HEADINGS = [("start", "start → code"), ("result", "start → result"), ("signal", "signal → code")]
IDLE_HEADINGS: list[Heading] = [("idle", "worker", "worker, % of a core"), ("idle", "server", "server, % of a core"),
                                ("idle", "memory", "memory, MB")]  # fmt: skip

INTRODUCTION = """\
# Benchmarks

Holdfast beside other job systems, measured in one run on one machine. `make compare` measures everything, and writes
this page and its pictures. Do not edit it.

## Read this first

- **Durability.** Every system flushes its commits to disk: `fsync` and `synchronous_commit` are on.
- **Steps of Holdfast run ahead of the disk.** A *step* may run again after a crash, so its job does not wait for the
  disk between two steps. The other systems wait after every step. A *tool* of Holdfast waits before the call, and its
  result is on disk before the job uses it. **Compare tools with the steps of others.**
- **The peers are tuned as their documentation advises**, and their settings are below. Systems that poll do so much
  more often than by default. That helps their latency and costs them when they are idle.
- **A rate** counts from the end of the first job until the database knows that the last job has ended.
- **A rate is the median of {repetitions}.** {ranges}Latencies, bytes and idle processes are measured once, over many
  samples or jobs. The systems take turns, so that a noisy moment does not hurt one alone. Compare ratios: single runs
  vary by 15 to 20 %.
- **Queues do less.** Procrastinate, pgqueuer, SAQ and huey have no steps, and keep little or no history of a job.
"""

NOT_COMPARED = """\
Not compared: systems that need a broker, or a server that neither pip nor npm installs, such as Celery, RQ, Temporal
and Hatchet."""

QUICK_NOTE = """
**This was a quick run** (`make compare QUICK=1`): short and noisy. Use it to see the order of magnitude.
"""


def write_page(results: Results, page: Path) -> None:
    """Write the page and its pictures, which go to the folder `images` next to it."""
    page.write_text(render(results, page.parent / "images"))


def render(results: Results, images: Path) -> str:
    """Write the pictures; return the text of the page."""
    pictured = [write(results, images) for write in (_steps, _jobs, _latency)]
    plain = [write(results) for write in (_disk, _idle, _floors, _systems, _machine)]
    parts = [_introduction(results), *pictured, *plain, REPEAT]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _introduction(results: Results) -> str:
    one = results.repetitions == 1
    text = INTRODUCTION.format(
        repetitions="one measurement" if one else f"{results.repetitions} measurements",
        ranges="" if one else "The range is in brackets. ",
    )
    remarks = "".join(f"\n**Of this run.** {remark}\n" for remark in results.remarks)
    return text + (QUICK_NOTE if results.quick else "") + remarks


def _steps(results: Results, images: Path) -> str:
    rows = step_rows(results)
    picture = write_chart(
        images, "compare-steps", "Ten-step jobs", "steps a second, more is better; compare our tools with their steps",
        [_group(results, rows, (column, "rate", f"{words} at once" if "process" not in words else words))
         for column, _, words in STEP_HEADINGS if column in {"c1", "c64", "p2"}],
    )  # fmt: skip
    return f"""\
## Ten-step jobs

Steps a second of jobs with ten steps, one after the other, by the number of jobs at once.

{picture}

{table(results, rows, STEP_HEADINGS)}
"""


def _jobs(results: Results, images: Path) -> str:
    rows = system_rows(results)
    picture = write_chart(
        images, "compare-jobs", "Jobs that do nothing", "jobs a second, more is better",
        [_group(results, rows, heading) for heading in JOB_HEADINGS],
    )  # fmt: skip
    return f"""\
## Starts and drains

Jobs a second. *Single starts*: one caller starts jobs one after the other. *Bulk starts*: in the fastest durable way.
*Drain*: workers run queued jobs that do nothing, up to {results.drain_jobs_max:,} jobs, fewer for slow systems.

{picture}

{table(results, rows, JOB_HEADINGS)}
"""


def _latency(results: Results, images: Path) -> str:
    rows = system_rows(results)
    headings: list[Heading] = [
        (column, key, f"{words}, {key}") for column, words in LATENCY_HEADINGS for key in ("p50", "p99")
    ]
    picture = write_chart(
        images, "compare-latency", "Latency", "milliseconds, p50, less is better",
        [_group(results, rows, (column, "p50", words), "tenth") for column, words in LATENCY_HEADINGS],
    )  # fmt: skip
    return f"""\
## Latency

Milliseconds in an idle system, with the caller and the worker in two processes; {results.samples} samples each.
*Start → result* includes that the caller learns of the end.

{picture}

{table(results, rows, headings, "tenth")}
"""


def _disk(results: Results) -> str:
    rows = [row for row in step_rows(results) if ":" not in row[0]]
    return f"""\
## Bytes on disk

Bytes of a job with ten steps that has ended, with its indexes, as the database leaves it. Holdfast keeps every event
and its hash. Restate keeps a log and a store of its own, and compacts them later.

{table(results, rows, [("bytes", "bytes", "bytes of a job")])}
"""


def _idle(results: Results) -> str:
    return f"""\
## Idle

One worker process while {results.waiting:,} jobs wait and none runs. In systems without signals, the jobs are due in
some hours. *Server* is the database server, or the server of Restate, whose memory counts too.

{table(results, system_rows(results), IDLE_HEADINGS, "tenth")}
"""


def _floors(results: Results) -> str:
    lines = ["| floor | ratio | due | |", "|---|---:|---:|---|"]
    for verdict in judge(results):
        ratio = "–" if verdict.ratio is None else f"{verdict.ratio:.2f}"
        due = f"{'≤' if verdict.floor.at_most else '≥'} {verdict.floor.limit:g}"
        lines.append(f"| {verdict.floor.what} | {ratio} | {due} | {verdict.word} |")
    return "\n".join([
        "## Floors", "",
        "What Holdfast sets out to reach beside its peers. `make compare FLOORS=1` fails if one is missed.", "",
        *lines,
    ])  # fmt: skip


def _systems(results: Results) -> str:
    lines = ["| system | version | settings | to know |", "|---|---|---|---|"]
    lines += [
        f"| {system.name} | {results.versions[system.key]} | {system.settings} | {system.notes} |"
        for system in SYSTEMS
        if system.key in results.versions
    ]
    return "\n".join(["## Systems and settings", "", *lines, "", NOT_COMPARED])


def _machine(results: Results) -> str:
    machine = results.machine
    commits = ", ".join(f"{name} {rate:,.0f}" for name, rate in machine.commits.items())
    lines = [
        ("cores", f"{machine.cores}, {machine.processor}"), ("memory", f"{machine.memory_gb:g} GB"),
        ("system", machine.system), ("Python", machine.python), ("PostgreSQL", f"{machine.postgres}, on this machine"),
        ("SQLite of Holdfast", machine.sqlite), ("single-row commits a second on one connection", commits),
        ("day", results.day),
    ]  # fmt: skip
    rows = "\n".join(f"| {name} | {value} |" for name, value in lines)
    return f"""\
## Machine

| | |
|---|---|
{rows}

PostgreSQL has `shared_buffers=256MB`, `max_wal_size=4GB`, and its defaults. All processes share the cores.
"""


REPEAT = """\
## Repeat it

```sh
make compare           # everything, rates three times: about half an hour
make compare QUICK=1   # a small run, once: some minutes
```

The command installs every peer into an environment of its own in `.cache/compare`, from the pinned versions in
`bench/compare/requirements`. It needs Python 3.11 and, for the server of Restate, npm. A peer that cannot be installed
or that fails has the reason in its cells. The figures of the last run are in `bench/compare/results.json`.
"""


# Tables


def system_rows(results: Results) -> list[Row]:
    """Return the systems of a run."""
    return [(system.key, system.name) for system in SYSTEMS if system.key in results.versions]


def step_rows(results: Results) -> list[Row]:
    """Return the systems that have steps, Holdfast twice."""
    rows = []
    for system in SYSTEMS:
        for job in system.jobs if system.key in results.versions else ():
            key = system.key if job == "steps" else f"{system.key}:{job}"
            rows.append((key, f"{system.name}, {job}" if system.ours else system.name))
    return rows


def table(results: Results, rows: Sequence[Row], headings: Sequence[Heading], form: Format = "whole") -> str:
    """Return a table of figures."""
    lines = [f"| | {' | '.join(words for _, _, words in headings)} |", f"|---|{'---:|' * len(headings)}"]
    for key, name in rows:
        cells = [cell_words(results.cell(key, column), figure, form) for column, figure, _ in headings]
        shown = f"**{name}**" if _system(key).ours else name
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell_words(cell: Cell, figure: str, form: Format) -> str:
    """Return the median and range of a cell, or why there is none."""
    if cell.unsupported:
        return cell.unsupported
    median = cell.median(figure)
    if median is None:
        return cell.failures[-1] if cell.failures else "not measured"
    words = number(median, form)
    if len(cell.figures) > 1:
        low, high = cell.range(figure)
        words += f" ({number(low, form)}–{number(high, form)})"
    if cell.failures:
        words += f"; failed {len(cell.failures)} of {len(cell.failures) + len(cell.figures)} times: {cell.failures[-1]}"
    return words


def number(value: float, form: Format) -> str:
    """Return a number as readers like it."""
    return f"{value:,.0f}" if form == "whole" else f"{value:,.1f}"


def _group(results: Results, rows: Sequence[Row], heading: Heading, form: Format = "whole") -> Group:
    column, figure, words = heading
    bars = []
    for key, name in rows:
        cell, system = results.cell(key, column), _system(key)
        median = cell.median(figure)
        kind: Literal["ours", "ours too", "peer"] = (
            "peer" if not system.ours else "ours" if system.database == "postgres" else "ours too"
        )
        shown = number(median, form) if median is not None else cell.unsupported or "failed"
        bars.append(Bar(name, median, shown, kind))
    return Group(words, bars)


def _system(row: str) -> System:
    return BY_KEY[row.partition(":")[0]]
