"""Ids of jobs: ordered by time, and different in every thread and process."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from holdfast.ids import new_id

COUNT = 200  # more than random bits are drawn for at once


def test_ids_of_one_thread_are_ordered_and_have_the_form_of_version_7() -> None:
    made = [new_id() for _ in range(COUNT)]
    assert made == sorted(set(made))
    assert {(UUID(one).version, UUID(one).variant) for one in made} == {(7, "specified in RFC 4122")}


def test_threads_make_different_ids_with_different_random_parts() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = [one for found in threads.map(lambda _: [new_id() for _ in range(COUNT)], range(8)) for one in found]
    assert len(set(made)) == len({one[19:] for one in made}) == 8 * COUNT


def test_a_forked_process_makes_other_random_parts_than_its_parent() -> None:
    new_id()  # the parent has random bits left
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "\n".join(new_id() for _ in range(COUNT)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        theirs = answer.read().split("\n")
    os.waitpid(child, 0)
    ours = [new_id() for _ in range(COUNT)]
    assert len(theirs) == COUNT
    assert {one[19:] for one in theirs}.isdisjoint(one[19:] for one in ours)


@pytest.mark.parametrize("call", ["time_ns", "urandom"])
def test_a_signal_handler_may_make_an_id_in_the_middle_of_another(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = time if call == "time_ns" else os
    real = getattr(place, call)
    made = []

    def interrupted(*args: int) -> object:
        monkeypatch.setattr(place, call, real)
        signal.raise_signal(signal.SIGUSR1)
        return real(*args)

    before = signal.signal(signal.SIGUSR1, lambda *_: made.append(new_id()))
    try:
        for _ in range(COUNT):
            monkeypatch.setattr(place, call, interrupted)
            made.append(new_id())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(made) > COUNT
    assert len({one[19:] for one in made}) == len(made)
    assert made == sorted(set(made)) or call == "urandom"  # an interrupted id has its time already
