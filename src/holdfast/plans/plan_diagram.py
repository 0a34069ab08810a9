"""Diagrams of a plan as text, Mermaid and Graphviz, with the state of each node if the plan runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.plans.graph import Graph
from holdfast.plans.model import CallNode, ChoiceNode, JobNode, MapNode, Node, Plan, SleepNode, WaitNode

MARKS = {
    "pending": "·",
    "ready": "·",
    "running": "…",
    "waiting": "⏸",
    "in doubt": "?",
    "done": "✓",
    "failed": "✗",
    "stopped": "⊘",
    "skipped": "–",
}
COLOURS = {
    "running": "cyan",
    "waiting": "yellow",
    "in doubt": "magenta",
    "done": "green",
    "failed": "red",
    "stopped": "red",
    "skipped": "bright_black",
}
_FILLS = {
    "running": "#cfe8fc",
    "waiting": "#fdf3c8",
    "in doubt": "#f6d5f2",
    "done": "#d3f2d6",
    "failed": "#fad1d1",
    "stopped": "#fae3e3",
    "skipped": "#e6e6e6",
}
INDENT_MAX = 12  # indented levels: a chain of a thousand nodes stays readable


def what(node: Node) -> str:
    """Return a short description of what a node does, on one line."""
    return _line(_does(node))


def _line(text: str) -> str:
    """Return text on one line, with each unprintable character escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _does(node: Node) -> str:
    match node:
        case CallNode():
            return node.call
        case JobNode():
            return f"job {node.job}"
        case MapNode():
            return f"map {node.call or f'job {node.job}'}"
        case WaitNode():
            return f"wait {node.key or node.id}"
        case SleepNode():
            return f"sleep {node.duration}" if isinstance(node.duration, (str, int, float)) else "sleep"
        case ChoiceNode():
            return "choice"


def tree(plan: Plan, states: Mapping[str, str] | None = None) -> list[tuple[str, str | None]]:
    """Return a line and the state for each node, after its dependencies and indented by their depth."""
    graph = Graph(plan.nodes)
    depth: dict[str, int] = {}
    lines: list[tuple[str, str | None]] = []
    for name in _reading_order(graph):
        needs = list(graph.needs[name])
        depth[name] = max((depth[other] + 1 for other in needs if other in depth), default=0)
        state = states.get(name) if states is not None else None
        mark = f"{MARKS.get(state, ' ')} " if state is not None else ""
        after = f"  ← {', '.join(map(_line, needs))}" if needs else ""
        suffix = f"  [{state}]" if state is not None else ""
        node = what(graph.nodes[name])
        title = node if node == _line(name) else f"{_line(name)} ({node})"
        lines.append((f"{'  ' * min(depth[name], INDENT_MAX)}{mark}{title}{after}{suffix}", state))
    return lines


def _reading_order(graph: Graph) -> list[str]:
    """Return the nodes so that each closely follows its dependencies. Nodes of a cycle come last."""
    left = {name: len(needs) for name, needs in graph.needs.items()}
    look = [name for name in reversed(graph.nodes) if not left[name]]
    ordered: list[str] = []
    while look:
        name = look.pop()
        ordered.append(name)
        for other in reversed(graph.feeds[name]):
            left[other] -= 1
            if not left[other]:
                look.append(other)
    return [*ordered, *(name for name in graph.nodes if left[name])]


def mermaid(plan: Plan, states: Mapping[str, str] | None = None) -> str:
    """Return the plan as a Mermaid flowchart."""
    graph = Graph(plan.nodes)
    numbers = {name: f"n{place}" for place, name in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for name, node in graph.nodes.items():
        text = _text(name, node, states).replace('"', "#quot;")
        left, right = {ChoiceNode: ("{", "}"), WaitNode: ("([", "])"), SleepNode: ("([", "])")}.get(
            type(node), ("[", "]")
        )
        lines.append(f'    {numbers[name]}{left}"{text}"{right}')
    for name, needs in graph.needs.items():
        lines += [f"    {numbers[other]} {_arrow(graph, other, name)} {numbers[name]}" for other in needs]
    for state, fill in _FILLS.items():
        members = [numbers[name] for name in graph.nodes if (states or {}).get(name) == state]
        if members:
            kind = state.replace(" ", "")
            lines += [f"    classDef {kind} fill:{fill}", f"    class {','.join(members)} {kind}"]
    return "\n".join(lines)


def _arrow(graph: Graph, before: str, after: str) -> str:
    return "-.->" if before in graph.guards.get(after, ()) else "-->"


def dot(plan: Plan, states: Mapping[str, str] | None = None) -> str:
    """Return the plan as a Graphviz graph."""
    graph = Graph(plan.nodes)
    lines = [f"digraph {_quoted(plan.name)} {{", "    node [shape=box, style=filled, fillcolor=white];"]
    for name, node in graph.nodes.items():
        fill = _FILLS.get((states or {}).get(name, ""))
        more = f", fillcolor={_quoted(fill)}" if fill is not None else ""
        shape = ", shape=diamond" if isinstance(node, ChoiceNode) else ""
        lines.append(f"    {_quoted(name)} [label={_quoted(_text(name, node, states))}{shape}{more}];")
    for name, needs in graph.needs.items():
        for other in needs:
            style = " [style=dashed]" if other in graph.guards.get(name, ()) else ""
            lines.append(f"    {_quoted(other)} -> {_quoted(name)}{style};")
    return "\n".join([*lines, "}"])


def _text(name: str, node: Node, states: Mapping[str, str] | None) -> str:
    action = what(node)
    title = action if action == _line(name) else f"{_line(name)}: {action}"
    return f"{title} ({states[name]})" if states is not None and name in states else title


def _quoted(text: str) -> str:
    escaped = _line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
