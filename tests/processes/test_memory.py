"""The memory of workers and servers: garbage in cycles does not fill it, however few objects it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.gc_settings import GROWTH_BYTES, MemoryWatch, resident_bytes

MEGABYTE = 1024 * 1024

# 4 GB of garbage in 4000 cycles of two objects.
LEAKING = """
import resource
from holdfast.gc_settings import tune_gc

class Cycle:
    def __init__(self):
        self.me, self.content = self, bytearray(1024 * 1024)

tune_gc()
for _ in range(4000):
    Cycle().content[::4096] = bytes(256)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.skipif(resident_bytes() is None, reason="Python's own settings stay where memory cannot be read")
def test_large_garbage_in_cycles_is_collected_before_it_fills_the_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LEAKING], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000


def test_memory_is_collected_when_it_has_grown_and_not_before() -> None:
    sizes = [100 * MEGABYTE, 150 * MEGABYTE, 40 * MEGABYTE, 100 * MEGABYTE, 105 * MEGABYTE, 60 * MEGABYTE]
    collected: list[int] = []
    readings = iter(sizes)
    watch = MemoryWatch(lambda: next(readings), lambda: collected.append(1))
    for counts in (0, 0, 0, 1):  # 50 MB more; it has shrunk; 60 MB more; 65 MB more, and it is 60 MB after that
        watch.look()
        assert len(collected) == counts
    assert next(readings, None) is None


def test_a_large_program_collects_less_often() -> None:
    size, collected = 1000 * MEGABYTE, []
    watch = MemoryWatch(lambda: size, lambda: collected.append(1))
    size += 3 * GROWTH_BYTES
    watch.look()
    assert collected == []
    size += GROWTH_BYTES
    watch.look()
    assert collected == [1]
