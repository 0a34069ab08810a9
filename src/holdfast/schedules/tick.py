"""A tick, as the job that it starts gets it, and the names of its run."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.schedules import zones


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The tick that has started a run. A job that has a parameter of this type gets it.

    Attributes:
        schedule: The schedule, as ``app.name``.
        nominal: When the tick was due by the definition of the schedule, in UTC. The run may start later.
        previous: The tick before it, whatever its outcome was. None if there was none.
        next: The tick after it. None if there is none.
        is_catch_up: Whether the tick is run late, after no worker ran when it was due, or as part of a backfill.
        is_manual: Whether an operator has fired the schedule. `nominal` is then the time of that.
        tz: The time zone of the schedule.
    """

    schedule: str
    nominal: datetime
    previous: datetime | None = None
    next: datetime | None = None
    is_catch_up: bool = False
    is_manual: bool = False
    tz: str = "UTC"

    @property
    def local(self) -> datetime:
        """The nominal time in the time zone of the schedule."""
        return self.nominal.astimezone(zones.zone(self.tz))


def instant(at: float) -> datetime:
    """Return an instant as a datetime in UTC."""
    return datetime.fromtimestamp(at, UTC)


@lru_cache(maxsize=4096)  # many schedules have a tick at the same time
def instant_text(at: float) -> str:
    """Return an instant in ISO format, as in ``2026-11-30T01:30:00Z``."""
    return instant(at).isoformat().replace("+00:00", "Z")


def tick_key(schedule: str, at: float) -> str:
    """Return the idempotency key of a tick's run. So a tick has one run, whatever starts it."""
    return f"schedule:{schedule}:{instant_text(at)}"


def run_id(seed: str, now: float) -> str:
    """Return the id of a new run: a UUIDv7 of the store's time. Its other bits follow from the seed."""
    stamp = int(now * 1000) & (1 << 48) - 1
    digest = int.from_bytes(hashlib.sha256(f"{seed}\0{now!r}".encode()).digest()[:10], "big")
    value = stamp << 80 | 0x7 << 76 | (digest >> 62 & 0xFFF) << 64 | 0b10 << 62 | digest & (1 << 62) - 1
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def tick_json(tick: Tick) -> Any:
    """Return a tick as JSON values."""
    return msgspec.to_builtins(tick)
