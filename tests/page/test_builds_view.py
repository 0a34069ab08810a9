"""The builds and changes of the dashboard: what needs a build, the move of runs with its check, and the marks."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from support.browser import SHOP, looking
from support.dashboard import Filled, Shop, copy_store, press
from support.web import served


@pytest.fixture
def idle_shop(filled: Filled, tmp_path: Path) -> Iterator[Shop]:
    """Return a served copy of the shop without a worker."""
    copy_store(filled.folder / "jobs.db", tmp_path / "jobs.db")
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with served(SHOP, store, python=filled.python) as server:
        yield Shop(server.url + "/", store, filled.runs)


def ship(filled: Filled, shop: Shop, order: str, suffix: str = "") -> str:
    """Start a pinned run, and let a worker of an older build run it until it waits."""
    environment = {**os.environ, "HOLDFAST_URL": shop.store, "HOLDFAST_BUILD": "1.4.0", "SHOP_SUFFIX": suffix}

    def holdfast(*words: str) -> str:
        command = [filled.python, "-m", "holdfast", *words]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    run = holdfast("start", str(SHOP), "ship", f"order={order}")
    holdfast("worker", str(SHOP), "--until-idle")
    return run


def test_builds_are_shown_with_what_keeps_them_and_runs_are_moved_after_a_check(
    browser: Browser, filled: Filled, idle_shop: Shop
) -> None:
    run = ship(filled, idle_shop, "A1", suffix=" old")
    with looking(browser, f"{idle_shop.url}#/builds") as page:
        builds = page.get_by_role("table", name="Builds")
        old, new = (builds.get_by_role("row").filter(has_text=re.compile(rf"^1\.4\.{patch}")) for patch in (0, 1))
        expect(old).to_contain_text("1 run is kept for it, and no worker of it is alive")
        expect(old.get_by_role("link")).to_have_attribute("href", re.compile(run))
        change = page.get_by_role("table", name="Marked changes").get_by_role("row", name=re.compile("2026-11-fee"))
        expect(change).to_contain_text(re.compile(r"2026-11-fee015.*dashboard_shop\.py:\d+.*may be needed"))
        press(page, "Move the runs of 1.4.0")
        dialog = page.get_by_role("dialog", name="Move the runs of build 1.4.0")
        dialog.get_by_label("New build").fill("1.4.2")
        press(dialog, "Move")
        expect(dialog.get_by_role("alert")).to_contain_text("the code that would check the runs is build 1.4.1")
        dialog.get_by_label("New build").fill("1.4.1")
        press(dialog, "Move")
        expect(dialog.get_by_role("alert")).to_contain_text("1 run does not fit, so none was moved.")
        expect(dialog.get_by_role("alert")).to_contain_text("it now calls price(sku='A1'), but the history has")
        dialog.get_by_label("Check each run first").uncheck()
        press(dialog, "Move")
        expect(dialog).to_be_hidden(timeout=15_000)
        expect(page.get_by_text("Moved 1 run to 1.4.1.")).to_be_visible()
        expect(new).to_contain_text("1 run is kept for it", timeout=15_000)
        expect(page.get_by_role("button", name="Move the runs of 1.4.0")).to_have_count(0)


def test_changes_of_many_runs_are_counted_in_parts(browser: Browser, shop: Shop) -> None:
    """The server counts so many runs in a request. The page says so, and counts the rest when it is asked to."""
    change = {"mark": "2026-12-tax", "old": 1, "new": 2, "unknown": 0, "oldest": "b", "uses": [], "removable": False}
    parts = {
        "": {"changes": [change], "runs": 1000, "complete": False, "next": "c", "unread": []},
        "c": {"changes": [{**change, "oldest": "a"}], "runs": 234, "complete": True, "next": None, "unread": []},
    }
    with looking(browser, shop.url) as page:
        page.route(
            "**/changes*",
            lambda route: route.fulfill(json=parts[route.request.url.partition("cursor=")[2]]),
        )
        page.goto(f"{shop.url}#/builds")
        expect(page.get_by_text("The newest 1,000 runs that have not ended")).to_be_visible()
        row = page.get_by_role("table", name="Marked changes").get_by_role("row").last
        expect(row).to_contain_text("2026-12-tax120")
        press(page, "Count all")
        expect(page.get_by_text("1,234 runs that have not ended")).to_be_visible()
        expect(row).to_contain_text("2026-12-tax240")
        expect(row.get_by_role("link")).to_have_attribute("href", "#/runs/a")
