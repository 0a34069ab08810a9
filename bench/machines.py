"""How fast the machines are, as ratios inside one run: machines are shared and noisy, ratios are not.

Each comparison alternates between its two sides and takes the best round of each. A floor that is missed ends the run
with exit code 1.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial

from transitions import Machine

from holdfast.machines import JOB, Event, check, decode, derive, encode, fold, runs, seal

ROUNDS = 7
ADVANCE_RATIO_MIN = 10.0  # times as many transitions a second as the `transitions` package
LINEAR_RATIO_MAX = 1.3  # cost per event at 100,000 events over that at 10,000

# A job that is claimed, waits, is woken, loses its worker and goes round again: all legal, no end.
CYCLE = ["job_running", "job_waiting", "wait_completed", "job_running", "job_requeued", "job_leased", "job_requeued"]


def best(*sides: Callable[[], object]) -> list[float]:
    """Best seconds of each side, rounds interleaved so that a slow moment hits all of them."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, taken in zip(sides, times, strict=True):
            gc.collect()
            started = time.perf_counter()
            side()
            taken.append(time.perf_counter() - started)
    return [min(taken) for taken in times]


def advance_ours(rounds: int) -> None:
    """Drive the Job table round the cycle."""
    state = JOB.advance(None, "job_created")
    advance = JOB.advance
    for _ in range(rounds):
        for event in CYCLE:
            state = advance(state, event)


class Model:
    """The peer's machine wants an object to hang its state on."""

    state: str


def peer() -> Machine:
    """Build the same table in the peer's terms, with everything optional switched off."""
    rows = [[row.event.value, row.state.value, row.target.value] for row in JOB.rows() if row.state is not None]
    states = [state.value for state in JOB.states]
    return Machine(Model(), states=states, transitions=rows, initial="queued", auto_transitions=False)


def advance_peer(machine: Machine, rounds: int) -> None:
    """Drive the peer round the same cycle, through its own generated methods, its quickest way."""
    model = machine.models[0]
    triggers = [getattr(model, event) for event in CYCLE]
    for _ in range(rounds):
        for trigger in triggers:
            trigger()


def records(length: int) -> list[Event]:
    """Make a legal stream of whole records: claims, steps, tools, waits."""
    events = [seal(None, "job_created", {"plugin": "bench", "entry": "cycle"}, job="bench", at=1.0)]
    attempt = node = 0

    def put(kind: str, payload: dict[str, object], *, fenced: bool = True) -> None:
        events.append(seal(events[-1], kind, payload, at=float(len(events)), attempt=attempt if fenced else None))

    while len(events) < length:
        attempt += 1
        put("job_running", {"worker": "w1"})
        for _ in range(10):
            node += 1
            put("node_started", {"node": f"n{node}"})
            put("command_committed", {"node": f"n{node}", "result": node})
            put("node_finished", {"node": f"n{node}", "result_type": "success"})
        put("job_waiting", {"node": "w", "correlation_key": f"k{attempt}", "wait_type": "signal"})
        put("wait_completed", {"correlation_key": f"k{attempt}"}, fenced=False)
    return events[:length]


def repeat(read: Callable[[list[Event]], object], events: list[Event]) -> None:
    """Read ten times, so that both sides of a comparison read as many events."""
    for _ in range(10):
        read(events)


def main() -> int:
    """Measure, print, judge."""
    missed = []

    rounds = 20_000
    machine = peer()
    ours, theirs = best(lambda: advance_ours(rounds), lambda: advance_peer(machine, rounds))
    steps = rounds * len(CYCLE)
    ratio = theirs / ours
    print(
        f"advance        holdfast {steps / ours:12,.0f}/s   transitions {steps / theirs:10,.0f}/s   {ratio:6.1f} times"
    )
    if ratio < ADVANCE_RATIO_MIN:
        missed.append(f"advance: {ratio:.1f} times the peer, at least {ADVANCE_RATIO_MIN} is due")

    short, long = records(10_000), records(100_000)
    for name, read in (("fold", fold), ("check", check), ("derive", derive), ("runs", runs)):
        few, many = best(partial(repeat, read, short), partial(read, long))
        linear = many / few
        print(f"{name:<14} {few * 10:5.2f} µs an event at 10,000   {many * 10:5.2f} at 100,000   ratio {linear:4.2f}")
        if linear > LINEAR_RATIO_MAX:
            missed.append(f"{name}: {linear:.2f} times the cost an event at 100,000, at most {LINEAR_RATIO_MAX} is due")

    lines = [encode(event) for event in short]
    (sealing,) = best(lambda: records(10_000))
    (writing,) = best(lambda: [encode(event) for event in short])
    (reading,) = best(lambda: [decode(line) for line in lines])
    rates = [("seal", sealing), ("encode", writing), ("decode", reading)]
    print("records       ", *(f"{name} {len(short) / taken:11,.0f}/s  " for name, taken in rates))

    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
