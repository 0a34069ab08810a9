"""What a server answers when it refuses, as the error that the same call on an app would have raised.

A problem names its condition, ``unknown_job``, and says in a message what is wrong. The parts of the condition are
fields beside the message, or are read from it: it is made by the same classes. Whatever cannot be read, the class is
right, which is what programs decide by, and the message is the server's, which is what people read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast import errors

__all__ = ["error_of"]

Fields = dict[str, Any]
REFUSED_FOR_NOW = frozenset({408, 429})
SERVER_FAILED = 500

# Where the parts of a condition stand in its message, as the classes in `errors` write it.
_PARTS = {
    "unknown_job": r"no job has the id (?P<q>['\"])(?P<job>.*)(?P=q)",
    "unknown_entry": r"there is no job (?P<q>['\"])(?P<name>.*)(?P=q); there are: (?P<known>.*)",
    "invalid_arguments": r"(?P<name>.*?): (?P<reason>.*)",
    "invalid_result": r"the result of (?P<name>.*?) cannot be kept: (?P<reason>.*)",
    "payload_too_large": r"(?P<what>.*): (?P<size>[\d,]+) bytes of JSON, and (?P<limit>[\d,]+) are allowed: .*",
    "idempotency_conflict": r"the key (?P<q>['\"])(?P<key>.*)(?P=q) belongs to job (?P<job>\S+), which .*",
    "queue_full": r"the queue (?P<q>['\"])(?P<queue>.*)(?P=q) holds (?P<depth>[\d,]+) jobs"
    r" .* in (?P<wait>[\d.e+-]+) s,.*",
    "effect_conflict": r"(?P<node>.*) of job (?P<job>\S+) has an effect already, .*",
    "not_in_doubt": r"job (?P<job>\S+) does not ask about (?P<q>['\"])(?P<node>.*)(?P=q): .*",
    "stale_attempt": r"attempt (?P<attempt>\d+) no longer holds job (?P<job>\S+) \(its newest is (?P<current>\d+)\).*",
    "invalid_transition": r"(?:event (?P<index>\d+): )?(?P<machine>\w+) in \S+ refuses (?P<event>\w+)"
    r"(?: \[(?P<rule>.*?)\])?(?:: (?P<detail>.*))?",
}
_PARTS["invalid_run_transition"] = _PARTS["invalid_transition"]

_MADE: dict[str, Callable[[Fields], Exception]] = {
    "unknown_job": lambda said: errors.UnknownJob(said.get("job") or said["asked"]),
    "unknown_entry": lambda said: errors.UnknownEntry(said.get("name") or said["asked"], _names(said.get("known"))),
    "invalid_arguments": lambda said: errors.InvalidArguments(
        said.get("name") or "the request", said.get("reason") or said["message"]
    ),
    "invalid_plan": lambda said: errors.InvalidPlan(str(said.get("plan") or "plan"), _names(said.get("problems"))),
    "invalid_result": lambda said: errors.InvalidResult(
        said.get("name") or "the job", said.get("reason") or said["message"]
    ),
    "payload_too_large": lambda said: errors.PayloadTooLarge(
        said.get("what") or "the request", _number(said.get("size")), _number(said.get("limit"))
    ),
    "idempotency_conflict": lambda said: errors.IdempotencyConflict(
        said.get("key") or said["asked"], said.get("job") or ""
    ),
    "queue_full": lambda said: errors.QueueFull(
        said.get("queue") or said["asked"], _number(said.get("depth")), float(said.get("wait") or 1)
    ),
    "effect_conflict": lambda said: errors.EffectConflict(said.get("job") or said["asked"], said.get("node") or ""),
    "not_in_doubt": lambda said: errors.NotInDoubt(said.get("job") or said["asked"], said.get("node") or ""),
    "stale_attempt": lambda said: errors.StaleAttempt(
        said.get("job") or said["asked"], _number(said.get("attempt")), _number(said.get("current"))
    ),
    "invalid_transition": lambda said: _refused(errors.InvalidTransition, said),
    "invalid_run_transition": lambda said: _refused(errors.InvalidRunTransition, said),
    "invalid_event": lambda said: errors.InvalidEvent(said["message"]),
    "not_found": lambda said: errors.UnknownJob(said["asked"]),
    "invalid_path": lambda said: errors.UnknownJob(said["asked"]),  # an id that could mean another path
}
_BY_STATUS = {404: "not_found", 413: "payload_too_large", 422: "invalid_arguments", 400: "invalid_arguments"}


def error_of(status: int, body: bytes, asked: str, server: str) -> Exception:
    """Make the error that an answer tells of.

    Args:
        status: the answer's.
        body: a problem document; anything else comes from something between, or from no Holdfast server.
        asked: what the request was about, for parts that cannot be read.
        server: its address, for the message.
    """
    said = _fields(body)
    if said is None:
        return errors.StoreUnavailable(
            f"{server} answers {status} and not as Holdfast does: is that the address of a Holdfast server?"
        )
    code = str(said["code"])
    told = f"{said['message']}: {said['hint']}" if said.get("hint") else said["message"]
    if code in {"unauthorized", "forbidden", "foreign_origin"}:
        return errors.NotAllowed(told)
    if code == "unknown_host":
        return errors.InvalidSetting("server", server, told)
    if code == "store_unavailable" or status >= SERVER_FAILED or (status in REFUSED_FOR_NOW and code not in _MADE):
        name = f" ({said['id']})" if said.get("id") else ""
        return errors.StoreUnavailable(f"{server}: {told}{name}")
    make = _MADE.get(code) or _MADE.get(_BY_STATUS.get(status, ""))
    if make is None:
        return errors.HoldfastError(f"{server}: {told}")
    parts = re.fullmatch(_PARTS.get(code, ""), said["message"], re.DOTALL)
    given = {**(parts.groupdict() if parts is not None else {}), **said, "asked": asked}
    return _saying(make(given), said["message"], (status, body, asked, server))


def _fields(body: bytes) -> Fields | None:
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return said if isinstance(said, dict) and {"code", "message"} <= set(said) else None


def _saying(error: Exception, message: str, made_from: tuple[int, bytes, str, str]) -> Exception:
    """Have an error say what the server said, where its own words would be others."""
    if str(error) != message:
        kind = type(error)
        own = {
            "__str__": lambda _: message,
            "__reduce__": lambda _: (error_of, made_from),
            "__module__": kind.__module__,
        }
        error.__class__ = type(kind.__name__, (kind,), own)
    return error


def _refused(kind: type[errors.TransitionRefused], said: Fields) -> errors.TransitionRefused:
    return kind(
        said.get("current"),
        said.get("event") or said.get("target") or "",
        machine=said.get("machine"),
        target=said.get("target") if kind.asks_for_states else None,
        detail=said.get("detail") or "",
        index=_number(said["index"]) if said.get("index") else None,
        rule=said.get("rule"),
    )


def _names(known: Any) -> list[str]:
    if isinstance(known, str):
        return [] if known == "none" else known.split(", ")
    return [str(name) for name in known or []]


def _number(said: Any) -> int:
    return int(str(said or 0).replace(",", ""))
