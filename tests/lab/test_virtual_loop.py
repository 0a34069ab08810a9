"""The loop with virtual time: real work holds the time, and is named if it does not end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.testing import RealWork
from holdfast.testing.virtual_loop import Patience, VirtualLoop


@pytest.mark.parametrize("ends", [True, False], ids=["work that follows other work", "work that does not end"])
def test_only_work_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """Many short calls in a row may take longer than two seconds together."""
    seconds = [0.0]
    monkeypatch.setattr("holdfast.testing.virtual_loop.time", SimpleNamespace(monotonic=lambda: seconds[0]))

    def at_work() -> str | None:
        seconds[0] += 0.09
        if ends:
            loop.note_progress()
        return "a call" if seconds[0] < 6 else None

    loop = VirtualLoop(at_work, lambda due: due)
    try:
        if ends:
            loop.run_until_complete(loop.settle(10))
            assert loop.time() == 10
        else:
            with pytest.raises(RealWork, match="a call has been under way for 2 real seconds"):
                loop.run_until_complete(loop.settle(10))
            assert loop.time() == 0
    finally:
        loop.close()


def test_a_pause_of_the_whole_process_is_no_work_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr("holdfast.testing.virtual_loop.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    patience = Patience()
    seconds[0] += 3600
    assert not patience.is_over()
    looks = 0
    while not patience.is_over():
        seconds[0] += 0.05
        looks += 1
    assert looks == pytest.approx(2 / 0.05, abs=4)
