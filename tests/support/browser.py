"""A real browser that looks at a real server of the dashboard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from support.scripts import ROOT, load
from support.web import usual_environment

SHOP = ROOT / "tests" / "page" / "dashboard_shop.py"
PHONE: ViewportSize = {"width": 375, "height": 780}
DESK: ViewportSize = {"width": 1280, "height": 860}
SECONDS = 20.0  # how long a test waits for something that must appear; a busy machine is slow
# The flags keep the browser from asking its maker's servers, and let it run as root.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio",
]  # fmt: skip


def browser_path() -> str:
    """Return the path of the browser. Without one the test is skipped, or fails where CI=true."""
    found: str | None = load(ROOT / "tools" / "find_browser.py").find()
    if found is None:
        missing = "no Chromium or Chrome is installed, so the dashboard is not looked at"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """Start a browser."""
    path = browser_path()
    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def looking(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """Open a page in a context of its own. An error in the page, or a refusal of its policy, fails the test."""
    context: BrowserContext = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if _is_wrong(message) else None)
    page.on("request", lambda request: wrong.append(request.url) if not _is_own(request.url, url) else None)
    page.goto(url)
    yield page
    context.close()
    assert wrong == []


def _is_wrong(message: Any) -> bool:
    expected = "Failed to load resource"  # a refusal by the server: the page shows it, and the test looks at that
    return message.type == "error" and expected not in message.text


def _is_own(request: str, url: str) -> bool:
    return request.startswith((url.partition("#")[0].rpartition("/")[0], "data:", "blob:"))


@contextmanager
def working(url: str, python: str = sys.executable) -> Iterator[None]:
    """Run a worker of the shop in a process of its own."""
    command = [python, "-m", "holdfast", "worker", str(SHOP), "--url", url]
    process = subprocess.Popen(command, env=usual_environment(python), stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def axe_source() -> str:
    """Return the accessibility checker that `make test` installs where there is Node. With CI=true it must be there."""
    path: Path = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists():
        missing = "no Node here, so axe-core is not installed and accessibility is not checked"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return path.read_text()
