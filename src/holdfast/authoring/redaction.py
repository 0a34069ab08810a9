"""Redaction of revealed secrets: their text is kept out of everything that is stored (rule S14).

A history cannot be changed later, so values are checked before they are written. A secret that a job reveals is known
while its attempt runs. One that is revealed outside a job is known while the process runs (the latest `TEXTS_MAX`).

- Text for people is redacted: errors, tracebacks, progress, exports. `MARK` replaces the secret.
- Log lines are redacted by `redact_log_line`, which knows the latest `LOGGED_MAX` secrets of the process. A line may
  be logged outside any job, for example by a thread that a job left running. Secrets that clients send have a list of
  their own: however many they send, they do not displace the secrets of the app.
- Values that job code uses again are refused, by `holds_secret`: a redacted argument or result would be wrong. Only
  secrets of the same job count, so one user's weak password does not stop the jobs of others.

This is a safety net, not a proof. It recognises a secret as it is, as JSON, ``repr``, URLs and base64 write it, and
each long line of a secret with several lines. It does not recognise a part of a secret, or a value computed from it.
Short secrets are ignored: a secret of three characters occurs in half of all texts.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

MARK = "[secret]"
TEXTS_MAX = 200  # secrets known at the same time, per job or process
LOGGED_MAX = 1000  # secrets redacted in log lines
REDACT_MIN = 4  # characters of the shortest redacted text
WHOLE_MIN = 8  # characters of a text that a value must not equal
PART_MIN = 16  # characters of a text that a value must not contain: shorter ones occur in words
LINE_MIN = 16  # characters of a line that reveals a secret of several lines


class Revealed:
    """Texts that must not be stored. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, None] = {}
        self.forms: tuple[str, ...] = ()  # all written forms, longest first, because one may contain another
        self.parts: tuple[bytes, ...] = ()  # forms that a value must not contain
        self.wholes: tuple[bytes, ...] = ()  # in quotes: forms that no text of a value may equal

    def add(self, text: str) -> None:
        """Add a text. If there are too many, drop the oldest."""
        with self._lock:
            if text in self._texts:
                return
            self._texts[text] = None
            if len(self._texts) > TEXTS_MAX:
                del self._texts[next(iter(self._texts))]
            forms = {form for known in self._texts for form in _forms(known)}
            self.forms = tuple(sorted(forms, key=len, reverse=True))
            self.parts = tuple(form.encode() for form in self.forms if len(form) >= PART_MIN)
            self.wholes = tuple(f'"{form}"'.encode() for form in self.forms if WHOLE_MIN <= len(form) < PART_MIN)


revealed: ContextVar[Revealed | None] = ContextVar("holdfast_revealed", default=None)  # of this attempt
_outside = Revealed()  # the secrets of code outside jobs
_seen: dict[str, None] = {}  # all secrets of the process, for log lines
_sent: dict[str, None] = {}  # those that clients have sent, and no code has revealed
_seeing = threading.Lock()


def remember_secret(value: Any, *, outside: bool = True, sent: bool = False) -> None:
    """Remember every text and number in a secret's value, at any depth.

    Args:
        value: the value.
        outside: also redact it in texts for people when no job runs.
        sent: whether a client has sent it.
    """
    known = revealed.get() or (_outside if outside else None)
    logged = _sent if sent else _seen
    for text in _texts(value):
        if len(text) < REDACT_MIN:
            continue
        if known is not None:
            known.add(text)
        if text not in logged:
            with _seeing:
                logged[text] = None
                if len(logged) > LOGGED_MAX:
                    del logged[next(iter(logged))]


def redacted(text: str) -> str:
    """Return text for people without the secrets in it."""
    for known in _known():
        for form in known.forms:
            if form in text:
                text = text.replace(form, MARK)
    return text


def redact_log_line(text: str) -> str:
    """Return a log line without the secrets that this process has seen, in any job."""
    with _seeing:
        known = [*_seen, *_sent]
    for secret in known:
        for form in _forms(secret):
            if form in text:
                text = text.replace(form, MARK)
    return text


def redacted_bytes(data: bytes) -> bytes:
    """Return bytes without the secrets in them, encoded as UTF-8."""
    for known in _known():
        for form in known.forms:
            data = data.replace(form.encode(), MARK.encode())
    return data


def redacted_value(value: Any) -> Any:
    """Return plain values for people without the secrets in their texts."""
    if not _known():
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {redacted_value(name): redacted_value(item) for name, item in value.items()}
    return [redacted_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def holds_secret(written: bytes) -> bool:
    """Return whether a value, written as JSON, contains the text of a secret that the current job has revealed."""
    known = revealed.get()
    if known is None or not known.forms:
        return False
    if any(form in written for form in known.parts):
        return True
    return any(form in written and form in written.replace(form + b":", b"") for form in known.wholes)  # not as a name


def _known() -> list[Revealed]:
    here = revealed.get()
    return [known for known in (here, _outside) if known is not None and known.forms]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from (*_texts(name), *_texts(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


@functools.lru_cache(LOGGED_MAX)
def _forms(text: str) -> tuple[str, ...]:
    """Return the ways in which a text may be written, longest first, because one may contain another."""
    raw = text.encode(errors="surrogatepass")
    forms = {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    forms |= {urllib.parse.quote(raw), urllib.parse.quote(raw, safe=""), urllib.parse.quote_plus(raw)}
    forms |= {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    forms |= {line.strip() for line in text.splitlines() if len(line.strip()) >= LINE_MIN}
    written = {form.encode(errors="backslashreplace").decode() for form in forms}
    return tuple(sorted(written, key=len, reverse=True))
