"""Random plans, an app that can run them, and what they ought to give, evaluated one node after the other.

A seed names a plan. The evaluation is written from what a plan means, and shares nothing with the code that runs plans.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast import App, Backoff, Config, Permanent, Plan, extend, external_key
from holdfast.store import Store

NODES_MAX = 60
MORE = {"add": 1, "act": 2, "stumble": 3}  # than the sum of what they are given


@dataclass
class Witness:
    """Who was called: for which nodes of the plan, and which tools have acted, by the name that events know."""

    called: list[str] = field(default_factory=list)
    acted: list[str] = field(default_factory=list)
    heard: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))  # set by tools


def calculator(store: Store | None, config: Config, witness: Witness, name: str = "calc") -> App:
    """An app whose steps, tools and jobs calculate, and tell whom they were called for."""
    app = App(name, config=config)
    if store is not None:
        app._opened = store

    @app.step
    async def add(name: str, numbers: list[int | None]) -> int:
        witness.called.append(name)
        return _sum(numbers) + 1

    @app.tool(on_doubt="ask")
    async def act(name: str, numbers: list[int | None]) -> int:
        witness.called.append(name)
        witness.acted.append(external_key().split(":", 2)[2])
        return _sum(numbers) + 2

    @app.step
    async def spread(name: str, number: int | None) -> list[int]:
        witness.called.append(name)
        return _list(number)

    @app.step(retries=3, backoff=Backoff(retries=3, first_seconds=0.001))
    async def stumble(name: str, numbers: list[int | None]) -> int:
        witness.called.append(name)
        if witness.called.count(name) == 1:
            raise RuntimeError("not at the first try")
        return _sum(numbers) + 3

    @app.step
    async def broken(name: str) -> int:
        witness.called.append(name)
        raise Permanent(f"{name} never works")

    @app.job
    async def half(name: str, number: int | None) -> int:
        witness.called.append(name)
        return (number or 0) // 2

    _may_extend(app, witness)
    return app


def _may_extend(app: App, witness: Witness) -> None:
    """Add what extends plans."""

    @app.tool(on_doubt="retry")
    async def ring(name: str) -> None:
        witness.called.append(name)
        witness.heard[name].set()

    @app.step
    async def grow(name: str, number: int | None, how: dict[str, Any] | None = None) -> Any:
        witness.called.append(name)
        how = how or {}
        if "behind" in how:  # it extends the plan when a tool of another extension has rung
            await witness.heard[how["behind"]].wait()
        for _ in range(how.get("turns", 0)):
            await asyncio.sleep(0)
        return extend(Plan.from_dict(_grown(name, number, how)))


def _sum(numbers: list[int | None]) -> int:
    return sum(number or 0 for number in numbers)


def _list(number: int | None) -> list[int]:
    return list(range(abs(number or 0) % 4))


def _grown(name: str, number: int | None, how: dict[str, Any]) -> dict[str, Any]:
    """The plan that `grow` adds: a step, and a tool that takes what the step gives; and, as it is told, more.

    A tool whose id others use, too (`shared`); a reference to what others may have added (`refers`); what the whole
    plan is to return (`says`); a tool that lets others hear that it was added (`rings`).
    """
    one, two, shared = f"{name}_one", f"{name}_two", how.get("shared")
    numbers = [{"$ref": one}, *([{"$ref": how["refers"]}] if "refers" in how else [])]
    nodes = [
        {"id": one, "kind": "call", "call": "add", "args": {"name": one, "numbers": [number]}},
        {"id": two, "kind": "call", "call": "act", "args": {"name": two, "numbers": numbers}},
    ]
    if shared is not None:
        nodes.append({"id": shared, "kind": "call", "call": "act", "args": {"name": shared, "numbers": [number, 50]}})
    if how.get("rings"):
        nodes.append({"id": f"{name}_bell", "kind": "call", "call": "ring", "args": {"name": f"{name}_bell"}})
    said = {"output": {"by": name, "two": {"$ref": two}}} if how.get("says") else {}
    return {"name": "more", "nodes": nodes, **said}


class _Drawing:
    """A random plan while it is drawn: nodes, and which of them give numbers, or lists of numbers."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.nodes: list[dict[str, Any]] = []
        self.numbers: list[str] = []
        self.lists: list[str] = []
        self.guarded: set[str] = set()
        self.kinds = ["add", "act", "wait", "sleep", "stumble", *(["broken"] if dice.random() < 0.25 else [])]
        self.eager = dice.random() < 0.3  # whether it is extended by many, most of which get on well

    def add(self) -> None:
        name = f"n{len(self.nodes)}"
        grows = ["grow"] * (8 if self.eager else 1)
        kinds = self.kinds + (["spread", "job", "choice", "choice", *grows] if self.numbers else [])
        kind = self.dice.choice(kinds + (["map", "map_job"] if self.lists else []))
        node: dict[str, Any] = {"id": name, "after": self._some([one["id"] for one in self.nodes], 2)}
        if self.dice.random() < 0.5:
            node["needs"] = "any"
        node |= self._choice(node["after"]) if kind == "choice" else self._body(kind, name)
        self.nodes.append(node)
        self.numbers += [name] if kind in {"add", "act", "wait", "job", "stumble", "broken"} else []
        self.lists += [name] if kind in {"spread", "map", "map_job"} else []

    def _body(self, kind: str, name: str) -> dict[str, Any]:
        item = {"$ref": "item"}
        given: dict[str, Any]
        match kind:
            case "add" | "act" | "stumble":
                numbers = [*({"$ref": one} for one in self._some(self.numbers, 3)), self.dice.randrange(10)]
                return {"kind": "call", "call": kind, "args": {"name": name, "numbers": numbers}}
            case "spread":
                return {"kind": "call", "call": kind, "args": {"name": name, "number": self._ref(self.numbers)}}
            case "grow":
                given = {"name": name, "number": self._ref(self.numbers), "how": self._how()}
                return {"kind": "call", "call": kind, "args": given}
            case "broken":
                return {"kind": "call", "call": kind, "args": {"name": name}}
            case "wait":
                return {"kind": "wait", "key": f"key{name[1:]}"}
            case "sleep":
                return {"kind": "sleep", "duration": self.dice.choice([0, 0.001])}
            case "job":
                return {"kind": "job", "job": "half", "args": {"name": name, "number": self._ref(self.numbers)}}
            case "map":
                given = {"name": name, "numbers": [item, {"$ref": "index"}]}
                called = self.dice.choice(["add", "act"])
                return {"kind": "map", "over": self._ref(self.lists), "call": called, "args": given}
            case _:
                given = {"name": name, "number": item}
                return {"kind": "map", "over": self._ref(self.lists), "job": "half", "args": given, "limit": 2}

    def _how(self) -> dict[str, Any]:
        """How an extension is: most say what the plan returns, and some have to do with others."""
        how: dict[str, Any] = {"says": True} if self.dice.random() < 0.7 else {}
        how["turns"] = self.dice.choice([0, 20, 100])  # who comes later now may come first on replay
        other = self.dice.choice(["s0", "s1", "s2"])
        match self.dice.randrange(40 if self.eager else 5):
            case 0 | 1:
                how["shared"] = other
            case 2:
                how["refers"] = other
        return how

    def _choice(self, after: list[str]) -> dict[str, Any]:
        """Choose among earlier nodes that nothing of the choice depends on, so that there is no circle."""
        on = self.dice.choice(self.numbers)
        before = {one for other in [on, *after] for one in _before(self.nodes, other)} | self.guarded
        free = [node["id"] for node in self.nodes if node["id"] not in before]
        then, otherwise = self._some(free, 2), self._some(free, 1)
        self.guarded |= {*then, *otherwise}
        case = {self.dice.choice(["above", "below"]): self.dice.randrange(20), "then": then}
        return {"kind": "choice", "value": {"$ref": on}, "cases": [case], "else": otherwise}

    def _ref(self, among: list[str]) -> dict[str, str]:
        return {"$ref": self.dice.choice(among)}

    def _some(self, among: list[str], most: int) -> list[str]:
        return self.dice.sample(among, min(self.dice.randrange(most + 1), len(among)))


def random_plan(seed: int, nodes_max: int = NODES_MAX) -> dict[str, Any]:
    """A plan of all kinds of nodes, without a circle: the one that this seed names."""
    dice = random.Random(seed)
    drawing = _Drawing(dice)
    for _ in range(dice.randint(1, nodes_max)):
        drawing.add()
    return {"name": f"seed {seed}", "nodes": drawing.nodes, "limit": dice.choice([1, 2, 100]), "input": {}}


def signals_of(plan: dict[str, Any]) -> dict[str, int]:
    """What is to be sent to a run of a plan, by key."""
    return {node["key"]: int(node["key"].removeprefix("key")) for node in plan["nodes"] if node["kind"] == "wait"}


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
    found |= {other["id"] for other in nodes if node["id"] in _named(other)}
    return found - {"item", "index"}


def _named(node: dict[str, Any]) -> list[str]:
    return [*node["cases"][0]["then"], *node["else"]] if node["kind"] == "choice" else []


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


class Evaluated(NamedTuple):
    """What a plan means: each node's end, what those gave that were done, and for which nodes functions are called."""

    states: dict[str, str]
    results: dict[str, Any]
    calls: list[str]
    nodes: list[dict[str, Any]]  # with those that were added
    said: list[dict[str, Any]]  # what extensions said that the plan returns

    @property
    def fails(self) -> set[str]:
        return {name for name, state in self.states.items() if state == "failed"}

    @property
    def gives(self) -> dict[str, Any]:
        """What a run gives: what was said last, or the results of the nodes that nothing depends on."""
        if self.said:
            return {**self.said[-1], "two": self.results[self.said[-1]["two"]["$ref"]]}
        needed = {other for node in self.nodes for other in needs_of(node, self.nodes)}
        return {name: result for name, result in self.results.items() if name not in needed}


def evaluated(plan: dict[str, Any], order: Sequence[str] = ()) -> Evaluated:
    """Go through a plan, one node after the other; extensions count in this order, and then as they come."""
    nodes = list(plan["nodes"])
    made = Evaluated({}, {}, [], nodes, [])
    left, due = list(nodes), list(order)
    come: dict[str, dict[str, Any]] = {}  # nodes that have extended the plan, and wait for their turn
    while left or come:
        node = next((one for one in left if needs_of(one, nodes) <= set(made.states)), None)
        if node is not None:
            left.remove(node)
            end = _fate(node, made) or _done(node, made)
            if end == "done" and node.get("call") == "grow":
                come[node["id"]] = node
            else:
                made.states[node["id"]] = end
        assert node is not None or come, f"{[one['id'] for one in left]} wait for what does not come"
        while due and due[0] in come:
            left += _extended(come.pop(due.pop(0)), made)
        while come and not due:
            left += _extended(come.pop(next(iter(come))), made)
    assert not due, f"the run has taken extensions of {due}"
    return made


def _extended(node: dict[str, Any], made: Evaluated) -> list[dict[str, Any]]:
    """Extend the plan by what a node gave, or have the node fail; the nodes that were added."""
    name, args = node["id"], node["args"]
    number = made.results.get(args["number"]["$ref"]) if isinstance(args["number"], dict) else args["number"]
    grown = _grown(name, number, args.get("how") or {})
    there, new = {one["id"] for one in made.nodes}, {one["id"] for one in grown["nodes"]}
    needs = {need for one in grown["nodes"] for need in needs_of(one, [])}
    if there & new or not needs <= there | new:
        made.states[name] = "failed"
        del made.results[name]
        return []
    made.states[name] = "done"
    made.said.extend([grown["output"]] if "output" in grown else [])
    added = [{**one, "after": [name]} for one in grown["nodes"]]
    made.nodes.extend(added)
    return added


def _fate(node: dict[str, Any], made: Evaluated) -> str | None:
    """How a node ends that is not begun."""
    name, needs = node["id"], needs_of(node, made.nodes)
    ends = {made.states[other] for other in needs}
    if ends & {"failed", "stopped"}:
        return "stopped"
    choices = [one["id"] for one in made.nodes if name in _named(one)]
    if any(made.states[one] == "skipped" or name not in made.results[one] for one in choices):
        return "skipped"
    if "skipped" in ends and (node.get("needs") != "any" or "done" not in ends):
        return "skipped"
    return None


def _done(node: dict[str, Any], made: Evaluated) -> str:
    """Do what a node says; how it ends."""

    def value(of: Any) -> Any:
        return made.results.get(of["$ref"]) if isinstance(of, dict) and "$ref" in of else of

    name, args, result = node["id"], node.get("args", {}), None
    match node["kind"]:
        case "call":
            made.calls.extend([name] * (2 if node["call"] == "stumble" else 1))
            if node["call"] == "broken":
                return "failed"
            result = _called(node["call"], {key: _each(one, value) for key, one in args.items()})
        case "wait":
            result = int(node["key"].removeprefix("key"))
        case "job":
            made.calls.append(name)
            result = (value(args["number"]) or 0) // 2
        case "map":
            items = value(node["over"])
            if items is None:  # what it is over was skipped
                return "failed"
            made.calls.extend([name] * len(items))
            result = [
                item // 2 if "job" in node else item + index + MORE[node["call"]] for index, item in enumerate(items)
            ]
        case "choice":
            result = _chosen(node, value(node["value"]))
    made.results[name] = result
    return "done"


def _called(call: str, args: dict[str, Any]) -> Any:
    """What a step or tool gives."""
    if call in MORE:
        return _sum(args["numbers"]) + MORE[call]
    return _list(args["number"]) if call == "spread" else None


def _each(argument: Any, value: Callable[[Any], Any]) -> Any:
    return [value(one) for one in argument] if isinstance(argument, list) else value(argument)


def _chosen(node: dict[str, Any], value: int | None) -> list[str]:
    case: dict[str, Any] = node["cases"][0]
    above, below, then, otherwise = case.get("above"), case.get("below"), case["then"], node["else"]
    holds = value is not None and ((above is not None and value > above) or (below is not None and value < below))
    chosen: list[str] = then if holds else otherwise
    return chosen
