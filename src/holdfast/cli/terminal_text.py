"""Text of others on a terminal: control characters are shown, not obeyed.

Names, messages, payloads and results come from clients and job code. An escape sequence in them could change the title
or the clipboard of an operator's terminal, or overwrite lines. So every text that may hold such data is printed here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import click

# Control characters other than tab and line feed, those of the second set, and marks that change the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_text(text: str) -> str:
    """Return text with each control character as an escape of JSON. In a JSON document it keeps its meaning."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text that may hold data of others."""
    click.echo(safe_text(text), err=err)


def echo_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON."""
    echo(json.dumps(value, indent=indent, ensure_ascii=False))
