"""Random job programs see the same again: after every wait, cut after any event, and killed at any commit (E8, E13)."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from support.programs import CUT, tried
from support.scenarios import AT_ONCE, KINDS, play_scenario

SEEDS = range(24)
STRIDE = 5  # of the commits and events at which a program is ended here; `make programs` ends it at each


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_sees_the_same_after_every_wait(seed: int) -> None:
    play_scenario(lambda: tried(seed))


@pytest.mark.parametrize("kind", [*KINDS, CUT])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_sees_the_same_wherever_it_is_ended(seed: int, kind: str) -> None:
    async def everywhere() -> None:
        points = itertools.count(1 + (seed + len(kind)) % STRIDE, STRIDE)
        while all(await asyncio.gather(*(tried(seed, next(points), kind) for _ in range(AT_ONCE)))):
            pass

    play_scenario(everywhere, quiet=False)
