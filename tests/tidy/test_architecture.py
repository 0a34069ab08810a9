"""The house keeps its shape: who may import whom, how large things are, what every module says of itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripts import ROOT

SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(SOURCE.rglob("*.py"))

# The arrows of ARCHITECTURE.md. A room may use itself, what stands here, and nothing else of Holdfast.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "config": {"errors", "schedules"},
    "durations": set(),
    "ids": set(),
    "machines": {"errors"},
    "ready": {"machines", "errors"},
    "schedules": {"durations", "errors"},
    "store": {"machines", "errors", "clock", "schedules"},
    "group_commit": {"machines", "store", "errors"},
    "job_log": {"machines", "store", "errors"},
    "import_guard": {"errors"},
    "build_id": {"config"},
    "authoring": {"errors", "durations", "ready"},
    "engine": {"machines", "ready", "store", "group_commit", "authoring", "config", "ids", "errors", "clock"}
    | {"job_log"},
    "plans": {"authoring", "durations", "errors", "machines"},
    "client": {
        "machines",
        "ready",
        "store",
        "group_commit",
        "authoring",
        "engine",
        "config",
        "durations",
        "ids",
        "errors",
    }
    | {"build_id", "import_guard", "job_log", "plans", "schedules"},
    "deploys": {"authoring", "client", "engine", "errors", "machines", "plans", "store"},
    "testing": {"authoring", "client", "deploys", "durations", "engine", "errors", "machines", "ready", "store"},
    "gc_settings": set(),
    "parent_death": set(),
    "supervisor": {"errors", "holdfast", "ids", "job_log", "parent_death", "store"},
    "http": {"machines", "ready", "errors", "holdfast", "client", "config", "durations", "ids", "store", "plans"}
    | {"gc_settings", "schedules"},
    "cli": {"machines", "ready", "errors", "holdfast", "client", "config", "durations", "ids", "store", "plans"}
    | {"deploys", "gc_settings", "http", "import_guard", "parent_death", "schedules", "supervisor"},
    "server": {"client", "http"},
    "__main__": {"cli"},
    "holdfast": {"errors"},  # the package's own list of public names
}

# Files with more than 400 lines, and why each is one subject that is better left whole.
LONG = {
    "authoring/signature.py": "the arguments and the result of one function, to and from JSON",
    "client/app.py": "the public API of an app, one method per verb",
    "client/interface.py": "every verb of a client, async and plain",
    "client/remote/client.py": "the verbs of a client over HTTP, one method each",
    "engine/job_attempt.py": "the life of one attempt, from its start to the event that ends it",
    "engine/step_calls.py": "one call of a step or tool, with its tries, doubts and failures",
    "engine/replay.py": "the recorded history of a job, read event by event and handed out call by call",
    "engine/replay_check.py": "every call that job code can make, answered from a history or not at all",
    "engine/job_code.py": "the order in which the code is handed what has happened",
    "engine/job_loop.py": "one event loop, with every method that asyncio asks of a loop",
    "engine/worker.py": "the life of one worker",
    "errors.py": "the tree of errors",
    "schedules/decision.py": "every decision about one schedule, for ticks and for commands",
    "store/commands.py": "every command of the engine, one struct each",
    "store/contract/schedules.py": "every clause about schedules, one function each",
    "store/decide.py": "what each command means, one decision each",
    "store/sql/run_sql.py": "the statements of every read",
    "store/sql/batch.py": "what every command does in a transaction, for all SQL backends",
    "testing/lab.py": "the public API of the lab, one method per verb",
    "plans/executor.py": "a plan as the code of a job, from its first node to its result",
    "store/memory.py": "one implementation of the store's protocol",
    "store/postgres/transaction.py": "one implementation of a transaction's protocol",
    "store/postgres/store.py": "one implementation of the store's protocol",
    "store/sqlite/store.py": "one implementation of the store's protocol",
    "store/sqlite/transaction.py": "one implementation of a transaction's protocol",
    "store/postgres/statements.py": "every statement of a transaction, for one schema",
}

# All that pure code may use besides Holdfast itself: nothing here reaches the world outside a function's arguments.
PURE = {"__future__", "collections", "dataclasses", "enum", "hashlib", "math", "msgspec", "types", "typing"}


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return "holdfast" if parts == ("__init__",) else parts[0]


def imports(path: Path) -> set[str]:
    """What a module imports when it runs; what it names for the type checkers only is not an arrow."""
    names: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_used(path: Path) -> set[str]:
    used = set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "holdfast":
            used.add(parts[1] if (SOURCE / parts[1]).exists() or (SOURCE / f"{parts[1]}.py").exists() else "holdfast")
    return used - {room(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_imports_only_what_its_room_may(path: Path) -> None:
    assert room(path) in MAY_IMPORT, (
        f"{room(path)} is a new room: say in MAY_IMPORT and ARCHITECTURE.md whom it may use"
    )
    assert rooms_used(path) <= MAY_IMPORT[room(path)]


def test_the_arrows_make_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        free = [name for name, uses in MAY_IMPORT.items() if name not in order and uses <= set(order)]
        assert free, f"a circle among {set(MAY_IMPORT) - set(order)}"
        order += free


def test_the_arrows_are_drawn_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name, uses in MAY_IMPORT.items():
        if name not in {"__main__", "holdfast"}:  # these two are only doors
            listed = ", ".join(f"`{use}`" for use in sorted(uses - {"holdfast"})) or "nothing"
            assert f"| `{name}` | {listed} |" in text, name


def test_every_module_that_the_architecture_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\|(.*)\|(.*)\|$", text, re.MULTILINE)
    missing = []
    for _, cell in rows:
        folder = ""
        for name in re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", cell):
            folder = name.rpartition("/")[0] or folder
            path = name if "/" in name else f"{folder}/{name}"
            missing += [path] if not (SOURCE / path).exists() else []
    assert missing == []


# Modules with the name of another, and why that helps a reader.
SAME_NAME = {
    "store/contract": "a clause of the contract is named after what it tests",
    "store/sqlite": "the SQLite part of a subject of the store",
    "store/postgres": "a sibling of store/sqlite",
    "store/memory": "a sibling of store/sqlite",
    "cli": "a group of commands is named after what it works on",
    "http/handlers": "a handler is named after what it serves",
    "http": "the HTTP side of it",
}


def test_no_two_modules_have_the_same_name() -> None:
    names: dict[str, list[str]] = {}
    for path in MODULES:
        place = path.relative_to(SOURCE)
        if path.stem not in {"__init__", "__main__"} and str(place.parent) not in SAME_NAME:
            names.setdefault(path.stem, []).append(str(place))
    assert [places for places in names.values() if len(places) > 1] == []


def test_the_guard_in_front_of_uvicorn_stays_small() -> None:
    assert len((SOURCE / "http" / "request_guard.py").read_text().splitlines()) <= 120


def test_no_folder_shows_more_than_a_reader_can_take_in() -> None:
    folders = {path.parent for path in MODULES}
    full = {str(folder.relative_to(SOURCE)): len(list(folder.glob("[!_]*"))) for folder in folders}
    assert {name: count for name, count in full.items() if count > 26} == {}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room(path) in {"machines", "errors"}], ids=lambda path: path.name
)
def test_the_machines_are_pure(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} <= PURE | {"holdfast"}
    assert not re.search(r"(?<![\w.])(open|print|input)\(", path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_fit_a_sitting_and_functions_a_screen(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module opens with what it promises"
    is_long = len(path.read_text().splitlines()) > 400
    listed = str(path.relative_to(SOURCE)) in LONG
    assert not is_long or listed, "split it by subject, or say in LONG why it is one"
    assert is_long or not listed, "it is no longer long: take it out of LONG"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 70, node.name


@pytest.mark.parametrize(
    "name",
    ["holdfast", "holdfast.errors", "holdfast.machines", "holdfast.ready", "holdfast.server", "holdfast.testing"],
)
def test_the_public_names_exist_and_are_listed_once(name: str) -> None:
    module = __import__(name, fromlist=["__all__"])
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


def test_the_package_lists_its_public_names_before_they_are_imported() -> None:
    """Every lazy name and every error that a caller may catch is in `__all__`, and `dir` shows all of them."""
    code = "import holdfast; print(*dir(holdfast)); print(*holdfast._LAZY); print(*holdfast.__all__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    listed, lazy, public = (set(line.split()) for line in ran.stdout.splitlines())
    from holdfast import errors

    assert public <= listed
    assert lazy <= public
    assert set(errors.__all__) <= public
    assert {name for name in listed - public if not name.startswith("_")} <= {"Any", "TYPE_CHECKING", "errors"}


def test_every_error_is_in_the_drawn_tree() -> None:
    from holdfast import errors

    drawn = set(re.findall(r"[├└]── ([A-Z]\w+)", errors.__doc__ or "")) | {"HoldfastError"}
    assert drawn == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), errors.HoldfastError) for name in errors.__all__)


def test_the_version_is_said_the_same_everywhere() -> None:
    from holdfast import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
    ran = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == __version__
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in {"Unreleased", __version__}


def test_no_pattern_has_a_possessive_group() -> None:
    """`re` of Python 3.11.0 to 3.11.4 matches them wrongly; atomic groups do the same."""
    wrong = [str(path) for path in MODULES if re.search(r"\)(\*\+|\+\+|\?\+)", path.read_text())]
    assert wrong == []
