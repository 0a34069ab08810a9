"""How the public API looks to a type checker. Checked by mypy and pyright; never run."""

from __future__ import annotations

from typing import TypedDict, assert_type

import holdfast
from holdfast import App, Codec, Secret
from holdfast.client.remote.client import RemoteClient
from holdfast.machines import (
    JOB,
    READY,
    RUN,
    Event,
    JobEvent,
    JobState,
    ReadyState,
    Row,
    RunRecord,
    RunStatus,
    Snapshot,
    Violation,
    check,
    decode,
    derive,
    fold,
    run_paths,
    runs,
    seal,
)
from holdfast.ready import (
    BackoffGate,
    BudgetGate,
    ConcurrencyGate,
    Gate,
    GateCounts,
    MemoryLedger,
    Pending,
    RateGate,
    Reading,
    ReadyMonitor,
    Share,
    WakeSource,
    all_of,
)

assert_type(JOB.advance("queued", "job_running"), JobState)
assert_type(JOB.advance(None, JobEvent.CREATED), JobState)
assert_type(RUN.advance("queued", RunStatus.RUNNING), RunStatus)
assert_type(READY.advance("ready", "busy"), ReadyState)
assert_type(JOB.rows(), list[Row[JobState, JobEvent]])
assert_type(JOB.allowed("queued"), dict[JobEvent, JobState])
assert_type(RUN.final, frozenset[RunStatus])
assert_type(JOB.mermaid(), str)

first = seal(None, "job_created", {"plugin": "shop"}, job="j", at=1.0)
assert_type(first, Event)
assert_type(decode(b"{}"), Event)
assert_type(derive([first, "job_running"]), JobState)
assert_type(check([first]), list[Violation])
assert_type(fold([first]), Snapshot)
assert_type(runs([first]), list[RunRecord])
assert_type(run_paths([first]), list[list[RunStatus]])

server = holdfast.connect("http://127.0.0.1:4653")
assert_type(server, RemoteClient)
assert_type(server.start("shop.checkout", sku="A1"), holdfast.RunHandle)
assert_type(server.get("run"), RunRecord)

monitor = ReadyMonitor()
with monitor.begin() as poll:
    poll.watch(WakeSource.IO_READY, "timer")
    assert_type(poll.finish(Pending(frozenset({WakeSource.IO_READY}))), Reading)

budget = BudgetGate(100, per=60, unit="tokens", ledger=MemoryLedger(), now=lambda: 0.0)
gate: Gate = all_of(
    ConcurrencyGate(4, name="openai"), RateGate(10, per=1, burst=5), budget, BackoffGate(errors=OSError)
)
assert_type(gate.poll_ready(), Reading)
assert_type(gate.try_acquire(), Share | None)
assert_type(gate.counts(), GateCounts)


async def inside_a_gate() -> None:
    async with gate as share:
        assert_type(share, Share)
    assert_type(await gate.acquire(), Share)


class Rot:
    def encrypt(self, data: bytes, /) -> bytes:
        return data

    decrypt = digest = encrypt


codec: Codec = Rot()
app = App("shop", codec=codec)
app.codec = None
assert_type(Secret(7), Secret[int])
assert_type(Secret("x").reveal(), str)
assert_type(Secret.env("NAME"), Secret[str])
app.include(App("mail"))


class Approval(TypedDict):
    """An answer of a person."""

    approved: bool


async def ask() -> None:
    """An async job awaits the answer, a plain job uses it as it is."""
    assert_type(await holdfast.wait_for("approval", form=Approval), Approval)
    plain: Approval = holdfast.wait_for("approval", timeout="3d", form=Approval)
    assert plain
    assert await holdfast.wait_for("any", form=int | str)
