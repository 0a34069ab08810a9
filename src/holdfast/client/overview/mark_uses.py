"""The places in the code of an app that ask for a mark, `changed("2026-11-fee")`, and the marks that they name.

Files are parsed, and nothing of them is run. A name that a file imports is looked up in its module if that is imported
already, so constants of other modules and all forms of imports are known.

A mark that is made while the code runs cannot be read this way. Its place is listed as such: it is never left out.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.authoring.job_api import changed

if TYPE_CHECKING:
    from holdfast.client.app import App

FILES_MAX = 20_000  # files of the code that are read; only those that may ask for a mark are parsed
DEPTH_MAX = 10  # of names that are bound to other names, perhaps in a circle
_PACKAGE = "holdfast"
_MISSING = object()


class MarkUse(msgspec.Struct, frozen=True, order=True):
    """A place in the code that asks for a mark."""

    file: str
    line: int


class MarkUses(NamedTuple):
    """The places by mark, and those whose mark cannot be read from the code."""

    by_mark: dict[str, list[MarkUse]]
    unread: list[MarkUse]


_Found = list[tuple[str | None, int]]  # marks and lines; None is a mark that cannot be read
_parsed: dict[Path, tuple[tuple[int, int], _Found]] = {}  # by file, with its time and size: a server asks often


def uses_of(app: App) -> MarkUses:
    """Find the places in the code of an app: the files of its packages, and imported modules next to its own."""
    return find_uses(_files_of(app))


def _files_of(app: App) -> list[Path]:
    functions = [job.function for job in app.entries.values()] + [call.function for call in app.calls.values()]
    roots: set[Path] = set()
    for name in {function.__module__ for function in functions}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name.startswith(f"{_PACKAGE}."):
            continue
        top = getattr(sys.modules.get(name.partition(".")[0]), "__path__", None)
        roots |= {Path(folder) for folder in top} if top else {Path(file)}
    files: set[Path] = set()
    for root in roots:
        files |= set(root.rglob("*.py")) if root.is_dir() else _beside(root)
    return sorted(files)[:FILES_MAX]


def _beside(file: Path) -> set[Path]:
    """Return a file and the imported modules in its folder."""
    return {file} | {other for other in _modules() if other.parent == file.parent}


def _modules() -> dict[Path, ModuleType]:
    """Return the imported modules by file."""
    loaded = [(getattr(module, "__file__", None), module) for module in list(sys.modules.values())]
    return {Path(file): module for file, module in loaded if isinstance(file, str)}


def find_uses(files: Iterable[Path]) -> MarkUses:
    """Find the places in files that ask for a mark. A file that cannot be read or parsed has none."""
    modules = _modules()
    by_mark: dict[str, list[MarkUse]] = defaultdict(list)
    unread: list[MarkUse] = []
    for file in files:
        for mark, line in _uses_in(file, modules.get(file)):
            (unread if mark is None else by_mark[mark]).append(MarkUse(str(file), line))
    return MarkUses({mark: sorted(set(places)) for mark, places in by_mark.items()}, sorted(set(unread)))


def _uses_in(file: Path, module: ModuleType | None) -> _Found:
    try:
        status = file.stat()
        state = (status.st_mtime_ns, status.st_size)
        if file in _parsed and _parsed[file][0] == state:
            return _parsed[file][1]
        text = file.read_bytes()
        has_function = module is not None and any(value is changed for value in vars(module).values())
        found = list(_marks_in(ast.parse(text), module)) if has_function or b"changed" in text else []
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    _parsed[file] = (state, found)
    return found


def _marks_in(tree: ast.Module, module: ModuleType | None) -> Iterator[tuple[str | None, int]]:
    names = _Names(tree, module)
    handled: set[ast.expr] = set()  # what names the function, and is no use by itself
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and names.is_changed(node.value) and isinstance(node.targets[0], ast.Name):
            handled.add(node.value)  # another name for the function
        elif isinstance(node, ast.Call) and names.is_changed(node.func):
            handled.add(node.func)
            values = [*node.args[:1], *(word.value for word in node.keywords if word.arg in {"mark", None})]
            for value in values:
                yield names.text(value), node.lineno
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node not in handled and names.is_changed(node):
            yield None, node.lineno  # it is given away: what calls it is not known


class _Names:
    """What the names of a file mean: from its text and, if it is imported, from its module."""

    def __init__(self, tree: ast.Module, module: ModuleType | None) -> None:
        self._module = vars(module) if module is not None else {}
        self._functions, self._packages = set[str](), set[str]()  # names of `changed`, and of the package
        self._bound: dict[str, list[ast.expr | None]] = defaultdict(list)  # what is bound; None is not in the text
        for node in ast.walk(tree):
            self._note_import(node)
            self._note_binding(node)
        self._functions |= {
            name
            for name, values in self._bound.items()
            if len(values) == 1 and values[0] is not None and self.is_changed(values[0])
        }

    def _note_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            for one in node.names:
                if one.name in {"changed", "*"}:
                    self._functions.add(one.asname or "changed")
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name == _PACKAGE or (one.asname is None and one.name.startswith(f"{_PACKAGE}.")):
                    self._packages.add(one.asname or _PACKAGE)

    def _note_binding(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._bound[node.targets[0].id].append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._bound[node.target.id].append(node.value)
        elif isinstance(node, ast.arg):
            self._bound[node.arg].append(None)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.For | ast.AsyncFor | ast.NamedExpr | ast.comprehension):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        self._bound[part.id].append(None)

    def is_changed(self, expression: ast.expr) -> bool:
        """Return whether an expression is the function `changed`."""
        if isinstance(expression, ast.Name) and expression.id in self._functions:
            return True
        if isinstance(expression, ast.Attribute) and expression.attr == "changed":
            package = expression.value
            if isinstance(package, ast.Name) and package.id in self._packages:
                return True
        return isinstance(expression, ast.Name | ast.Attribute) and self._value(expression) is changed

    def text(self, expression: ast.expr, depth: int = 0) -> str | None:
        """Return the text of an expression; None if only running the code would tell it."""
        if depth > DEPTH_MAX:
            return None
        match expression:
            case ast.Constant(value=str(text)):
                return text
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined([self.text(left, depth + 1), self.text(right, depth + 1)])
            case ast.JoinedStr(values=parts):
                return _joined([self.text(part, depth + 1) for part in parts])
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.text(value, depth + 1)
            case ast.Name(id=name) if name in self._bound:
                bound = self._bound[name][0] if len(self._bound[name]) == 1 else None
                return self.text(bound, depth + 1) if bound is not None else None
            case ast.Name() | ast.Attribute():
                found = self._value(expression)
                return str.__str__(found) if isinstance(found, str) and not isinstance(found, Enum) else _of_enum(found)
        return None

    def _value(self, expression: ast.expr) -> Any:
        """Return what a dotted name means in the imported module, without running code of its attributes."""
        if isinstance(expression, ast.Name):
            return self._module.get(expression.id, _MISSING)
        if not isinstance(expression, ast.Attribute):
            return _MISSING
        owner = self._value(expression.value)
        if isinstance(owner, ModuleType):
            return vars(owner).get(expression.attr, _MISSING)
        if isinstance(owner, type) and issubclass(owner, Enum):
            return owner.__members__.get(expression.attr, _MISSING)
        if isinstance(owner, Enum) and expression.attr == "value":
            return owner._value_
        return inspect.getattr_static(owner, expression.attr, _MISSING) if owner is not _MISSING else _MISSING


def _joined(parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return "".join(known) if len(known) == len(parts) else None


def _of_enum(value: Any) -> str | None:
    """Return the text of a member of an enum of texts."""
    return str(value._value_) if isinstance(value, Enum) and isinstance(value, str) else None
