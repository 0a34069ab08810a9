"""Drawings of tables: terminal, Markdown, Mermaid, Graphviz, JSON.

Each drawing is a pure function of a `Sketch`, which holds names only. It uses the same rows that `Table.advance` looks
up, so a picture cannot differ from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

START = "(initial)"


class Sketch(NamedTuple):
    """The names in a table, for drawings."""

    name: str
    states: tuple[str, ...]
    events: tuple[str, ...]
    rows: tuple[tuple[str | None, str, str], ...]
    qualifiers: Mapping[str, str]
    asks_for_states: bool

    @property
    def final(self) -> list[str]:
        """Return the states that no row leaves, in order."""
        left = {state for state, _, _ in self.rows}
        return [state for state in self.states if state not in left]

    @property
    def sources(self) -> list[str | None]:
        """Return every row heading: the start first, if the table's pairs include it, then the states."""
        return [*([] if self.asks_for_states else [None]), *self.states]


def text(sketch: Sketch) -> str:
    """Draw the rows under their state, in columns, with final states and qualifiers marked."""
    lines = [_headline(sketch), ""]
    width = max(len(state) for state in (*sketch.states, START))
    for state in (None, *sketch.states):
        label = START if state is None else state
        for move in _moves(sketch, state):
            lines.append(f"  {label:<{width}}  {move}")
            label = ""  # only the first line of a group names the state
    lines += [f"  {state:<{width}}  is {base}, shown under another name" for state, base in sketch.qualifiers.items()]
    return "\n".join(lines)


def markdown(sketch: Sketch) -> str:
    """Draw the whole matrix, one line per state, a dash for every refused cell."""
    cells = {(state, event): target for state, event, target in sketch.rows}
    heading = ["from \\ to" if sketch.asks_for_states else "from \\ event", *sketch.events]
    lines = [_markdown_line(heading), _markdown_line(["---"] * len(heading))]
    for state in sketch.sources:
        label = START if state is None else f"**{state}**"
        lines.append(_markdown_line([label, *(cells.get((state, event), "–") for event in sketch.events)]))
    return "\n".join(lines)


def mermaid(sketch: Sketch) -> str:
    """Draw a Mermaid ``stateDiagram-v2``; parallel edges share one arrow."""
    lines = ["stateDiagram-v2"]
    for (state, target), events in _edges(sketch).items():
        label = "" if sketch.asks_for_states else f" : {', '.join(events)}"
        lines.append(f"    {'[*]' if state is None else state} --> {target}{label}")
    lines += [f"    {state} --> [*]" for state in sketch.final]
    return "\n".join(lines)


def dot(sketch: Sketch) -> str:
    """Draw a Graphviz digraph; final states have a double border, qualifiers a dashed one."""
    lines = [f'digraph "{sketch.name}" {{', "    rankdir=LR;", '    "" [shape=point];']
    for state in sketch.states:
        final, qualifier = state in sketch.final, state in sketch.qualifiers
        shape = "doublecircle" if final else "box"
        lines.append(f'    "{state}" [shape={shape}, style="{"dashed" if qualifier else "rounded"}"];')
    for (source, target), events in _edges(sketch).items():
        stacked = "\\n".join(events)
        label = "" if sketch.asks_for_states else f' [label="{stacked}"]'
        lines.append(f'    "{source or ""}" -> "{target}"{label};')
    return "\n".join([*lines, "}"])


def plain(sketch: Sketch) -> dict[str, object]:
    """Return the table as JSON values, for other programs."""
    return {
        "machine": sketch.name,
        "states": list(sketch.states),
        "events": list(sketch.events),
        "final": sketch.final,
        "qualifiers": dict(sketch.qualifiers),
        "rows": [{"from": state, "event": event, "to": target} for state, event, target in sketch.rows],
    }


def _headline(sketch: Sketch) -> str:
    legal = [row for row in sketch.rows if row[0] in sketch.sources]
    pairs = len(sketch.sources) * len(sketch.events)
    return f"{sketch.name}: {len(sketch.states)} states, {len(legal)} legal cells of {pairs}, all others refused"


def _moves(sketch: Sketch, state: str | None) -> list[str]:
    rows = [(event, target) for source, event, target in sketch.rows if source == state]
    if not rows:
        return ["is final"]
    if sketch.asks_for_states:
        return ["→ " + ", ".join(target for _, target in rows)]
    width = max(len(event) for event in sketch.events)
    return [f"{event:<{width}} → {target}" for event, target in rows]


def _edges(sketch: Sketch) -> dict[tuple[str | None, str], list[str]]:
    edges: dict[tuple[str | None, str], list[str]] = {}
    for state, event, target in sketch.rows:
        edges.setdefault((state, target), []).append(event)
    return edges


def _markdown_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
