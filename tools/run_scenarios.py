"""Runs every scenario live, replayed after every wait, and killed at every commit, on one store; prints a tally.

Usage: python tools/run_scenarios.py [memory|sqlite|postgres] [part of a name]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import scenarios  # noqa: F401 - its modules register them
from support.scenario_runs import crashes, once
from support.scenarios import SECONDS, Scenario, live, play_scenario, registered, replayed


def main() -> int:
    """Run them all; 1 if one of them ended otherwise than it must."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "memory"
    chosen = [one for one in registered().values() if (sys.argv[2] if len(sys.argv) > 2 else "") in one.name]  # noqa: PLR2004
    failed, killed = [], 0
    for one in chosen:
        wrong: list[str] = []
        for mode, story in _modes(one, backend):
            with tempfile.TemporaryDirectory(prefix="holdfast-scenario-") as folder:
                try:
                    count = play_scenario(lambda: story(Path(folder)), 20 * SECONDS, quiet=mode != "killed")  # noqa: B023
                except Exception as error:  # noqa: BLE001 - what went wrong is the tally
                    notes = " ".join(getattr(error, "__notes__", []))
                    wrong.append(f"{mode}: {type(error).__name__}: {error} {notes}"[:300])
                else:
                    killed += count if mode == "killed" else 0
        if wrong:
            failed.append(one.name)
            print(f"FAILED {one.name}", *wrong, sep="\n    ", flush=True)
    print(f"{len(chosen)} scenarios on {backend}, killed at {killed:,} commits: {len(failed)} ended otherwise")
    return 1 if failed else 0


def _modes(one: Scenario, backend: str) -> list[tuple[str, Callable[[Path], Coroutine[Any, Any, Any]]]]:
    modes: list[tuple[str, Callable[[Path], Coroutine[Any, Any, Any]]]] = [
        ("live", lambda folder: once(one, backend, folder, live)),
        ("replayed", lambda folder: once(one, backend, folder, replayed)),
    ]
    if one.crashes:
        modes.append(("killed", lambda folder: crashes(one, backend, folder)))
    return modes


if __name__ == "__main__":
    sys.exit(main())
