"""Bar charts as SVG files, one for light pages and one for dark ones. No library draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

Theme = Literal["light", "dark"]

WIDTH, LABEL, VALUE, ROW, BAR, HEAD, GROUP = 760, 210, 150, 20, 13, 42, 30
INK = {"light": ("#1f2328", "#57606a", "#d0d7de"), "dark": ("#e6edf3", "#9198a1", "#3d444d")}
OURS = {"light": "#1d6fd6", "dark": "#58a6ff"}
OURS_TOO = {"light": "#7fb2ee", "dark": "#2f5f9e"}
PEER = {"light": "#8c959f", "dark": "#6e7681"}


@dataclass(frozen=True)
class Bar:
    """One bar. One without a value has only its words."""

    label: str
    value: float | None
    words: str
    kind: Literal["ours", "ours too", "peer"] = "peer"


@dataclass(frozen=True)
class Group:
    """Bars that are compared with each other, on one scale."""

    title: str
    bars: Sequence[Bar]


def chart(title: str, subtitle: str, groups: Sequence[Group], theme: Theme) -> str:
    """Draw groups of horizontal bars. The background stays transparent."""
    ink, soft, line = INK[theme]
    parts = [
        f'<text x="0" y="16" font-size="15" font-weight="600" fill="{ink}">{escape(title)}</text>',
        f'<text x="0" y="34" font-size="12" fill="{soft}">{escape(subtitle)}</text>',
    ]
    top = HEAD
    for group in groups:
        parts.append(f'<text x="0" y="{top + 20}" font-size="12" font-weight="600" fill="{soft}">'
                     f"{escape(group.title)}</text>")  # fmt: skip
        top += GROUP
        height = len(group.bars) * ROW
        parts.append(f'<line x1="{LABEL}" y1="{top - 2}" x2="{LABEL}" y2="{top + height}" stroke="{line}"/>')
        highest = max((bar.value for bar in group.bars if bar.value is not None), default=0.0)
        for bar in group.bars:
            parts += _bar(bar, top, highest, theme)
            top += ROW
    height = top + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif"><title>{escape(title)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(bar: Bar, top: int, highest: float, theme: Theme) -> list[str]:
    ink, soft, _ = INK[theme]
    colour = {"ours": OURS, "ours too": OURS_TOO, "peer": PEER}[bar.kind][theme]
    middle, weight = top + BAR - 1, "600" if bar.kind != "peer" else "400"
    length = (WIDTH - LABEL - VALUE) * bar.value / highest if bar.value is not None and highest else 0.0
    name = f'x="{LABEL - 8}" y="{middle}" font-size="12" font-weight="{weight}" text-anchor="end" fill="{ink}"'
    drawn = [f"<text {name}>{escape(bar.label)}</text>"]
    if bar.value is not None:
        drawn.append(f'<rect x="{LABEL}" y="{top}" width="{max(length, 1):.1f}" height="{BAR}" rx="2" fill="{colour}">'
                     f"<title>{escape(f'{bar.label}: {bar.words}')}</title></rect>")  # fmt: skip
    drawn.append(f'<text x="{LABEL + length + 6:.1f}" y="{middle}" font-size="12" '
                 f'fill="{ink if bar.value is not None else soft}">{escape(bar.words)}</text>')  # fmt: skip
    return drawn


def write_chart(folder: Path, name: str, title: str, subtitle: str, groups: Sequence[Group]) -> str:
    """Write both files of a chart; return the HTML that shows the fitting one."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        (folder / f"{name}-{theme}.svg").write_text(chart(title, subtitle, groups, theme))
    return (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{folder.name}/{name}-dark.svg">\n'
        f'<img src="{folder.name}/{name}-light.svg" alt="{escape(f"{title}. {subtitle}", quote=True)}">\n</picture>'
    )
