"""Measure Holdfast beside its peers, and write the page about it.

python -m compare [--quick] [--floors] [--systems dbos absurd …] [--columns c1 drain …] [--from-results]

A quick run writes to `build/compare`, so that it does not replace the figures of a full one. To measure one column of
a few systems, name them, and another place for the figures:

    python -m compare --systems holdfast-postgres pgqueuer --columns drain --results build/r.json --page build/p.md
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

from compare.columns import QUICK, Sizes
from compare.floors import judge
from compare.report import write_page
from compare.results import Results
from compare.runner import COLUMNS, compare
from compare.systems import BY_KEY, SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = Path(__file__).resolve().with_name("results.json"), ROOT / "docs" / "benchmarks.md"
QUICK_FOLDER = ROOT / "build" / "compare"


def main() -> int:
    """Measure, write, judge."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process is left
    parser = argparse.ArgumentParser(prog="compare", description="Measure Holdfast beside its peers.")
    parser.add_argument("--quick", action="store_true", help="measure little, once")
    parser.add_argument("--floors", action="store_true", help="fail if a floor is missed or not measured")
    parser.add_argument("--systems", nargs="+", choices=list(BY_KEY), default=list(BY_KEY))
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=[])
    parser.add_argument("--repetitions", type=int, help="how often each figure is measured")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "compare", help="where peers are installed")
    parser.add_argument("--results", type=Path, help="where the figures are written")
    parser.add_argument("--page", type=Path, help="the page to write")
    parser.add_argument("--from-results", action="store_true", help="write the page again, and measure nothing")
    chosen = parser.parse_args()
    path = chosen.results or (QUICK_FOLDER / RESULTS.name if chosen.quick else RESULTS)
    page = chosen.page or (QUICK_FOLDER / PAGE.name if chosen.quick else PAGE)
    for file in (path, page):
        file.parent.mkdir(parents=True, exist_ok=True)
    if chosen.from_results:
        results = Results.load(path)
    else:
        systems = [system for system in SYSTEMS if system.key in chosen.systems]
        sizes = QUICK if chosen.quick else Sizes()
        if chosen.repetitions:
            sizes = replace(sizes, repetitions=chosen.repetitions)
        earlier = Results.load(RESULTS) if RESULTS.exists() else None
        results = compare(systems, sizes, chosen.cache, path, quick=chosen.quick, only=chosen.columns, earlier=earlier)
    write_page(results, page)
    print(f"{page} is written.")
    verdicts = judge(results)
    for verdict in verdicts:
        print(verdict.line())
    return 1 if chosen.floors and not all(verdict.met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
