"""The mark that a check leaves, so that the next one of the same code looks only at runs that have changed.

It is a small file next to the caller, not in the store: a check writes nothing there. It holds for one target, one
store and one state of the code. If any of these differs, or the file cannot be read, everything is checked again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

import msgspec

from holdfast.deploys.store_check import Findings, Since

MARK = Path(".holdfast") / "check.json"
SLACK_SECONDS = 60.0  # a transaction may end so long after the time that it has written
AGAIN_MAX = 10_000  # runs that did not fit; with more of them everything is checked again


class Mark(msgspec.Struct, frozen=True):
    """What a check of some code has seen."""

    target: str
    store: str
    code: str
    at: float
    again: list[str]


def code_digest(modules: Collection[ModuleType]) -> str:
    """Return a digest of the source files of modules: a check of other code says nothing about this one."""
    digest = hashlib.sha256()
    for file in sorted({str(module.__file__) for module in modules if getattr(module, "__file__", None)}):
        digest.update(file.encode())
        try:
            digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
        except OSError:
            digest.update(b"unreadable")
    return digest.hexdigest()[:32]


def modules_since(before: Collection[str]) -> list[ModuleType]:
    """Return the modules that were imported after these names were listed."""
    return [module for name, module in list(sys.modules.items()) if name not in before]


def store_digest(url: str) -> str:
    """Return a digest of a store's URL, which may have a password."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def read_mark(path: Path, target: str, url: str, code: str) -> Since | None:
    """Return what the last check of this code has seen; None if there was none."""
    try:
        mark = msgspec.json.decode(path.read_bytes(), type=Mark)
    except (OSError, msgspec.DecodeError):
        return None
    if (mark.target, mark.store, mark.code) != (target, store_digest(url), code):
        return None
    return Since(mark.at, frozenset(mark.again))


def write_mark(path: Path, target: str, url: str, code: str, findings: Findings) -> None:
    """Write the mark of a check; remove it if too many runs did not fit."""
    again = [found.run for found in findings.runs if found.verdict.is_failure]
    if findings.left_off or len(again) > AGAIN_MAX:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(Mark(target, store_digest(url), code, findings.at - SLACK_SECONDS, again)))
    part.replace(path)
