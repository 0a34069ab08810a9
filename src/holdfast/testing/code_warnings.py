"""A reading of a job's source, which finds what often goes wrong when its code runs again.

| what it finds | why |
|---|---|
| clocks, random numbers, `id`, `hash` | their values differ in a replay |
| the order of a set, in a loop or a list | it differs between two processes |
| a variable outside of the job that a function changes | another process has not changed it |
| `time.sleep`, and calls of libraries for networks and processes | a replay repeats them |

It reads the job's function and the functions of the same module that it calls. Steps, tools and jobs are left out:
their results are recorded. It looks up what a name stands for, so that ``from random import choice`` is found, too.
What it cannot look up it takes by its name. It runs no code.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import inspect
import os
import random
import secrets
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from types import FunctionType, ModuleType
from typing import Any

CLOCKS = [
    time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns,
    dt.datetime.now, dt.datetime.utcnow, dt.datetime.today, dt.date.today,
]  # fmt: skip
RANDOM = [uuid.uuid1, uuid.uuid4, os.urandom, random.SystemRandom, random.Random]
RANDOM_MODULES = {"random", "secrets"}
OUTSIDE = {
    "aiohttp", "boto3", "http", "httpx", "requests", "smtplib", "socket", "stripe", "subprocess", "urllib", "urllib3",
}  # fmt: skip
HARMLESS = {"parse", "HTTPStatus"}  # of them: urllib.parse only computes
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "setdefault", "update"}
TAKES_ORDER = {
    "list",
    "tuple",
    "enumerate",
    "iter",
    "map",
    "zip",
    "gather",
    "join",
    "next",
}  # sorted, sum and len do not
NAMES = {  # what cannot be looked up
    "time.time": CLOCKS[0], "datetime.now": CLOCKS[6], "datetime.datetime.now": CLOCKS[6], "uuid.uuid4": uuid.uuid4,
    "uuid4": uuid.uuid4,
}  # fmt: skip

CLOCK_CURE = "use `now()` of holdfast, or a step"
RANDOM_CURE = "use `random()` or `uuid4()` of holdfast, or a step"
SET_TEXT = "the order of a set differs between two processes: loop over sorted(…)"


def suspicious_lines(function: Callable[..., Any]) -> list[str]:
    """Return the lines of a job's code that probably differ between two runs, with what to do."""
    found: list[str] = []
    todo, seen = [function], set[Any]()
    while todo:
        one = todo.pop(0)
        if one in seen:
            continue
        seen.add(one)
        reader = _read(one)
        if reader is not None:
            found += reader.found
            todo += [helper for helper in reader.helpers if helper.__module__ == function.__module__]
    return list(dict.fromkeys(found))


def _read(function: Callable[..., Any]) -> _Reader | None:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # there is no source, as for code in a shell
        return None
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.decorator_list = []  # they run once
    reader = _Reader(inspect.getsourcefile(function) or "?", first, function)
    reader.visit(tree)
    return reader


def _changed_outside(function: Callable[..., Any]) -> tuple[dict[str, str], set[str]]:
    """Return the names outside of functions that a module's functions change, with one that does; and the assigned."""
    module = sys.modules.get(function.__module__)
    try:
        tree = ast.parse(inspect.getsource(module)) if module is not None else ast.Module([], [])
    except (OSError, TypeError, SyntaxError):
        return {}, set()
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    changed = {name: outer.name for outer in functions for name in _changes(outer)}
    return changed, {name for outer in functions for name in _assigned_outside(outer)}


def _changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names outside of a function that it assigns, or whose values it changes."""
    inside = [node for statement in function.body for node in _own_nodes(statement)]
    outer, arguments = _assigned_outside(function), function.args
    own = {argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    own |= {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    called = [node.func for node in inside if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    changed = [attribute.value for attribute in called if attribute.attr in CHANGES]
    changed += [node.value for node in inside if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)]
    return outer | ({value.id for value in changed if isinstance(value, ast.Name)} - (own - outer))


def _assigned_outside(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function declares as global or nonlocal."""
    inside = [node for statement in function.body for node in _own_nodes(statement)]
    return {name for node in inside if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those inside, without other functions."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own_nodes(child)


class _Reader(ast.NodeVisitor):
    """Reads the code of one function."""

    def __init__(self, file: str, first: int, function: Callable[..., Any]) -> None:
        self._file = file
        self._first = first
        code = getattr(function, "__code__", None)
        cells = zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False)
        self._known: dict[str, Any] = dict(getattr(function, "__globals__", {}))
        for name, cell in cells:
            try:
                self._known[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        self._locals = set(getattr(code, "co_varnames", ()))
        self._changed, self._assigned = _changed_outside(function)
        self._sets: set[str] = set()  # names that hold sets
        self.found: list[str] = []
        self.helpers: list[FunctionType] = []

    def _note(self, node: ast.AST, text: str) -> None:
        line = self._first + getattr(node, "lineno", 1) - 1
        self.found.append(f"{self._file}:{line}: {text}")

    # What names stand for

    def _meaning(self, node: ast.expr) -> Any:
        """Return the object that a dotted name stands for; None if that is not known."""
        if isinstance(node, ast.Name):
            if node.id in self._known:
                return self._known[node.id]
            return None if node.id in self._locals else getattr(builtins, node.id, None)
        if isinstance(node, ast.Attribute):
            owner = self._meaning(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, (ModuleType, type)) else None
        return None

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self._known[name] = sys.modules.get(alias.name if alias.asname else name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = sys.modules.get(node.module or "")
        for alias in node.names:
            self._known[alias.asname or alias.name] = getattr(module, alias.name, None)

    # Calls

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        meaning = self._meaning(node.func)
        if meaning is None:
            meaning = NAMES.get(name)
        if isinstance(meaning, FunctionType):
            self.helpers.append(meaning)
        if text := _about(meaning, name):
            self._note(node, text)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
            self._look_at_order(node.func.value)
        if name.rpartition(".")[2] in TAKES_ORDER:
            for argument in node.args:
                self._look_at_order(argument.value if isinstance(argument, ast.Starred) else argument)
        self.generic_visit(node)

    # Globals

    def visit_Name(self, node: ast.Name) -> None:
        writer = self._changed.get(node.id)
        value = self._known.get(node.id)
        is_container = isinstance(value, (MutableSequence, MutableMapping, MutableSet))
        if writer is None or not (is_container or node.id in self._assigned):
            return  # os.remove(path) does not change the module
        if isinstance(node.ctx, ast.Load) and node.id not in self._locals:
            why = f"{writer} changes it, and another process would not see that"
            self._note(node, f"{node.id} is not a variable of the job: {why}. Pass results of steps instead")

    # Sets

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        self._sets = self._sets | names if self._is_set(node.value) else self._sets - names
        if isinstance(node.value, ast.Await) and isinstance(node.value.value, ast.Call):
            waited = ast.unparse(node.value.value.func) == "asyncio.wait"
            pairs = [target.elts for target in node.targets if isinstance(target, ast.Tuple)] if waited else []
            self._sets |= {part.id for pair in pairs for part in pair if isinstance(part, ast.Name)}
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._note_hint(node.target, node.annotation)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        if node.annotation is not None:
            self._note_hint(ast.Name(node.arg), node.annotation)

    def _note_hint(self, target: ast.expr, hint: ast.expr) -> None:
        """Note that a name holds a set, by its annotation."""
        text = ast.unparse(hint).strip("'\"")
        if isinstance(target, ast.Name) and text.partition("[")[0] in {"set", "frozenset"}:
            self._sets.add(target.id)

    def visit_For(self, node: ast.For) -> None:
        self._look_at_order(node.iter)
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._look_at_order(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._look_at_comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._look_at_comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        if any(isinstance(part, ast.Await) for part in ast.walk(node)):
            self._look_at_comprehension(node)
        else:  # as in sum(… for …): it only matters if its order is taken
            self.generic_visit(node)

    def _look_at_comprehension(self, node: ast.ListComp | ast.DictComp | ast.GeneratorExp) -> None:
        for generator in node.generators:
            self._look_at_order(generator.iter)
        self.generic_visit(node)

    def _look_at_order(self, looped: ast.expr) -> None:
        if isinstance(looped, ast.GeneratorExp):
            looped = looped.generators[0].iter
        if self._is_set(looped):
            self._note(looped, SET_TEXT)

    def _is_set(self, value: ast.expr) -> bool:
        if isinstance(value, (ast.Set, ast.SetComp)):
            return True
        if isinstance(value, ast.BinOp):
            return self._is_set(value.left) or self._is_set(value.right)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in SET_METHODS:
            return self._is_set(value.func.value)
        if isinstance(value, ast.Call):
            return ast.unparse(value.func) in {"set", "frozenset"}
        return isinstance(value, ast.Name) and value.id in self._sets


def _about(meaning: Any, name: str) -> str | None:
    """Return what is wrong with a call in the code of a job; None if nothing is."""
    where = f"{name}() in the code of a job"
    module = _module_of(meaning)
    if module.startswith("holdfast"):
        return None
    if any(meaning == clock for clock in CLOCKS):
        return f"{where} differs in a replay: {CLOCK_CURE}"
    if module in RANDOM_MODULES or any(meaning == source for source in RANDOM):
        return f"{where} differs in a replay: {RANDOM_CURE}"
    if meaning is builtins.id or meaning is builtins.hash:
        return f"{where} differs between two processes: use the value itself, or a step"
    if meaning is time.sleep:
        return f"{where} begins again after a crash: use `sleep()` of holdfast"
    if module.partition(".")[0] in OUTSIDE and not HARMLESS & {*module.split("."), *name.split(".")}:
        return f"{where} runs again after a crash: make it a tool, or a step if it only reads"
    return None


def _module_of(meaning: Any) -> str:
    """Return the module of an object. Functions of `random` and `secrets` are methods of objects there."""
    owner = getattr(meaning, "__self__", None)
    if isinstance(owner, random.Random):
        return "random"
    if meaning is not None and meaning is getattr(secrets, getattr(meaning, "__name__", ""), None):
        return "secrets"
    return str(getattr(meaning, "__module__", None) or "")
