"""Random plans, an app that can run them, and what they ought to give, evaluated one node after the other.

The evaluation is written from what a plan means, and shares nothing with the code that runs plans.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast import App, Config
from holdfast.store import Store


def calculator(store: Store | None, config: Config, witness: list[str]) -> App:
    """An app whose steps, tools and jobs calculate, and tell whom they were called for."""
    app = App("calc", config=config)
    if store is not None:
        app._opened = store

    @app.step
    async def add(name: str, numbers: list[int]) -> int:
        witness.append(name)
        return sum(numbers) + 1

    @app.tool(on_doubt="ask")
    async def act(name: str, numbers: list[int]) -> int:
        witness.append(name)
        return sum(numbers) + 2

    @app.step
    async def spread(name: str, number: int) -> list[int]:
        witness.append(name)
        return list(range(abs(number) % 4))

    @app.job
    async def half(name: str, number: int) -> int:
        del name
        return number // 2

    return app


class _Drawing:
    """A random plan while it is drawn: nodes, and which of them give numbers, or lists of numbers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[dict[str, Any]] = []
        self.numbers: list[str] = []
        self.lists: list[str] = []
        self.guarded: set[str] = set()

    def add(self) -> None:
        name = f"n{len(self.nodes)}"
        kinds = ["add", "act", "wait", "sleep"]
        kinds += ["spread", "job", "choice"] if self.numbers else []
        kind = self.draw(st.sampled_from(kinds + (["map", "map_job"] if self.lists else [])))
        earlier = [node["id"] for node in self.nodes]
        after = self.draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        node: dict[str, Any] = {"id": name, "after": after}
        if self.draw(st.booleans()):
            node["needs"] = "any"
        node |= self._choice(after) if kind == "choice" else self._body(kind, name)
        self.nodes.append(node)
        self.numbers += [name] if kind in {"add", "act", "wait", "job"} else []
        self.lists += [name] if kind in {"spread", "map", "map_job"} else []

    def _body(self, kind: str, name: str) -> dict[str, Any]:
        item = {"$ref": "item"}
        match kind:
            case "add" | "act":
                return {"kind": "call", "call": kind, "args": {"name": name, "numbers": self._some()}}
            case "spread":
                return {"kind": "call", "call": "spread", "args": {"name": name, "number": self._ref(self.numbers)}}
            case "wait":
                return {"kind": "wait", "key": f"key{name[1:]}"}
            case "sleep":
                return {"kind": "sleep", "duration": 0}
            case "job":
                return {"kind": "job", "job": "half", "args": {"name": name, "number": self._ref(self.numbers)}}
            case "map":
                given: dict[str, Any] = {"name": name, "numbers": [item, {"$ref": "index"}]}
                return {"kind": "map", "over": self._ref(self.lists), "call": "add", "args": given}
            case _:
                given = {"name": name, "number": item}
                return {"kind": "map", "over": self._ref(self.lists), "job": "half", "args": given, "limit": 2}

    def _choice(self, after: list[str]) -> dict[str, Any]:
        """Choose among earlier nodes that nothing of the choice depends on, so that there is no circle."""
        on = self.draw(st.sampled_from(self.numbers))
        before = {one for other in [on, *after] for one in _before(self.nodes, other)} | self.guarded
        free = [node["id"] for node in self.nodes if node["id"] not in before]
        then = self.draw(st.lists(st.sampled_from(free), max_size=2, unique=True)) if free else []
        self.guarded |= set(then)
        case = {"above": self.draw(st.integers(0, 20)), "then": then}
        return {"kind": "choice", "value": {"$ref": on}, "cases": [case]}

    def _ref(self, among: list[str]) -> dict[str, str]:
        return {"$ref": self.draw(st.sampled_from(among))}

    def _some(self) -> list[Any]:
        picked = self.draw(st.lists(st.sampled_from(self.numbers), max_size=3)) if self.numbers else []
        return [{"$ref": one} for one in picked] + [self.draw(st.integers(0, 9))]


@st.composite
def plans(draw: st.DrawFn, nodes_max: int = 60) -> dict[str, Any]:
    """A plan of all kinds of nodes, without a circle."""
    drawing = _Drawing(draw)
    for _ in range(draw(st.integers(1, nodes_max))):
        drawing.add()
    return {"name": "random", "nodes": drawing.nodes, "limit": draw(st.sampled_from([1, 2, 100])), "input": {}}


def needs_of(node: dict[str, Any], nodes: list[dict[str, Any]]) -> set[str]:
    """What a node depends on directly."""
    found = set(node.get("after", ()))
    look = [node.get("args"), node.get("over"), node.get("value")]
    while look:
        value = look.pop()
        if isinstance(value, dict) and set(value) == {"$ref"}:
            found.add(str(value["$ref"]).partition(".")[0])
        elif isinstance(value, (dict, list)):
            look += value.values() if isinstance(value, dict) else value
    found |= {other["id"] for other in nodes if other["kind"] == "choice" and node["id"] in other["cases"][0]["then"]}
    return found - {"item", "index"}


def _before(nodes: list[dict[str, Any]], name: str) -> set[str]:
    """A node and all that it depends on."""
    by_name = {node["id"]: node for node in nodes}
    found: set[str] = set()
    look = [name]
    while look:
        one = look.pop()
        if one not in found:
            found.add(one)
            look += needs_of(by_name[one], nodes)
    return found


def evaluated(plan: dict[str, Any]) -> tuple[dict[str, Any], set[str], list[str]]:
    """What each node gives, which are skipped, and the names under which functions are called."""
    nodes = plan["nodes"]
    results: dict[str, Any] = {}
    skipped: set[str] = set()
    calls: list[str] = []
    left = list(nodes)
    while left:
        node = next(one for one in left if needs_of(one, nodes) <= set(results) | skipped)
        left.remove(node)
        needs, name = needs_of(node, nodes), node["id"]
        choices = [one for one in nodes if one["kind"] == "choice" and name in one["cases"][0]["then"]]
        unchosen = any(one["id"] in skipped or name not in results[one["id"]] for one in choices)
        missing = needs & skipped
        if unchosen or (missing and (node.get("needs", "all") == "all" or missing == needs)):
            skipped.add(name)
            continue
        results[name] = _given(node, results, calls)
    return results, skipped, calls


def _given(node: dict[str, Any], results: dict[str, Any], calls: list[str]) -> Any:
    def value(of: Any) -> Any:
        return results.get(of["$ref"]) if isinstance(of, dict) else of

    match node["kind"]:
        case "call":
            calls.append(node["id"])
            if node["call"] == "spread":
                return list(range(abs(value(node["args"]["number"])) % 4))
            return sum(map(value, node["args"]["numbers"])) + (1 if node["call"] == "add" else 2)
        case "wait":
            return int(node["key"].removeprefix("key"))
        case "sleep":
            return None
        case "job":
            return value(node["args"]["number"]) // 2
        case "map":
            items = value(node["over"])
            if "job" in node:
                return [item // 2 for item in items]
            calls.extend([node["id"]] * len(items))
            return [item + index + 1 for index, item in enumerate(items)]
        case _:
            case_ = node["cases"][0]
            return case_["then"] if value(node["value"]) > case_["above"] else []
