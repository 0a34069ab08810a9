"""Sends as many requests as asked that are made from the OpenAPI document, and checks every answer; prints its tally.

Half of the requests are sent each alone, half in chains along the links of the document. `make fuzz` sends 20,000 to a
server on SQLite, `make fuzz STORE=postgres` to one on a PostgreSQL of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.fuzzing import operations, site  # noqa: E402 - the path is set above
from support.postgres import fresh_url  # noqa: E402 - the path is set above

SERVER_ERROR = 500


def main(cases: int, store: str) -> int:
    """Ask, check, print. A wrong answer raises; an error of the server fails at the end."""
    started = time.monotonic()
    known = operations()
    with tempfile.TemporaryDirectory() as folder:
        url = fresh_url() if store == "postgres" else f"sqlite:///{folder}/jobs.db"
        with site(url) as service:
            service.ask_each(known, max(1, cases // 4 // len(known)))
            print(f"{service.count:>8,} requests, each alone  {time.monotonic() - started:.0f} s", flush=True)
            service.follow_links(cases - service.count)
    answers: dict[str, dict[int, int]] = defaultdict(dict)
    for (name, status), count in sorted(service.seen.items()):
        answers[name][status] = count
    for name, counts in answers.items():
        print(f"{name:<16} {'  '.join(f'{status}: {count:,}' for status, count in counts.items())}")
    wrong = {name for name, status in service.seen if status >= SERVER_ERROR and name != "readyz"}
    print(f"{service.count:>8,} requests on {store}, 0 answers unlike the document  {time.monotonic() - started:.0f} s")
    print(f"errors of the server: {', '.join(sorted(wrong)) or 'none'}")
    return int(bool(wrong) or len(answers) < len(known))


if __name__ == "__main__":
    given = [*sys.argv[1:], *("20000", "sqlite")[len(sys.argv) - 1 :]]
    sys.exit(main(int(given[0]), given[1]))
