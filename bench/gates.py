"""What limits cost: the drain of a queue with a concurrency and a rate, beside one without, in the same run.

The limits are so wide that they hold nothing back: what is measured is that they are looked at, counted and spent. The
two sides take turns and the best round of each counts. On SQLite, and on a PostgreSQL server that is started for it.

``python bench/gates.py SECONDS`` runs the exactness torture and the overload instead, for so long on each, and prints
both; it fails when a limit was exceeded, or less than nine tenths of it were used, or the overload was not as declared.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from holdfast import App, Config, Limits
from support.limited import torture
from support.overload import overload
from support.postgres import fresh_url, server

JOBS = 2000
ROUNDS = 6
SLOTS = 100
FLOOR = 0.85  # of the jobs a second without limits


async def drain(url: str, *, limited: bool) -> tuple[float, float]:
    """Drain a fresh store of no-op jobs; jobs a second, and a second of this process's own time."""
    app = App("bench", config=Config(url=url))

    @app.job
    async def nothing() -> None:
        pass

    if limited:
        await app.aset_limits(Limits(queue="default", concurrency=SLOTS, rate=1e6))
    await app.astart_many(nothing, [{} for _ in range(JOBS)])
    begun, used = time.perf_counter(), time.process_time()
    await app.worker(concurrency=SLOTS).arun(until_idle=True)
    spent, used = time.perf_counter() - begun, time.process_time() - used
    assert (await app.astats()).runs == {"succeeded": JOBS}
    await app.aclose()
    return JOBS / spent, JOBS / used


def compare(name: str, folder: Path) -> bool:
    """Drain both ways, in turn."""
    best = {False: (0.0, 0.0), True: (0.0, 0.0)}
    for number in range(ROUNDS):
        for limited in (False, True):
            url = f"sqlite:///{folder / f'{number}{limited}.db'}" if name == "sqlite" else fresh_url()
            found = asyncio.run(drain(url, limited=limited))
            best[limited] = max(best[limited][0], found[0]), max(best[limited][1], found[1])
    ratio, of_cpu = (with_ / without for with_, without in zip(best[True], best[False], strict=True))
    print(
        f"{name}: {best[False][0]:,.0f} jobs/s without limits, {best[True][0]:,.0f} with: {ratio:.2f} (floor {FLOOR});"
        f" by the process's own time {of_cpu:.2f}"
    )
    return ratio >= FLOOR


def under_stress(name: str, folder: Path, seconds: float) -> bool:
    """Kill workers of queues with limits, and overload one."""

    def url(what: str) -> str:
        return f"sqlite:///{folder / what}.db" if name == "sqlite" else fresh_url()

    tally = asyncio.run(torture(url("torture"), seconds, seed=1))
    print(f"{name}: {tally}", flush=True)
    told = asyncio.run(overload(url("overload"), seconds))
    print(f"{name}: {told}", flush=True)
    return tally.is_exact() and told.as_declared() and told.in_time()


def main() -> int:
    """Compare on both; with a number of seconds, torture and overload instead."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if sys.argv[1:]:
            fine = [under_stress(name, folder, float(sys.argv[1])) for name in ("sqlite", "postgres")]
        else:
            fine = [compare(name, folder) for name in ("sqlite", "postgres")]
    server().stop()
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
