"""The part of docs/tally.md about the last long campaign of the simulator, written from its record."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import msgspec

from support.scripts import ROOT
from support.simulation.campaign import Failure
from support.simulation.record import Record
from support.simulation.scenario import Scenario

PAGE = ROOT / "docs" / "tally.md"
FOUND = ROOT / "tests" / "simulation" / "found.toml"
HEADING = "## A long campaign of the simulator"


def campaign_of(page: str) -> str:
    """Return the part of a page about a campaign, which is at its end. Empty if there is none."""
    _, heading, rest = page.partition(f"{HEADING}\n")
    return heading + rest


def with_campaign(page: str, part: str) -> str:
    """Return a page with this part about a campaign instead of its own."""
    return f"{page.removesuffix(campaign_of(page)).rstrip()}\n" + (f"\n{part}" if part else "")


def part_of(record: Record, code: str, repaired: dict[int, str]) -> str:
    """Return the part about a campaign.

    Args:
        record: the record of the campaign.
        code: the last commit before the campaign that changed the package.
        repaired: the mistakes that seeds have found and that are repaired, by seed.
    """
    tally = record.tally
    speed = tally.counts["jobs"] / (tally.cpu_seconds or 1e-9)
    return "\n".join([
        HEADING,
        "",
        "`make simulate` has played these seeds. `make tally` writes this part from the record of that run.",
        "Do not edit it.",
        "",
        f"- date: {record.begun:%Y-%m-%d %H:%M} UTC",
        f"- code: {code}",
        f"- duration: {record.seconds / 60:.0f} minutes, {speed:,.0f} jobs per second of CPU",
        f"- machine: {record.machine}",
        f"- first seed: {record.first}",
        "",
        "| what | count |",
        "|---|---:|",
        *(f"| {what} | {count:,} |" for what, count in _rows(record)),
        "",
        *([] if tally.failures else ["No seed has broken a rule.", ""]),
        *(["| seed | what it has broken | state |", "|---:|---|---|"] if tally.failures else []),
        *(_row(failure, repaired.get(failure.seed)) for failure in tally.failures),
        *([""] if tally.failures else []),
    ])  # fmt: skip


def _rows(record: Record) -> list[tuple[str, int]]:
    tally, counts = record.tally, record.tally.counts
    return [
        ("seeds", tally.seeds),
        ("seeds that broke a rule", len(tally.failures)),
        ("virtual hours", round(tally.virtual_seconds / 3600)),
        ("jobs", counts["jobs"]),
        ("calls of tools that acted", counts["acts of tools"]),
        ("events", counts["events"]),
        ("commits", counts["commits"]),
        ("processes killed at a random time", counts["faults: crash"]),
        ("processes killed at a call to the store", counts["crashes at a call"]),
        ("processes paused", counts["faults: pause"]),
        ("processes replaced by a deploy", counts["faults: deploy"]),
        ("processes cut off from the store", counts["faults: partition"] + counts["faults: mute"]),
        ("outages of the store", counts["faults: outage"]),
        ("calls to the store that were refused", counts["calls refused"]),
        ("calls that were slow or came late", counts["calls slow"] + counts["calls late"]),
        ("calls whose answers got lost", counts["answers lost"]),
        ("ticks of schedules", sum(count for what, count in counts.items() if what.startswith("ticks "))),
    ]


def _row(failure: Failure, repair: str | None) -> str:
    text = failure.text.replace("|", "\\|")
    return f"| {failure.seed} | `{text}` | {f'repaired: {repair}' if repair else 'open'} |"


def repaired() -> dict[int, str]:
    """Return what seeds have found and what is a test now, by seed."""
    found = tomllib.loads(FOUND.read_text())["scenario"]
    seeds = {each["name"]: [_seed(each["json"]), *each.get("also", ())] for each in found}
    return {seed: name for name, several in seeds.items() for seed in several}


def _seed(scenario: str) -> int:
    return msgspec.json.decode(scenario, type=Scenario).seed


def code_of(commit: str) -> str:
    """Return the last commit up to this one that changed the package."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=12", commit.split(maxsplit=1)[0], "--", "src"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def write(record: Record, page: Path = PAGE) -> None:
    """Write the part about a campaign into the page."""
    part = part_of(record, code_of(record.commit), repaired())
    page.write_text(with_campaign(page.read_text(encoding="utf-8"), part), encoding="utf-8")
