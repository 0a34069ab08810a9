"""The dashboard for everyone: axe finds nothing serious, keys reach everything, and a phone shows it all."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import DESK, PHONE, SHOP, axe_source, looking
from support.dashboard import Filled, Shop, copy_store, press
from support.scheduled_shop import schedule
from support.scripts import ROOT
from support.web import served

VIEWS = {  # where each view is, and a text that shows that it is complete
    "runs": ("runs", "signal 'shipped'"),  # what a run waits for comes last
    "filtered": ("runs?status=failed", "the books of monday differ"),
    "inbox": ("inbox", "DE89 3704"),
    "start": ("start?job=shop.refund", "order"),
    "schedules": ("schedules", "no ticks yet"),
    "schedule": ("schedules/shop.sync-orders", "a run was open"),
    "queues": ("queues", "default"),
    "workers": ("workers", "Workers"),
    "gates": ("gates", "No gates"),
    "builds": ("builds", "2026-11-fee"),
    "machines": ("machines", "job created"),
    "timeline": ("runs/{done}/timeline", "It has ended"),
    "plan": ("runs/{plan}/plan", "needs nothing|Choose a node"),
    "events": ("runs/{done}/events", "job created"),
    "data": ("runs/{done}/data", "ch_5555"),
    "exports": ("runs/{done}/exports", "invoice"),
    "evidence": ("runs/{doubt}/evidence", "evidence|attempt"),
    "family": ("runs/{done}/family", "notify"),
    "verify": ("runs/{done}/verify", "Check the history"),
    "raw": ("runs/{done}/raw", "plugin_id"),
    "doubt": ("runs/{doubt}/timeline", "Not done: run it again"),
}
PICTURES = {"light": ("runs", "timeline", "plan", "inbox", "schedules"), "dark": ("timeline",)}  # of the documentation


@pytest.fixture(scope="module")
def shop(filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Return a served shop that has schedules, too."""
    path = tmp_path_factory.mktemp("scheduled") / "jobs.db"
    copy_store(filled.folder / "jobs.db", path)
    schedule(path)
    with served(SHOP, f"sqlite:///{path}", python=filled.python) as server:
        yield Shop(f"{server.url}/", f"sqlite:///{path}", filled.runs)


def visit(page: Page, shop: Shop, name: str) -> None:
    path, text = VIEWS[name]
    page.goto(f"{shop.url}#/{path.format(**shop.runs)}")
    expect(page.get_by_role("main").get_by_text(re.compile(text)).first).to_be_visible()
    expect(page.get_by_text(re.compile("^Reading "))).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_view(browser: Browser, shop: Shop, theme: str) -> None:
    source = axe_source()
    with looking(browser, shop.url, color_scheme=theme) as page:
        expect(page.get_by_role("row").last).to_be_visible()
        page.evaluate(source)
        wrong = {name: found for name in VIEWS if (found := _violations(page, shop, name))}
        assert wrong == {}


def _violations(page: Page, shop: Shop, name: str) -> list[str]:
    visit(page, shop, name)
    report = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in report["violations"]
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_fits_a_phone_and_a_desk(browser: Browser, shop: Shop, theme: str) -> None:
    with looking(browser, shop.url, color_scheme=theme, viewport=PHONE) as page:
        for name in VIEWS if theme == "light" else ():  # sizes do not depend on colours
            visit(page, shop, name)
            wide = page.evaluate("document.scrollingElement.scrollWidth")
            assert wide <= PHONE["width"], (name, wide)
            assert page.evaluate("document.querySelector('main').scrollWidth") <= PHONE["width"], name
            for chosen in page.locator("[role=tab][aria-selected=true], .count.chosen").all():
                box = chosen.bounding_box()
                assert box is not None
                assert 0 <= box["x"] <= box["x"] + box["width"] <= PHONE["width"], (name, box)
        if theme == "light":
            _keep(page, shop, "dashboard-phone", "timeline")
        page.set_viewport_size(DESK)
        for name in PICTURES[theme]:
            _keep(page, shop, f"dashboard-{name}{'-dark' if theme == 'dark' else ''}", name)


def _keep(page: Page, shop: Shop, file: str, name: str) -> None:
    """Take a picture. With HOLDFAST_PICTURES=1 it becomes the one of the documentation."""
    visit(page, shop, name)
    session = page.context.new_cdp_session(page)
    shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    picture = base64.b64decode(shot["data"])
    assert len(picture) > 5000, "not an empty page"
    kept: Path = ROOT / "docs" / "images" / f"{file}.webp"
    if os.environ.get("HOLDFAST_PICTURES"):
        kept.write_bytes(picture)
    else:
        assert kept.exists(), "make it with HOLDFAST_PICTURES=1"


def test_a_walk_with_keys_only(browser: Browser, shop: Shop) -> None:
    with looking(browser, shop.url) as page:
        keys = page.keyboard
        expect(page.get_by_role("row").last).to_be_visible()
        keys.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Go to Inbox")
        keys.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        keys.press("/")
        keys.type("reconcile")
        keys.press("Enter")
        expect(page).to_have_url(re.compile("entry_id=reconcile"))
        expect(page.locator(".row")).to_have_count(1)
        keys.press("Escape")
        page.evaluate("document.activeElement.blur()")
        keys.press("j")
        keys.press("Enter")
        expect(page.get_by_role("heading", name="shop.reconcile")).to_be_visible()
        keys.press("]")
        expect(page.get_by_role("tab", selected=True)).to_have_text("Plan")
        keys.press("]")
        expect(page.get_by_role("button", name=re.compile("job created"))).to_be_visible()
        for key, number in (("j", 1), ("j", 2), ("k", 1)):
            keys.press(key)
            expect(page.get_by_role("heading", name=re.compile(f"^{number} ·"))).to_be_visible()
        keys.press("[")
        keys.press("[")
        keys.press("ArrowLeft")
        expect(page.locator(".slider-text")).to_contain_text(re.compile(r"^\d+ of"))
        keys.press("r")
        dialog = page.get_by_role("dialog", name="Retry the run")
        expect(dialog.get_by_label("Reason")).to_be_focused()
        keys.press("Escape")
        expect(dialog).to_have_count(0)
        for key, heading in (
            ("i", "Inbox"),
            ("s", "Start a run"),
            ("c", "Schedules"),
            ("q", "Queues and limits"),
            ("w", "Workers"),
            ("t", "Gates"),
            ("b", "Builds and changes"),
            ("m", "Machines"),
        ):
            keys.press("g")
            keys.press(key)
            expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
        keys.press("p")
        expect(page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
        keys.press("p")
        before = page.evaluate("document.documentElement.dataset.theme ?? 'system'")
        keys.press("d")
        assert page.evaluate("document.documentElement.dataset.theme ?? 'system'") != before
        keys.press("g")
        keys.press("i")
        expect(page.get_by_role("article").first).to_be_visible()
        keys.press("j")
        keys.press("Tab")
        focused = page.evaluate("document.activeElement.closest('article') !== null")
        assert focused, "Tab moves into the question"


def test_the_theme_that_a_user_chooses_stays(browser: Browser, shop: Shop) -> None:
    with looking(browser, shop.url, color_scheme="light") as page:
        press(page, "Theme: system")
        press(page, "Theme: light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 18, 21)"
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 18, 21)"
