"""A filled shop, its server, and what the browser tests do with the dashboard again and again."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from support.browser import SHOP, launched, working
from support.scripts import ROOT, load
from support.web import served

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "</pre><svg/onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "{{constructor.constructor('document.title=1')()}}",
    "\u202egnitirw-desrever\u202c \u2066isolated\u2069 \u200bzero",
    "'\"`&lt;&#60;%3Cscript%3E\\u003c",
    "a\u0000b\u0007c",
)


class Shop(NamedTuple):
    """A served shop. `runs` has the ids of some runs by a name."""

    url: str
    store: str
    runs: dict[str, str]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def shop_at(store: str) -> ModuleType:
    """Import the shop with a store."""
    with _environment(HOLDFAST_URL=store):
        return load(SHOP)


def fill(shop: ModuleType) -> dict[str, str]:
    """Make runs in every state, and return some of their ids."""
    runs: dict[str, Any] = {
        "hostile": shop.echo.options(key=HOSTILE[0], attributes={"note": HOSTILE[1]}).start("\n".join(HOSTILE)),
    }
    for number in range(12):
        shop.quick.start(number)
    runs |= {
        "done": shop.checkout.options(key="order-17", attributes={"customer": "grace", "tier": 2}).start(
            "B2", card="5555", amount=3
        ),
        "parked": shop.checkout.options(key="order-18", attributes={"customer": "ada"}).start("A1", card="4242"),
        "doubt": shop.payout.start("DE89 3704 0044 0532 0130 00", 12000),
        "budget": shop.research.options(budget={"tokens": 2000}).start("why is the sky blue"),
        "question": shop.refund.options(attributes={"customer": "lin"}).start("order-5", 480),
        "failed": shop.reconcile.start("monday"),
        "plan": shop.etl.start(day="monday"),
    }
    shop.app.worker().run(until_idle=True)
    runs["done"].signal("shipped", {"by": "the post"})
    shop.app.worker().run(until_idle=True)
    shop.app.close()
    return {name: run.id for name, run in runs.items()}


@pytest.fixture(scope="module")  # and no longer: while it runs, no other test of the process can start an event loop
def browser() -> Iterator[Browser]:
    """Return a started browser."""
    with launched() as started:
        yield started


class Filled(NamedTuple):
    """A filled store, and the Python whose installed wheel serves it, away from the source."""

    folder: Path
    python: str
    runs: dict[str, str]


@pytest.fixture(scope="module")
def filled(installed: str, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Fill a store once for all tests of a module."""
    folder = tmp_path_factory.mktemp("shop")
    return Filled(folder, installed, fill(shop_at(f"sqlite:///{folder / 'jobs.db'}")))


@pytest.fixture(scope="module")
def shop(filled: Filled) -> Iterator[Shop]:
    """Return a served shop that no test changes."""
    store = f"sqlite:///{filled.folder / 'jobs.db'}"
    with served(SHOP, store, python=filled.python) as server:
        yield Shop(server.url + "/", store, filled.runs)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store that may be open."""
    with sqlite3.connect(source) as full, sqlite3.connect(target) as copy:
        full.backup(copy)
    full.close()
    copy.close()


@pytest.fixture
def busy_shop(filled: Filled, tmp_path: Path) -> Iterator[Shop]:
    """Return a served copy of the shop with a worker, for one test."""
    copy_store(filled.folder / "jobs.db", tmp_path / "jobs.db")
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with (
        served(SHOP, store, python=filled.python) as server,
        working(store, filled.python),
    ):
        yield Shop(server.url + "/", store, filled.runs)


@pytest.fixture(scope="module")
def installed(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the wheel in a clean environment, once for all processes of this test run, and return its Python."""
    del browser  # without one nothing needs to be served
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    folder.mkdir(exist_ok=True)
    python = folder / "environment" / "bin" / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install_wheel(folder, python)
            (folder / "done").touch()
    return str(python)


def _install_wheel(folder: Path, python: Path) -> None:
    def run(*command: str | Path) -> None:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr

    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(Path(sys.executable).with_name("uv-build"), "build-wheel", folder)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", python.parent.parent)
    run(*pip, "--require-hashes", "-r", "requirements-deploy.lock")
    run(*pip, "--no-index", wheel)
    run(python, "-I", "-c", "import sys, holdfast; assert holdfast.__file__.startswith(sys.prefix), holdfast.__file__")


def hold(page: Page, address: str) -> list[Route]:
    """Leave requests to an address without an answer. The list has those that came."""
    held: list[Route] = []

    def keep(route: Route) -> None:
        held.append(route)

    page.route(address, keep)
    return held


def press(page: Page | Locator, name: str) -> None:
    """Press the button with a name."""
    page.get_by_role("button", name=name, exact=True).click()


def confirm(page: Page, verb: str, reason: str | None = None) -> None:
    """Answer the question of a dialog with yes."""
    dialog = page.get_by_role("dialog")
    if reason is not None:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_be_hidden()


def open_run(page: Page, shop: Shop, name: str, tab: str = "timeline") -> None:
    """Open a run of the shop."""
    page.goto(f"{shop.url}#/runs/{shop.runs[name]}/{tab}")
    expect(page.get_by_role("tab", selected=True)).to_have_attribute("data-tab", tab)
