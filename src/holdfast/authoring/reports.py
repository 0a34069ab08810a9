"""What a running job reports: its progress, and its exports (SPEC R9, R10).

Both functions may be called anywhere inside a job, also in steps and tools, from the loop or a thread. They never wait.
Outside a job they check their arguments and do nothing, so a step can be tested by itself. Secrets that were revealed
are redacted in both, but not in exported files.
"""

from __future__ import annotations

import hashlib
import math
import mimetypes
import os
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.authoring.redaction import redacted, redacted_bytes, redacted_value
from holdfast.authoring.signature import checked_payload
from holdfast.errors import InvalidArguments

STAGE_MAX = 128
MESSAGE_MAX = 512
NAME_MAX = 255
METRICS_BYTES_MAX = 16_384
PIECE_BYTES = 262_144  # read from a file, and stored in a blob, at a time
KINDS = ("text", "json", "url", "binary")
_MEDIA = {"text": "text/plain; charset=utf-8", "json": "application/json", "url": "text/uri-list"}

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode


class Product(msgspec.Struct, frozen=True):
    """An export: a value, or the path of a file. `key` is the same for the same name and content."""

    key: str
    name: str
    kind: str
    media_type: str
    size: int
    value: Any = None
    content: bytes | None = None
    path: str | None = None


class Reporter(Protocol):
    """Receives the reports of a job; the attempt that runs it."""

    def progress(self, fields: dict[str, Any]) -> None:
        """Store these fields in place of their earlier values."""
        ...

    def export(self, product: Product) -> Awaitable[None]:
        """Store a product. The result can be awaited, and is done when the product is durable."""
        ...

    def spent(self, call: str | None, amounts: dict[str, int]) -> None:
        """Record what a call, or the job's own code, has spent, in millionths."""
        ...


reporter: ContextVar[Reporter | None] = ContextVar("holdfast_reporter", default=None)


def progress(
    value: float | None = None,
    *,
    stage: str | None = None,
    message: str | None = None,
    step: int | None = None,
    step_total: int | None = None,
    eta_seconds: float | None = None,
    metrics: dict[str, Any] | None = None,
) -> None:
    """Report how far the run is.

    Only the latest report counts. Fields that are not given keep their value. A report writes no event.

    Args:
        value: from 0 to 1.
        stage: what the run does now, in at most 128 characters.
        message: more about it, in at most 512 characters.
        step: the number of steps done.
        step_total: the number of steps in total.
        eta_seconds: the time that the run still needs.
        metrics: figures of any kind; at most 16 KiB of JSON.

    Raises:
        InvalidArguments: a value is out of bounds. Nothing was stored.
    """
    fields = {
        "progress": _fraction(value),
        "stage": _text("stage", stage, STAGE_MAX),
        "message": _text("message", message, MESSAGE_MAX),
        "step": _count("step", step),
        "step_total": _count("step_total", step_total),
        "eta_seconds": _seconds(eta_seconds),
        "metrics": _metrics(metrics),
    }
    report = {name: field for name, field in fields.items() if field is not None}
    check_step_bounds(report)
    taker = reporter.get()
    if taker is not None and report:
        taker.progress(report)


def check_step_bounds(report: dict[str, Any]) -> None:
    """Check that `step` is not greater than `step_total`.

    Raises:
        InvalidArguments: it is.
    """
    step, total = report.get("step"), report.get("step_total")
    if step is not None and total is not None and step > total:
        raise InvalidArguments("progress", f"step must not be greater than step_total, got {step} of {total}")


def export(
    value: Any, name: str | None = None, *, kind: str | None = None, media_type: str | None = None
) -> Awaitable[None]:
    """Export a product of the run. It is listed with the run, in order, and can be read by every client.

    The same name and content exported again, as in a replay after a crash, is the same export. It is durable before the
    run succeeds. Awaiting the returned object waits for that at once, and is optional.

    Args:
        value: text; bytes; a `pathlib.Path`, whose file is read; or anything that JSON can hold.
        name: the name; by default the file's name, or the kind.
        kind: ``text``, ``json``, ``url`` or ``binary``; by default found from the value.
        media_type: the media type of the bytes; by default found from the kind or the file's name.

    Raises:
        InvalidArguments: the value does not fit the kind, or cannot be stored.
        PayloadTooLarge: the value has more bytes than the settings allow.
    """
    product = _product(value, name, kind, media_type)
    taker = reporter.get()
    return taker.export(product) if taker is not None else Nothing()


class Nothing:
    """An awaitable that is already done, for exports outside a job."""

    def __await__(self) -> Generator[Any, None, None]:
        return iter(())  # type: ignore[return-value]  # - no value is ever sent into it


def _product(value: Any, name: str | None, kind: str | None, media_type: str | None) -> Product:
    chosen_kind = kind or _kind_of(value)
    if chosen_kind not in KINDS:
        raise InvalidArguments("export", f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    called = _text("name", name, NAME_MAX) or (Path(value).name if isinstance(value, os.PathLike) else chosen_kind)
    if isinstance(value, os.PathLike):
        path = os.path.abspath(value)  # noqa: PTH100 - the path may be bytes
        media = media_type or mimetypes.guess_type(called)[0] or "application/octet-stream"
        size, hashed = _file(str(path))
        return Product(_key(called, chosen_kind, hashed), called, chosen_kind, media, size, path=str(path))
    kept = _value(chosen_kind, value)
    content = kept if isinstance(kept, bytes) else _encode(kept) if chosen_kind == "json" else str(kept).encode()
    media = media_type or _MEDIA.get(chosen_kind) or "application/octet-stream"
    hashed = hashlib.sha256(_canonical(kept) if chosen_kind == "json" else content).hexdigest()  # for any order of keys
    inline = None if isinstance(kept, bytes) else kept
    return Product(_key(called, chosen_kind, hashed), called, chosen_kind, media, len(content), inline, content)


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    return "binary" if isinstance(value, (bytes, bytearray, memoryview, os.PathLike)) else "json"


def _value(kind: str, value: Any) -> Any:
    if kind == "binary":
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArguments(
                "export", f"a value of kind binary must be bytes or a path, got {type(value).__name__}"
            )
        return redacted_bytes(bytes(value))
    if kind in {"text", "url"} and not isinstance(value, str):
        raise InvalidArguments("export", f"a value of kind {kind} must be text, got {type(value).__name__}")
    if kind == "url" and not value.startswith(("http://", "https://")):
        raise InvalidArguments("export", f"a url must begin with http:// or https://, got {value[:50]!r}")
    return checked_payload("export", redacted_value(value))


def _file(path: str) -> tuple[int, str]:
    hashed, size = hashlib.sha256(), 0
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                hashed.update(piece)
                size += len(piece)
    except OSError as error:
        raise InvalidArguments("export", f"{path} cannot be read: {error.strerror}") from error
    return size, hashed.hexdigest()


def _key(name: str, kind: str, hashed: str) -> str:
    return hashlib.sha256(f"{kind}:{hashed}:{name}".encode()).hexdigest()[:40]


def _fraction(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InvalidArguments("progress", f"value must be a number from 0 to 1, got {value!r}")
    return float(value)


def _text(what: str, text: Any, most: int) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > most:
        raise InvalidArguments(what, f"must be text of at most {most} characters, got {str(text)[:50]!r}")
    return str(checked_payload(what, redacted(text)[:most]))


def _count(what: str, count: int | None) -> int | None:
    if count is None:
        return None
    if type(count) is not int or not 0 <= count < 2**53:
        raise InvalidArguments("progress", f"{what} must be an integer, 0 or more, got {count!r}")
    return count


def _seconds(eta: Any) -> float | None:
    if eta is None:
        return None
    if not isinstance(eta, (int, float)) or isinstance(eta, bool) or not math.isfinite(eta) or eta < 0:
        raise InvalidArguments("progress", f"eta_seconds must be a number, 0 or more, got {eta!r}")
    return float(eta)


def _metrics(metrics: Any) -> dict[str, Any] | None:
    if metrics is None:
        return None
    if not isinstance(metrics, dict):
        raise InvalidArguments("progress", f"metrics must be a dict, got {type(metrics).__name__}")
    encoded: dict[str, Any] = checked_payload("metrics", redacted_value(metrics), METRICS_BYTES_MAX)
    return encoded
