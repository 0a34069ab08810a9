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


@st.composite
def plans(draw: st.DrawFn, nodes_max: int = 60) -> dict[str, Any]:
    """A plan of all kinds of nodes; each refers to earlier ones only, so it has no circle."""
    nodes: list[dict[str, Any]] = []
    numbers: list[str] = []  # references to numbers
    lists: list[str] = []  # and to lists of numbers
    guarded: set[str] = set()

    def ref(among: list[str]) -> dict[str, str]:
        return {"$ref": draw(st.sampled_from(among))}

    def some() -> list[Any]:
        picked = draw(st.lists(st.sampled_from(numbers), max_size=3)) if numbers else []
        return [{"$ref": one} for one in picked] + [draw(st.integers(0, 9))]

    for place in range(draw(st.integers(1, nodes_max))):
        name = f"n{place}"
        kinds = ["add", "act", "wait", "sleep"] + (["spread", "job", "choice"] if numbers else [])
        kind = draw(st.sampled_from(kinds + (["map", "map_job"] if lists else [])))
        earlier = [node["id"] for node in nodes]
        node: dict[str, Any] = {"id": name}
        if earlier:
            node["after"] = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True))
        if draw(st.booleans()):
            node["needs"] = "any"
        match kind:
            case "add" | "act":
                node |= {"kind": "call", "call": kind, "args": {"name": name, "numbers": some()}}
                numbers.append(name)
            case "spread":
                node |= {"kind": "call", "call": "spread", "args": {"name": name, "number": ref(numbers)}}
                lists.append(name)
            case "wait":
                node |= {"kind": "wait", "key": f"key{place}"}
                numbers.append(name)
            case "sleep":
                node |= {"kind": "sleep", "duration": 0}
            case "job":
                node |= {"kind": "job", "job": "half", "args": {"name": name, "number": ref(numbers)}}
                numbers.append(name)
            case "map":
                given = {"name": name, "numbers": [{"$ref": "item"}, {"$ref": "index"}]}
                node |= {"kind": "map", "over": ref(lists), "call": "add", "args": given}
                lists.append(name)
            case "map_job":
                given = {"name": name, "number": {"$ref": "item"}}
                node |= {"kind": "map", "over": ref(lists), "job": "half", "args": given, "limit": 2}
                lists.append(name)
            case _:
                free = [one for one in earlier if one not in guarded]
                on = draw(st.sampled_from(numbers))
                before = _before(nodes, on) | {one for other in node.get("after", []) for one in _before(nodes, other)}
                chosen = [one for one in free if one not in before]
                then = draw(st.lists(st.sampled_from(chosen), max_size=2, unique=True)) if chosen else []
                # what the choice decides over must not come before it: only nodes that nothing of it needs
                guarded |= set(then)
                node |= {
                    "kind": "choice",
                    "on": {"$ref": on},
                    "cases": [{"above": draw(st.integers(0, 20)), "then": then}],
                }
        nodes.append(node)
    return {"name": "random", "nodes": nodes, "limit": draw(st.sampled_from([1, 2, 100])), "input": {}}


def needs_of(node: dict[str, Any], nodes: list[dict[str, Any]]) -> set[str]:
    """What a node depends on directly."""
    found = set(node.get("after", ()))
    look = [node.get("args"), node.get("over"), node.get("on")]
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
            return case_["then"] if value(node["on"]) > case_["above"] else []
