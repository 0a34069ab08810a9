"""A net under secrets: the text of those that were revealed is kept out of what is stored (rule S14).

A history cannot be unwritten, so this looks before anything is. Whatever a job has revealed is known for as long as
its attempt runs, and what is revealed outside a job for as long as the process does (the latest `TEXTS_MAX` of it).

- Texts for people are redacted: errors, tracebacks, progress, exports. `MARK` stands where the secret stood.
- Log lines are redacted too, by `unseen`, which knows the latest `LOGGED_MAX` of everything that this process has seen:
  a line may be written where no job runs, by a thread or a loop that was left behind.
- Values that a job's code goes on with are refused, by `holds`: a redacted argument or result would be a wrong one.
  Only by what the job itself has revealed: one user's weak password must not stop the jobs of others.

It is a net and no proof. It knows a secret as it is, and as JSON, ``repr``, URLs and base64 write it, and each longer
line of one that has several; not a part of one, nor what was computed from it. What is short is left alone: a secret of
three characters is in half of all texts.
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

__all__ = [
    "MARK",
    "Revealed",
    "holds_secret",
    "redact_log_line",
    "redacted",
    "redacted_bytes",
    "redacted_value",
    "remember_secret",
    "revealed",
]

MARK = "[secret]"
TEXTS_MAX = 200  # secrets that are known at once, of a job or of the process
LOGGED_MAX = 1000  # secrets that are kept out of log lines
REDACT_MIN = 4  # characters of a text that is redacted
WHOLE_MIN = 8  # characters of one that may be no text of a value by itself
PART_MIN = 16  # characters of one that may be nowhere in a value: shorter ones are words, and in words
LINE_MIN = 16  # characters of a line that gives a secret of several lines away


class Revealed:
    """Texts that must not be stored; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, None] = {}
        self.forms: tuple[str, ...] = ()  # as they may be written; the longest first, for one may hold another
        self.parts: tuple[bytes, ...] = ()  # those of them that may be nowhere in a value
        self.wholes: tuple[bytes, ...] = ()  # and, in quotes, those that may be no text of it

    def add(self, text: str) -> None:
        """Know a text from now on; the oldest is forgotten for it, if there are too many."""
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


revealed: ContextVar[Revealed | None] = ContextVar("holdfast_revealed", default=None)  # by the attempt that runs here
_outside = Revealed()  # by code that runs in no job
_seen: dict[str, None] = {}  # by anybody here: what log lines must not show
_seeing = threading.Lock()


def remember_secret(value: Any, *, outside: bool = True) -> None:
    """Know everything in a secret's value, texts and numbers, however deep; `outside` also where no job runs."""
    known = revealed.get() or (_outside if outside else None)
    for text in _texts(value):
        if len(text) < REDACT_MIN:
            continue
        if known is not None:
            known.add(text)
        if text not in _seen:
            with _seeing:
                _seen[text] = None
                if len(_seen) > LOGGED_MAX:
                    del _seen[next(iter(_seen))]


def redacted(text: str) -> str:
    """Give a text for people without the secrets in it."""
    for known in _known():
        for form in known.forms:
            if form in text:
                text = text.replace(form, MARK)
    return text


def redact_log_line(text: str) -> str:
    """Give a log line without the secrets that this process has seen, wherever it was written."""
    with _seeing:
        known = list(_seen)
    for secret in known:
        for form in _forms(secret):
            if form in text:
                text = text.replace(form, MARK)
    return text


def redacted_bytes(data: bytes) -> bytes:
    """Give bytes without the secrets in them, as UTF-8 writes them."""
    for known in _known():
        for form in known.forms:
            data = data.replace(form.encode(), MARK.encode())
    return data


def redacted_value(value: Any) -> Any:
    """Give plain values, which nobody computes with, without the secrets in their texts."""
    if not _known():
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {redacted_value(name): redacted_value(one) for name, one in value.items()}
    return [redacted_value(one) for one in value] if isinstance(value, (list, tuple)) else value


def holds_secret(written: bytes) -> bool:
    """Whether a value, as JSON writes it, holds the text of a secret that the job which runs here has revealed."""
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
        for name, one in value.items():
            yield from (*_texts(name), *_texts(one))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


@functools.lru_cache(LOGGED_MAX)
def _forms(text: str) -> tuple[str, ...]:
    """How a text may be written; the longest first, for one may hold another."""
    raw = text.encode(errors="surrogatepass")
    found = {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found |= {urllib.parse.quote(raw), urllib.parse.quote(raw, safe=""), urllib.parse.quote_plus(raw)}
    found |= {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    found |= {line.strip() for line in text.splitlines() if len(line.strip()) >= LINE_MIN}
    written = {form.encode(errors="backslashreplace").decode() for form in found}
    return tuple(sorted(written, key=len, reverse=True))
