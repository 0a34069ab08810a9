"""The comparison with peers: what it measures, how it survives a peer that fails, and what its page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from support.scripts import ROOT

if TYPE_CHECKING:
    from compare.columns import Sizes
    from compare.results import Cell, Results
    from compare.runner import Bench

COMPARE = ROOT / "bench" / "compare"


@pytest.fixture(autouse=True)
def _bench_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")


def a_run(cells: dict[str, dict[str, Cell]], *, repetitions: int = 3) -> Results:
    from compare.results import Machine, Results
    from compare.systems import SYSTEMS

    return Results(
        day="2026-01-02", quick=False, repetitions=repetitions, seconds=6.0, drain_jobs_max=100_000, samples=150,
        waiting=10_000, cells=cells, versions={system.key: f"1.{number}" for number, system in enumerate(SYSTEMS)},
        machine=Machine(cores=2, processor="a processor", memory_gb=8.0, system="Linux 6", python="3.11.7",
                        postgres="18.1", sqlite="3.51.0", commits={"SQLite": 5000.0}),
    )  # fmt: skip


def rates(*values: float) -> Cell:
    from compare.results import Cell

    return Cell([{"rate": value} for value in values])


def row(page: str, name: str, heading: str) -> list[str]:
    """The cells of a row in the table below a heading."""
    part = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (line,) = (line for line in part.splitlines() if line.startswith((f"| {name} |", f"| **{name}** |")))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_a_table_has_medians_with_ranges_and_says_why_a_figure_is_missing(tmp_path: Path) -> None:
    from compare.report import write_page
    from compare.results import Cell

    late = {"p50": 1.25, "p99": 7.0}
    write_page(a_run({
        "holdfast-postgres": {"c1": rates(10.0, 3000.0, 40.0), "start": Cell([late])},
        "holdfast-postgres:tools": {"c1": rates(12345.6)},
        "dbos": {"c1": Cell(failures=["not done in 240 s"]), "c8": Cell([{"rate": 7.0}], failures=["OSError: x"])},
        "pgqueuer": {"result": Cell(unsupported="keeps no results")},
    }), tmp_path / "benchmarks.md")  # fmt: skip
    page = (tmp_path / "benchmarks.md").read_text()
    assert row(page, "Holdfast, PostgreSQL, steps", "Ten-step jobs")[0] == "40 (10–3,000)"
    assert row(page, "Holdfast, PostgreSQL, tools", "Ten-step jobs")[0] == "12,346"
    assert row(page, "DBOS", "Ten-step jobs")[:3] == [
        "not done in 240 s", "7; failed 1 of 2 times: OSError: x", "not measured"
    ]  # fmt: skip
    assert row(page, "Holdfast, PostgreSQL", "Latency")[:2] == ["1.2", "7.0"]
    assert row(page, "pgqueuer", "Latency")[2] == "keeps no results"
    assert row(page, "huey", "Systems and settings")[0] == "1.8"
    assert "Steps of Holdfast run ahead of the disk" in page


def test_the_page_says_what_was_special_about_a_run(tmp_path: Path) -> None:
    from compare.report import write_page

    run = a_run({"dbos": {"c64": rates(250.0)}})
    run.remarks.append("It rained.")
    write_page(run, tmp_path / "page.md")
    before, _, after = (tmp_path / "page.md").read_text().partition("**Of this run.** It rained.\n")
    assert "## Ten-step jobs" in after
    assert "## Ten-step jobs" not in before


def test_a_chart_has_bars_in_proportion_and_a_file_for_light_and_for_dark_pages(tmp_path: Path) -> None:
    from compare.report import write_page

    write_page(a_run({"dbos": {"c64": rates(250.0)}, "restate": {"c64": rates(1000.0)}}), tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    shown = re.findall(r'srcset="(.*?)"|src="(.*?)"', page)
    files = {tmp_path / (dark or light) for dark, light in shown}
    assert len(files) == 6
    for picture in files:
        ET.parse(picture)  # noqa: S314 - our own picture; it must be one
        assert not re.search(r"url\(|href|@import|<script", picture.read_text())
    widths = {}
    for bar in ET.parse(tmp_path / "images" / "compare-steps-dark.svg").iter("{http://www.w3.org/2000/svg}rect"):  # noqa: S314
        widths[bar[0].text] = float(bar.get("width", ""))
    assert widths["DBOS: 250"] == pytest.approx(widths["Restate: 1,000"] / 4, abs=0.1)
    assert len(widths) == 2, "what has no figure has no bar"


@pytest.mark.parametrize(
    ("ours", "peers", "word"), [(81.0, 100.0, "met"), (79.0, 100.0, "missed"), (81.0, None, "not measured")]
)
def test_a_floor_is_met_missed_or_not_measured(ours: float, peers: float | None, word: str) -> None:
    from compare.floors import judge

    cells = {"holdfast-postgres": {"drain": rates(ours)}} | ({"pgqueuer": {"drain": rates(peers)}} if peers else {})
    assert judge(a_run(cells))[0].word == word


def test_a_latency_may_be_at_most_so_many_times_the_peers() -> None:
    from compare.floors import judge
    from compare.results import Cell

    def words(p50: float) -> list[str]:
        cells = {"holdfast-sqlite": {"start": Cell([{"p50": p50, "p99": p50}])},
                 "restate": {"start": Cell([{"p50": 10.0, "p99": 20.0}])}}  # fmt: skip
        return [
            verdict.word for verdict in judge(a_run(cells)) if verdict.floor.what.startswith("start → code, SQLite")
        ]

    assert words(8.6) == ["met", "met"]
    assert words(8.8) == ["missed", "met"]
    assert words(17.5) == ["missed", "missed"]


@pytest.mark.parametrize(("ours", "code"), [(1e9, 0), (1.0, 1)])
def test_the_command_fails_on_a_missed_floor_only_if_it_is_asked_to(ours: float, code: int, tmp_path: Path) -> None:
    from compare.floors import FLOORS
    from compare.results import Cell

    cells: dict[str, dict[str, Cell]] = {}
    for floor in FLOORS:
        for place, value in ((floor.peer, 100.0), (floor.ours, 1 / ours if floor.at_most else ours)):
            cell = cells.setdefault(place[0], {}).setdefault(place[1], Cell([{}]))
            cell.figures[0][place[2]] = value
    path = tmp_path / "results.json"
    a_run(cells).save(path)
    command = [sys.executable, "-m", "compare", "--from-results", "--results", str(path), "--page"]
    for options, expected in (([], 0), (["--floors"], code)):
        ran = subprocess.run(
            [*command, str(tmp_path / "page.md"), *options],
            cwd=ROOT / "bench",
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == expected, ran.stderr
        assert ("missed" in ran.stdout) == bool(code)


# What is measured


@pytest.fixture
def sizes() -> Sizes:
    from compare.columns import Sizes

    return Sizes(repetitions=1, seconds=0.01, drain_jobs_max=200, drain_seconds=0.01, samples=2, size_jobs=20,
                 waiting=3, window_seconds=0.05, settle_seconds=0.0, seconds_max=60.0)  # fmt: skip


@pytest.fixture
def bench(sizes: Sizes, tmp_path: Path) -> Bench:
    from compare.runner import Bench

    return Bench(sizes, tmp_path, server=None)


@pytest.mark.parametrize("column", ["ten_steps", "drain", "starts", "result", "signal", "bytes_per_job", "idle"])
def test_every_kind_of_column_can_be_measured(column: str, bench: Bench) -> None:
    """Of Holdfast on SQLite, and as little as can be."""
    from compare import columns
    from compare.systems import BY_KEY

    with bench.session(BY_KEY["holdfast-sqlite"]) as session:
        measured: dict[str, Callable[[], float | dict[str, float]]] = {
            "ten_steps": lambda: columns.ten_steps(session, "tools", 4, concurrency=2, processes=2),
            "drain": lambda: columns.drain(session, 4),
            "starts": lambda: columns.starts(session, "start_singly", 3),
            "result": lambda: columns.latency(session, "result", bench.sizes)["p50"],
            "signal": lambda: columns.latency(session, "signal", bench.sizes)["p99"],
            "bytes_per_job": lambda: columns.bytes_per_job(session, "steps", 40)["bytes"],
            "idle": lambda: columns.idle(session, bench.sizes, None)["memory"],
        }
        figure = measured[column]()
        assert isinstance(figure, float)
        assert figure > 0
        if column in {"ten_steps", "drain"}:
            assert session.tally.ended == 4


def test_a_rate_is_measured_over_at_least_half_of_so_many_seconds() -> None:
    from compare.columns import measured_rate

    counts: list[int] = []

    def run(count: int) -> float:
        counts.append(count)
        return 0.5 + count / 1000  # half a second to start

    assert measured_rate(run, None, 6.0) == pytest.approx(2666 / 3.166)
    assert measured_rate(run, 888.0, 6.0) == pytest.approx(5328 / 5.828)
    assert measured_rate(run, 888.0, 6.0, least=10_000) == pytest.approx(10_000 / 10.5)
    assert measured_rate(run, 888.0, 6.0, most=7) == pytest.approx(7 / 0.507)
    assert counts == [40, 400, 2666, 5328, 10_000, 7], "short runs say how many that is, and an earlier rate does, too"


def test_a_system_that_fails_has_the_reason_in_its_cell_and_does_not_stop_the_others(bench: Bench) -> None:
    from compare.runner import Task, run_all
    from compare.systems import BY_KEY, System

    broken = System("broken", "Broken", "no_such_peer", "sqlite", "none")
    systems, results = (broken, BY_KEY["holdfast-sqlite"]), a_run({})
    assert len(list(run_all(results, [[Task(bench, system, "bulk") for system in systems]], 1))) == 2
    (reason,) = results.cell("broken", "bulk").failures
    assert reason.startswith("its process ended: ModuleNotFoundError: No module named 'compare.peers.no_such_peer'")
    assert results.cell("holdfast-sqlite", "bulk").median("rate")


def test_a_worker_that_is_killed_ends_the_measurement_at_once(bench: Bench) -> None:
    from compare.session import Failed
    from compare.systems import BY_KEY

    with bench.session(BY_KEY["holdfast-sqlite"]) as session:
        caller, (worker,) = session.caller(), session.workers(1)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(Failed, match="its process ended"):
            session.until_ended(1, caller)


def test_a_measurement_that_takes_too_long_is_given_up_and_leaves_nothing(sizes: Sizes, tmp_path: Path) -> None:
    from dataclasses import replace

    from compare.results import Cell
    from compare.runner import Bench, Task, measure
    from compare.systems import BY_KEY

    cell = Cell()
    task = Task(Bench(replace(sizes, seconds_max=0.0), tmp_path, None), BY_KEY["holdfast-sqlite"], "single")
    measure(task, cell)
    assert cell.failures == ["not done in 0 s"]
    assert cell.overdue


def test_systems_take_turns_so_that_each_repetition_begins_with_another(bench: Bench) -> None:
    from compare.runner import Task, run_all
    from compare.systems import BY_KEY

    order = []

    @dataclass(frozen=True)
    class Noted(Task):
        seen: list[str] = field(default_factory=list)

        def run(self) -> dict[str, float]:
            order.append(self.system.key)
            return {"rate": 1.0}

    systems = [BY_KEY[key] for key in ("holdfast-sqlite", "dbos", "huey")]
    done = list(run_all(a_run({}), [[Noted(bench, system, "drain") for system in systems]], 3))
    assert [task.system.key for task in done] == order
    assert order == [
        "holdfast-sqlite",
        "dbos",
        "huey",
        "dbos",
        "huey",
        "holdfast-sqlite",
        "huey",
        "holdfast-sqlite",
        "dbos",
    ]


# What is committed


def peers() -> Iterator[str]:
    for path in sorted((COMPARE / "peers").glob("[!_]*.py")):
        yield path.stem


@pytest.mark.parametrize("peer", [peer for peer in peers() if peer != "holdfast"])
def test_every_peer_has_pinned_versions_and_a_row(peer: str) -> None:
    from compare.systems import SYSTEMS

    lines = (COMPARE / "requirements" / f"{peer}.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    packages = {line.partition("==")[0].lower() for line in lines}
    assert [system.package in packages for system in SYSTEMS if system.peer == peer] == [True]


def test_the_page_is_what_the_last_figures_make_of_it(tmp_path: Path) -> None:
    from compare.report import write_page
    from compare.results import Results

    write_page(Results.load(COMPARE / "results.json"), tmp_path / "benchmarks.md")
    for name in ("benchmarks.md", *(f"images/{path.name}" for path in (tmp_path / "images").iterdir())):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), f"docs/{name} was edited by hand"


def test_only_rates_are_measured_again(bench: Bench) -> None:
    from compare.runner import Task, run_all
    from compare.systems import BY_KEY

    class Noted(Task):
        def run(self) -> dict[str, float]:
            return {"rate": 1.0}

    planned: list[list[Task]] = [[Noted(bench, BY_KEY["huey"], column)] for column in ("drain", "idle", "result")]
    columns = [task.column for task in run_all(a_run({}), planned, 3)]
    assert columns == ["drain", "idle", "result", "drain", "drain"]


def test_rates_of_an_earlier_run_are_in_jobs() -> None:
    from compare.results import Cell
    from compare.runner import rates_of

    cells = {
        "saq": {"drain": Cell([{"rate": 30.0}]), "idle": Cell([{"worker": 1.0}])},
        "dbos": {"c8": Cell([{"rate": 50.0}])},
    }
    assert rates_of(a_run(cells)) == {("saq", "drain"): 30.0, ("dbos", "c8"): 5.0}
