"""Runs every torture of the repository for as long as asked, and writes one tally to `docs/tally.md`.

`make nightly HOURS=8` or `make nightly MINUTES=10` runs it. Each part gets its share of the time, and repeats rounds
with new seeds until its time is over. A part is a process of its own, so that one that fails or hangs ends alone. The
command fails if a part has failed. A failure names the seed. The same round again, as far as processes can repeat it:

    python tools/nightly.py part torture-sqlite --seed 1763350000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

PAGE = ROOT / "docs" / "tally.md"
SIMULATOR = ROOT / "tests" / "support" / "simulation"
COLUMNS = ("seeds", "kills", "restarts", "faults", "runs", "tools")
SIMULATED = 50  # seeds of the simulator in one round
OVERTIME_SECONDS = 600.0  # that the last round of a part may take after its time is over
REASON_MAX = 300  # characters of a failure on the page


class Part(NamedTuple):
    """One torture.

    Attributes:
        about: what it does, for the page.
        share: of the time, in proportion to the others.
        round_: runs one round in a folder with a seed, returns its counts, and raises if something is wrong.
    """

    about: str
    share: float
    round_: Callable[[Path, int], Counter[str]]


class Outcome(NamedTuple):
    """What a part has counted, how long it took, and why it failed; empty if it did not."""

    counts: Counter[str]
    seconds: float
    failure: str


# Rounds


def torture(backend: str, folder: Path, seed: int) -> Counter[str]:
    """Kill worker processes among runs."""
    from support.postgres import fresh_url  # noqa: PLC0415 - of the folder that was added above
    from support.scripts import load  # noqa: PLC0415

    killing = load(ROOT / "tests" / "processes" / "test_killed_processes.py")
    url = f"sqlite:///{folder}/jobs.db" if backend == "sqlite" else fresh_url()
    tally = asyncio.run(killing.torture(folder, url, 40, 40, seed))
    return Counter(seeds=1, kills=tally.kills, restarts=tally.kills, runs=tally.runs, tools=tally.tools)


def races(backend: str, folder: Path, seed: int) -> Counter[str]:
    """Race completion, cancel, deadline, retry, pause and signals."""
    from support.scripts import load  # noqa: PLC0415

    orders = 200 if backend == "sqlite" else 50
    load(ROOT / "tests" / "crashes" / "test_run_races.py").races(backend, folder, orders, seed * 1000)
    return Counter(seeds=orders, runs=orders)


def plans(_: Path, seed: int) -> Counter[str]:
    """Let every commit of a random plan go wrong, in each way."""
    from support.planned import NODES_MAX, random_plan  # noqa: PLC0415
    from support.planned_crashes import MODES, at_every_commit  # noqa: PLC0415

    data = random_plan(seed, NODES_MAX)
    faults = sum(asyncio.run(at_every_commit(None, data, mode)) for mode in MODES)
    return Counter(seeds=1, faults=faults, runs=faults)


def programs(_: Path, seed: int) -> Counter[str]:
    """Cut a random job program after every event, and end it at every commit."""
    from support.scripts import load  # noqa: PLC0415

    faults = load(ROOT / "tools" / "programs.py").each_way(seed).total()
    return Counter(seeds=1, faults=faults, runs=faults)


def limits(backend: str, folder: Path, seed: int) -> Counter[str]:
    """Kill workers of queues with limits, and overload one."""
    from support.limited import torture as kill  # noqa: PLC0415
    from support.overload import overload  # noqa: PLC0415
    from support.postgres import fresh_url  # noqa: PLC0415

    def url(name: str) -> str:
        return f"sqlite:///{folder / name}.db" if backend == "sqlite" else fresh_url()

    tally = asyncio.run(kill(url("limits"), 15, seed=seed))
    assert tally.holds(), f"a limit did not hold: {tally}"
    told = asyncio.run(overload(url("overload"), 10))
    assert told.as_declared(), f"the overload was not as declared: {told}"
    return Counter(seeds=1, kills=tally.kills, restarts=tally.kills, runs=tally.started + told.accepted)


def ticks(backend: str, folder: Path, seed: int) -> Counter[str]:
    """Kill processes that advance schedules, over virtual time."""
    from support.killed_schedules import killed_year  # noqa: PLC0415

    processes = 4
    tally = asyncio.run(killed_year(backend, folder, days=60, steps=24, processes=processes, seed=seed))
    return Counter(seeds=1, kills=tally.kills, restarts=tally.kills - processes, runs=tally.fired)


def deploys(folder: Path, seed: int) -> Counter[str]:
    """Roll builds out and back, and kill workers."""
    from support.postgres import fresh_url  # noqa: PLC0415
    from support.rollout import roll_out  # noqa: PLC0415

    tally = asyncio.run(roll_out(folder, fresh_url(), 2, 5, seed))
    return Counter(seeds=1, kills=tally.kills, runs=tally.runs, tools=tally.tools)


def silence(folder: Path, seed: int) -> Counter[str]:
    """Break the network between workers and PostgreSQL."""
    from support.scripts import load  # noqa: PLC0415

    tally = asyncio.run(load(ROOT / "tests" / "processes" / "test_silent_networks.py").endure(folder, 3, seed))
    assert not tally.wrong(), "; ".join(tally.wrong())
    return Counter(seeds=1, faults=tally.faults, runs=tally.runs, tools=tally.calls)


def neighbours(folder: Path, _: int) -> Counter[str]:
    """Run workers on a SQLite file that other programs read, vacuum, back up and copy."""
    from support.scripts import load  # noqa: PLC0415

    tally = asyncio.run(load(ROOT / "tests" / "processes" / "test_neighbours.py").neighbours(folder, 15))
    return Counter(seeds=1, runs=tally.runs)


def simulator(_: Path, seed: int) -> Counter[str]:
    """Simulate workers, clients and faults in virtual time."""
    first = seed * SIMULATED
    tally = importlib.import_module("support.simulation.campaign").campaign(range(first, first + SIMULATED))
    assert not tally.failures, f"python tools/simulate.py --seed {tally.failures[0].seed}: {tally.failures[0].text}"

    def like(*words: str) -> int:
        return sum(count for name, count in tally.counts.items() if any(word in name for word in words))

    return Counter(
        seeds=tally.seeds, kills=like("crash", "kill"), restarts=like("restart"),
        faults=like("refused", "late", "slow", "lost"), runs=tally.counts["jobs"], tools=like("acts of tools"),
    )  # fmt: skip


def _on(round_: Callable[[str, Path, int], Counter[str]], backend: str) -> Callable[[Path, int], Counter[str]]:
    return lambda folder, seed: round_(backend, folder, seed)


PARTS: dict[str, Part] = {
    "torture-sqlite": Part("worker processes are killed with SIGKILL, on SQLite", 3, _on(torture, "sqlite")),
    "torture-postgres": Part("worker processes are killed with SIGKILL, on PostgreSQL", 3, _on(torture, "postgres")),
    "races-sqlite": Part("ends, cancels, deadlines, retries and signals race, on SQLite", 1, _on(races, "sqlite")),
    "races-postgres": Part("the same races on PostgreSQL", 1, _on(races, "postgres")),
    "plans": Part("every commit of random plans goes wrong", 2, plans),
    "programs": Part("random job programs are cut after every event and end at every commit", 2, programs),
    "limits-sqlite": Part("workers of queues with limits are killed, and a queue is overloaded, on SQLite", 1,
                          _on(limits, "sqlite")),
    "limits-postgres": Part("the same limits on PostgreSQL", 1, _on(limits, "postgres")),
    "ticks-sqlite": Part("processes that advance schedules are killed, on SQLite", 1, _on(ticks, "sqlite")),
    "ticks-postgres": Part("the same schedules on PostgreSQL", 1, _on(ticks, "postgres")),
    "deploys": Part("builds are rolled out and back, and workers are killed, on PostgreSQL", 1, deploys),
    "neighbours": Part("other programs read, vacuum, back up and copy a SQLite file under load", 1, neighbours),
    "silence": Part("the network between workers and PostgreSQL breaks", 2, silence),
}  # fmt: skip


if SIMULATOR.exists():
    PARTS["simulator"] = Part("workers, clients and faults are simulated in virtual time", 3, simulator)


# One part, in its own process


def work(name: str, seconds: float, seed: int) -> int:
    """Repeat the rounds of a part until its time is over, and print the counts of each as a line of JSON."""
    end = time.monotonic() + seconds
    while True:
        try:
            with tempfile.TemporaryDirectory(prefix="holdfast-nightly-") as folder:
                counts = PARTS[name].round_(Path(folder), seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        print(json.dumps(counts), flush=True)
        seed += 1
        if time.monotonic() >= end:
            return 0


# All parts


def run_part(name: str, seconds: float, seed: int) -> Outcome:
    """Run a part in a process of its own."""
    command = [sys.executable, __file__, "part", name, "--seconds", str(seconds), "--seed", str(seed)]
    return run_command(command, seconds)


def run_command(command: list[str], seconds: float) -> Outcome:
    """Run a process that prints its counts. End it, and all that it has started, if it takes too long."""
    begun, failure = time.monotonic(), ""
    with tempfile.TemporaryFile("w+") as written, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=written, stderr=errors, cwd=ROOT, start_new_session=True)
        try:
            code = process.wait(seconds + OVERTIME_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)  # a group of its own: the processes that it has started end with it
            process.wait()
            code, failure = 1, f"it did not end {OVERTIME_SECONDS:g} s after its time was over"
        written.seek(0)
        errors.seek(0)
        lines, text = written.read().splitlines(), errors.read().strip()
    if code and not failure:
        failure = " ".join(text.splitlines()[-2:]) or f"exit {code}"
        print(text, file=sys.stderr)
    return Outcome(counted(lines), time.monotonic() - begun, failure)


def counted(lines: list[str]) -> Counter[str]:
    """Sum the counts in lines of JSON. Other lines are left out."""
    total: Counter[str] = Counter()
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            read = json.loads(line)
            if isinstance(read, dict):
                total.update({name: int(read.get(name, 0)) for name in COLUMNS})
    return total


def run_all(seconds: float, seed: int) -> dict[str, Outcome]:
    """Run all parts, one after the other. Print each."""
    each = seconds / sum(part.share for part in PARTS.values())
    outcomes: dict[str, Outcome] = {}
    for name, part in PARTS.items():
        outcome = outcomes[name] = run_part(name, each * part.share, seed)
        counts = ", ".join(f"{outcome.counts[column]:,} {column}" for column in COLUMNS if outcome.counts[column])
        print(f"{name:17} {outcome.failure or 'ok':10.60} {counts}; {outcome.seconds:.0f} s", flush=True)
    return outcomes


# The page


def page_of(outcomes: dict[str, Outcome], *, seed: int, facts: dict[str, str]) -> str:
    """Return the page of a run."""
    failed = {name: outcome for name, outcome in outcomes.items() if outcome.failure}
    total: Counter[str] = Counter()
    for outcome in outcomes.values():
        total += outcome.counts
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    lost = "0" if not failed else "see below"
    return "\n".join([
        "# Tally",
        "",
        "What the last long run of the tests that kill, break and race has counted. `make nightly` writes this page",
        "from a real run. Do not edit it.",
        "",
        *(f"- {name}: {fact}" for name, fact in facts.items()),
        f"- first seed: {seed}",
        "",
        "| part | " + " | ".join(COLUMNS) + " | lost | twice | minutes |",
        "|---|" + "---:|" * (len(COLUMNS) + 3),
        *(_row(name, outcome) for name, outcome in outcomes.items()),
        f"| **all** | {_cells(total)} | {lost} | {lost} | {seconds / 60:.1f} |",
        "",
        "Each round checks its runs at the end, and stops the part at the first mistake. *Lost* counts acknowledged",
        "runs, signals and results that are missing. *Twice* counts calls of tools that acted more than once.",
        "",
        "| part | what happens |",
        "|---|---|",
        *(f"| {name} | {PARTS[name].about} |" for name in outcomes),
        "",
        "- **seeds**: random beginnings. `python tools/nightly.py part NAME --seed N` begins with one of them again.",
        "- **kills**: processes that were killed with SIGKILL. **restarts**: processes that were started after that.",
        "- **faults**: commits that failed or were cut off, and connections that broke.",
        "- **runs**: runs that were checked. **tools**: calls of tools whose effects were counted outside.",
        *(["", "## Failures", ""] if failed else []),
        *(f"- {name}: `{outcome.failure[:REASON_MAX]}`" for name, outcome in failed.items()),
        "",
    ])  # fmt: skip


def _row(name: str, outcome: Outcome) -> str:
    verdict = "FAILED | FAILED" if outcome.failure else "0 | 0"
    return f"| {name} | {_cells(outcome.counts)} | {verdict} | {outcome.seconds / 60:.1f} |"


def _cells(counts: Counter[str]) -> str:
    return " | ".join(f"{counts[column]:,}" if counts[column] else "–" for column in COLUMNS)


def facts_of(begun: datetime, seconds: float) -> dict[str, str]:
    """Describe the run: when, on which commit, on what machine, for how long."""
    from support.run_facts import commit, machine  # noqa: PLC0415 - of the folder that was added above

    return {
        "date": f"{begun:%Y-%m-%d %H:%M} UTC",
        "commit": commit([PAGE.name]),
        "duration": f"{seconds / 60:.0f} minutes, one part after the other",
        "machine": machine(),
    }


def nightly(seconds: float, seed: int, page: Path) -> int:
    """Run everything, and write the page; 1 if a part has failed. What is there about a campaign stays."""
    from support.simulation.tally_page import campaign_of, with_campaign  # noqa: PLC0415 - of the folder added above

    begun, started = datetime.now(UTC), time.monotonic()
    outcomes = run_all(seconds, seed)
    written = page_of(outcomes, seed=seed, facts=facts_of(begun, time.monotonic() - started))
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    page.write_text(with_campaign(written, campaign_of(before)), encoding="utf-8")
    return 1 if any(outcome.failure for outcome in outcomes.values()) else 0


def options(words: list[str]) -> Any:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run every torture, and write one tally.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = verbs.add_parser("all", help="run all parts")
    every.add_argument("--hours", type=float, default=0.0)
    every.add_argument("--minutes", type=float, default=0.0)
    every.add_argument("--page", type=Path, default=PAGE)
    one = verbs.add_parser("part", help="run one part; without --seconds one round")
    one.add_argument("name", choices=list(PARTS))
    one.add_argument("--seconds", type=float, default=0.0)
    for verb in (every, one):
        verb.add_argument("--seed", type=int, default=int(time.time()))
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run all parts, or one."""
    chosen = options(words)
    if chosen.verb == "part":
        return work(chosen.name, chosen.seconds, chosen.seed)
    seconds = 3600 * chosen.hours + 60 * chosen.minutes
    if seconds <= 0:
        sys.exit("HOURS or MINUTES must be more than 0")
    return nightly(seconds, chosen.seed, chosen.page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
