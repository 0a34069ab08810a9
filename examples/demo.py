"""A checkout whose worker is killed with SIGKILL after the card was charged. `make demo` and `holdfast demo` run it."""

from __future__ import annotations

import sys

from holdfast.cli.demo import tell

if __name__ == "__main__":
    sys.exit(tell())
