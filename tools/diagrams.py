"""Pictures of state machines and flows as SVG files, which need no script to be shown.

Each state is a column, and each arrow a row of its own, so that no two labels can collide. An arrow's `title` says what
it shows, for screen readers and for the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from holdfast.machines import Table

__all__ = ["DOUBT", "FLOW", "Arrow", "picture", "state_picture"]

Arrow = tuple[str, str, str]  # from, to, label

FLOW: list[Arrow] = [
    ("your program, CLI, HTTP", "store", "start, signal, cancel"),
    ("store", "worker", "claim with a lease"),
    ("worker", "store", "events: results, waits, the end"),
    ("worker", "your steps and tools", "calls"),
]

DOUBT: list[Arrow] = [
    ("declared on disk", "tool acts", ""),
    ("tool acts", "result on disk", ""),
    ("result on disk", "result is used", ""),
    ("declared on disk", "in doubt", "crash or timeout"),
    ("tool acts", "in doubt", "crash or timeout"),
    ("in doubt", "result is used", "done, with this result"),
    ("in doubt", "declared on disk", "not done"),
    ("in doubt", "call fails", "fail"),
]

START = "●"
SMALL, ROW, TOP = 6.2, 34, 46  # width of a character of a label, height of a row, height of the heading
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328;text-anchor:middle}"
    ".label{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    ".box{fill:#eef3fb;stroke:#4a6fa5}.final{fill:#eaf5ea;stroke:#3d7a3d}"
    ".life{stroke:#c8d1dc;stroke-dasharray:3 3}.arrow{stroke:#4a6fa5;stroke-width:1.5;fill:none}"
)


def state_picture(table: Table[Any, Any]) -> str:
    """Draw a table: every state a column, every pair of states with its events a row."""
    by_name = table.states is table.events
    events: dict[tuple[str, str], list[str]] = {}
    for row in table.rows():
        events.setdefault((row.state or START, row.target), []).append("" if by_name else row.event)
    columns = [START, *(str(state.value) for state in table.states)]
    arrows = [(source, target, ", ".join(names).strip(", ")) for (source, target), names in events.items()]
    return picture(arrows, columns, final=[str(state) for state in table.final])


def picture(arrows: Sequence[Arrow], columns: Sequence[str] = (), final: Sequence[str] = ()) -> str:
    """Draw arrows between columns; columns stand in the order of their first use where none is given."""
    names = list(columns) or list(dict.fromkeys(name for source, target, _ in arrows for name in (source, target)))
    step = max(len(name) for name in names) * 7 + 30
    at = {name: 20 + step // 2 + index * step for index, name in enumerate(names)}
    width, height = 40 + step * len(names), TOP + ROW * len(arrows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#4a6fa5"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for name, x in at.items():
        kind = "box final" if name in final else "box"
        parts.append(f'<line class="life" x1="{x}" y1="34" x2="{x}" y2="{height - 8}"/>')
        if name != START:
            parts.append(f'<rect class="{kind}" x="{x - step // 2 + 6}" y="8" width="{step - 12}" height="26" rx="6"/>')
        parts.append(f'<text x="{x}" y="26">{escape(name)}</text>')
    parts += [_arrow(arrow, at, TOP + ROW * index + 22, width) for index, arrow in enumerate(arrows)]
    return "\n".join([*parts, "</svg>\n"])


def _arrow(arrow: Arrow, at: dict[str, int], y: int, width: int) -> str:
    source, target, label = arrow
    start, end = at[source], at[target]
    path = f"M{start},{y} H{end}" if start != end else f"M{start},{y - 8} h28 v10 h-28"
    half = len(label) * SMALL / 2
    centre = (start + end) / 2 if start != end else start + 36 + half
    centre = min(max(centre, half + 6), width - half - 6)
    shift = 0 if start == end else -6
    title = f"<title>{escape(f'{source} → {target}: {label}')}</title>"
    text = f'<text class="label" x="{centre:.0f}" y="{y + shift}">{escape(label)}</text>' if label else ""
    return f'<g>{title}<path class="arrow" d="{path}" marker-end="url(#tip)"/>{text}</g>'
