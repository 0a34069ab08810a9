"""A guard for modules that the command line imports: their top level may declare jobs, and not start or run them.

Every process that imports the module would do it again: the client, the server, and each worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError

__all__ = ["importing", "refuse_while_importing"]

_targets: list[str] = []  # what the command line imports now


@contextmanager
def importing(target: str) -> Iterator[None]:
    """Refuse starts and workers until the end of the block."""
    _targets.append(target)
    try:
        yield
    finally:
        _targets.pop()


def refuse_while_importing(act: str) -> None:
    """Raise an error if the command line is importing a target. `act` is what the code tried to do."""
    if _targets:
        raise HoldfastError(
            f"{_targets[-1]} {act} while the command line imports it: put this code under"
            ' `if __name__ == "__main__":`, because every process that imports the file would run it'
        )
