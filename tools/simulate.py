"""Simulates workers, clients and faults in virtual time, for as many seeds as asked; prints its tally.

A seed that breaks a rule is shrunk, and printed with the line that repeats it.

    python tools/simulate.py SEEDS [FIRST]      play the seeds from FIRST on, on all cores
    python tools/simulate.py SEEDS FIRST --record FILE    write the tally to a file, too; go on after a stop
    python tools/simulate.py --page FILE        write such a tally into docs/tally.md
    python tools/simulate.py SEEDS FIRST --first    stop at the first seed that breaks a rule, on one core
    python tools/simulate.py --seed SEED        play one seed, and print its trace
    python tools/simulate.py --scenario JSON    play one scenario, and print its trace
    python tools/simulate.py --bugs [TEXT]      make each mistake of bugs.toml in a copy of the package, and find it;
                                                with a text, only those whose name has it
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.simulation import tally_page
from support.simulation.bugs import BUGS, SEEDS_MAX, Bug, hunt
from support.simulation.campaign import Failure, Tally, campaign, checked, shared, undisturbed
from support.simulation.record import begun_or_continued, load
from support.simulation.scenario import Scenario, drawn
from support.simulation.shrink import shrink

TOLD_SECONDS = 60.0  # between two lines of the tally
SHRUNK_MAX = 3  # failures that are shrunk: others are often the same


def main() -> int:
    """Do what the arguments say; 1 if a rule was broken, or a mistake was not found."""
    options = _options()
    if options.page is not None:
        tally_page.write(load(options.page))
        return 0
    if options.bugs is not None:
        return _bugs([bug for bug in BUGS if options.bugs in bug.name])
    if options.seed is not None or options.scenario is not None:
        scenario = drawn(options.seed) if options.seed is not None else _decoded(options.scenario)
        return _one(scenario)
    if options.first:
        return _first(options.seeds, options.begin)
    return _many(options.seeds, options.begin, options.cores, options.record)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=2000)
    parser.add_argument("begin", nargs="?", type=int, default=0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--bugs", nargs="?", const="", metavar="TEXT")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--scenario")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--page", type=Path, metavar="RECORD")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _decoded(text: str) -> Scenario:
    return msgspec.json.decode(text, type=Scenario)


def _many(seeds: int, first: int, cores: int, path: Path | None) -> int:
    record = begun_or_continued(path, first, seeds)
    tally, before, begun, told = record.tally, record.seconds, time.monotonic(), time.monotonic()
    for part in shared(range(first + tally.seeds, first + seeds), cores):
        for failure in part.failures:
            print(f"seed {failure.seed} failed: {failure.text}", flush=True)
        tally.add(part)
        record.seconds = before + time.monotonic() - begun
        if time.monotonic() - told > TOLD_SECONDS or tally.seeds == seeds:
            told = time.monotonic()
            print(tally, flush=True)
            if path is not None:
                record.save(path)
    _print_tally(tally, record.seconds)
    with undisturbed():
        for failure in tally.failures[:SHRUNK_MAX]:
            _print_shrunk(failure)
    return 1 if tally.failures else 0


def _print_tally(tally: Tally, seconds: float) -> None:
    print(f"in {seconds:.0f} s:")
    for what, count in sorted(tally.counts.items()):
        print(f"  {count:>12,} {what}")


def _print_shrunk(failure: Failure) -> None:
    scenario = shrink(drawn(failure.seed))
    violations = checked(scenario).violations
    print(f"seed {failure.seed}, shrunk: {', '.join(map(str, violations))}")
    text = msgspec.json.encode(scenario).decode()
    print(f"  python tools/simulate.py --scenario {shlex.quote(text)}", flush=True)


def _first(seeds: int, begin: int) -> int:
    tally = campaign(range(begin, begin + seeds), stop_at_first=True)
    if tally.failures:
        failure = tally.failures[0]
        print(f"found after {tally.seeds} seeds: {failure.text}")
    else:
        print(f"nothing found: {tally}")
    return 1 if tally.failures else 0


def _one(scenario: Scenario) -> int:
    with undisturbed():
        outcome = checked(scenario, tracing=True)
    print("\n".join(outcome.trace))
    for violation in outcome.violations:
        print(violation)
    print(f"digest {outcome.digest}, {len(outcome.violations)} rules broken")
    return 1 if outcome.violations else 0


def _bugs(bugs: Sequence[Bug]) -> int:
    missed = 0
    for bug in bugs:
        with tempfile.TemporaryDirectory(prefix="holdfast-bug-") as folder:
            found = hunt(bug, Path(folder))
        missed += found.seeds is None
        how = f"seed {found.seeds:>4}  {found.text[:120]}" if found.seeds is not None else f"NOT FOUND {found.text}"
        print(f"{bug.name:<72} {how}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} mistakes were found within {SEEDS_MAX} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
