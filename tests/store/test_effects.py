"""Effects as files: the first stands, who was shut out keeps nothing, what was kept is there after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import EffectConflict, StaleAttempt, StoreUnavailable
from holdfast.store.effects import DirectoryEffects, Effect


def with_effects(root: Path, work: Callable[[DirectoryEffects], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        effects = DirectoryEffects(root)
        try:
            return await work(effects)
        finally:
            await effects.close()

    return asyncio.run(run())


def test_what_was_kept_is_given_to_the_next_attempt(tmp_path: Path) -> None:
    kept = Effect("a", "charge:1", 1, 1, {"receipt": [7, "é", None]})

    async def keep(effects: DirectoryEffects) -> None:
        assert await effects.begin("a", 1) == {}
        await effects.put(kept)
        await effects.put(Effect("a", "mail:1", 1, 2, None))

    with_effects(tmp_path / "effects", keep)
    found = with_effects(tmp_path / "effects", lambda effects: effects.begin("a", 2))
    assert found == {"charge:1": kept, "mail:1": Effect("a", "mail:1", 1, 2, None)}
    assert with_effects(tmp_path / "effects", lambda effects: effects.begin("b", 1)) == {}


def test_the_first_effect_stands_and_an_equal_one_changes_nothing(tmp_path: Path) -> None:
    async def repeat(effects: DirectoryEffects) -> Any:
        await effects.begin("a", 1)
        await effects.put(Effect("a", "n", 1, 1, {"x": 1, "y": 2}))
        await effects.put(Effect("a", "n", 1, 1, {"y": 2, "x": 1}))
        with pytest.raises(EffectConflict, match="n of job a already has a different effect"):
            await effects.put(Effect("a", "n", 1, 2, {"x": 2}))
        return (await effects.begin("a", 1))["n"].result

    assert with_effects(tmp_path, repeat) == {"x": 1, "y": 2}


def test_an_attempt_that_was_shut_out_keeps_nothing(tmp_path: Path) -> None:
    async def fence(effects: DirectoryEffects) -> Any:
        await effects.begin("a", 1)
        await effects.begin("a", 3)
        with pytest.raises(StaleAttempt):
            await effects.put(Effect("a", "n", 1, 1, "late"))
        with pytest.raises(StaleAttempt):
            await effects.begin("a", 2)
        await effects.put(Effect("a", "n", 3, 1, "in time"))
        return (await effects.begin("a", 4))["n"].result

    assert with_effects(tmp_path, fence) == "in time"


def test_nobody_else_can_read_effects(tmp_path: Path) -> None:
    async def keep(effects: DirectoryEffects) -> None:
        await effects.begin("a", 1)
        await effects.put(Effect("a", "n", 1, 1, "secret"))

    with_effects(tmp_path / "effects", keep)
    modes = [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "effects" / "a").rglob("*")]
    assert modes
    assert set(modes) == {0}
    assert stat.S_IMODE((tmp_path / "effects" / "a").stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("job", ["../a", "", "..", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, job: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot name a directory"):
        with_effects(tmp_path, lambda effects: effects.begin(job, 1))


def test_a_directory_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="check the directory"):
        with_effects(tmp_path / "file", lambda effects: effects.begin("a", 1))


def test_a_damaged_effect_is_reported_and_not_taken_for_none(tmp_path: Path) -> None:
    async def damage(effects: DirectoryEffects) -> None:
        await effects.begin("a", 1)
        await effects.put(Effect("a", "n", 1, 1, "kept"))
        for path in (tmp_path / "a").glob("*.json"):
            path.write_bytes(path.read_bytes()[:5])
        await effects.begin("a", 2)

    with pytest.raises(StoreUnavailable):
        with_effects(tmp_path, damage)


WRITER = """
import asyncio, sys
from holdfast.store.effects import DirectoryEffects, Effect

async def main():
    effects = DirectoryEffects(sys.argv[1])
    await effects.begin("a", 1)
    for number in range(100_000):
        await effects.put(Effect("a", f"n{number}", 1, 1, "x" * 2000))
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_writer_killed_at_any_moment_leaves_whole_effects_and_all_that_were_acknowledged(tmp_path: Path) -> None:
    for number in range(5):
        root = tmp_path / str(number)
        with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged = [int(next(writer.stdout)) for _ in range(3 + 7 * number)]
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
        found = with_effects(root, lambda effects: effects.begin("a", 2))
        assert {f"n{one}" for one in acknowledged} <= set(found)
        assert {effect.result for effect in found.values()} == {"x" * 2000}
