"""The dashboard while things change: servers that fall silent, runs that go on, a page that the user has paused."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import PHONE, SHOP, looking
from support.dashboard import confirm, hold, press, shop_at
from support.web import Served, served

SILENT_MS = 45_000  # more than the page waits for a heartbeat
READ_MS = 21_000  # more than the page waits for an answer
DRAW_MS = 250  # more than the page waits before it draws changes
SOON_MS = 1000  # more than the inbox waits before it is read again
AHEAD_SECONDS = 5  # of now, when the page's clock stops; less than a page without a heartbeat waits


class Live(NamedTuple):
    """A served store, and its app in this process."""

    shop: ModuleType
    server: Served

    def at(self, place: str) -> str:
        """Return the address of a place of the page."""
        return f"{self.server.url}/#/{place}"

    def work(self) -> None:
        """Run what is due."""
        self.shop.app.worker().run(until_idle=True)


@pytest.fixture(scope="module")
def live(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    del browser  # without one nothing needs to be served
    store = f"sqlite:///{tmp_path_factory.mktemp('live') / 'jobs.db'}"
    shop = shop_at(store)
    with served(SHOP, store) as server:
        yield Live(shop, server)
    shop.app.close()


def _state(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator(".live-state")).to_contain_text(text)


def test_a_silent_server_is_noticed_and_the_page_catches_up(browser: Browser, live: Live) -> None:
    run = live.shop.refund.start("order-5", 480)
    live.work()
    with looking(browser, f"{live.server.url}/healthz") as page:
        page.clock.install()
        hold(page, "**/api/v1/token")
        page.goto(live.at(f"runs/{run.id}/events"))
        expect(page.get_by_text("Waits for the answer of the server")).to_be_visible()
        page.clock.fast_forward(READ_MS)
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
        page.unroute("**/api/v1/token")
        page.clock.fast_forward(5000)
        expect(page.get_by_role("button", name=re.compile("wait|parked")).last).to_be_visible()
        _state(page, "Live")

        os.kill(live.server.process.pid, signal.SIGSTOP)  # its connections stay open
        try:
            page.clock.fast_forward(SILENT_MS)
            _state(page, "Connection lost")
            run.cancel("too late")
            live.work()
        finally:
            os.kill(live.server.process.pid, signal.SIGCONT)
        page.clock.fast_forward(READ_MS)
        _state(page, "Live")
        expect(page.get_by_role("button", name=re.compile("job cancelled"))).to_be_visible()


def test_what_is_shown_stays_while_a_run_changes(browser: Browser, live: Live) -> None:
    run = live.shop.refund.start("order-5", 480)
    live.work()
    with looking(browser, live.at(f"runs/{run.id}/data")) as page:
        _state(page, "Live")
        shown = page.get_by_label("arguments", exact=True)
        expect(shown).to_be_visible()
        held = hold(page, "**/result")
        with page.expect_request("**/result"):
            run.cancel("changed")
        expect(shown).to_be_visible()
        held[0].continue_()
        page.get_by_role("tab", name="Raw").click()
        expect(page.get_by_label("record", exact=True)).to_contain_text("canceled")


def test_a_paused_page_shows_what_the_user_does(browser: Browser, live: Live) -> None:
    run = live.shop.refund.start("order-5", 480)
    live.work()
    with looking(browser, live.at(f"runs/{run.id}")) as page:
        press(page, "Pause live updates")
        press(page, "Cancel…")
        confirm(page, "Cancel the run")
        expect(page.locator(".run-title .status")).to_have_text("canceled")
        _state(page, "Paused, 1 change waits")


def test_a_pause_holds_back_what_the_inbox_was_about_to_read(browser: Browser, live: Live) -> None:
    live.shop.refund.start("order-6", 480)
    live.work()
    with looking(browser, f"{live.server.url}/healthz") as page:
        page.clock.install()
        page.goto(live.at("inbox"))
        page.get_by_role("button", name=re.compile("^Questions")).click()
        _state(page, "Live")
        press(page, "Pause live updates")
        live.shop.refund.start("order-7", 480)
        live.work()
        _state(page, re.compile("changes? waits?"))
        page.clock.pause_at(time.time() + AHEAD_SECONDS)
        reads: list[str] = []
        page.on("request", lambda request: reads.append(request.url) if "kind=answer" in request.url else None)
        press(page, "Resume live updates")
        page.clock.run_for(DRAW_MS)  # the inbox hears of the change, and will read in a moment
        press(page, "Pause live updates")
        page.clock.run_for(SOON_MS)
        assert reads == []
        press(page, "Resume live updates")
        with page.expect_request("**/inbox*kind=answer*"):
            page.clock.run_for(SOON_MS)


def test_a_phone_has_room_for_long_names(browser: Browser, live: Live) -> None:
    run = live.shop.etl.options(attributes={"a" * 60: "the value"}).start(day="monday")
    live.work()
    with looking(browser, live.at(f"runs/{run.id}/plan"), viewport=PHONE) as page:
        value = page.get_by_role("link", name="the value").bounding_box()
        assert value is not None
        assert value["height"] < 30, "one line"
        fit, whole = (page.get_by_role("button", name=name).bounding_box() for name in ("Fit", "1:1"))
        assert fit is not None
        assert whole is not None
        assert fit["y"] == whole["y"]
        explained = page.locator(".explain")
        expect(explained).to_contain_text("waits for a person to answer 'approve'")
        expect(explained).not_to_contain_text("inbox")  # the form is right there
        badge, icon = page.locator(".badge").bounding_box(), page.locator(".place .icon").nth(1).bounding_box()
        assert badge is not None
        assert icon is not None
        assert badge["x"] + 1 >= icon["x"] + icon["width"] * 0.8, "the number does not cover the picture"


def test_names_that_every_object_has_are_names_like_others(browser: Browser, live: Live) -> None:
    run = live.shop.odd.start(day="monday")
    live.work()
    with looking(browser, live.at(f"runs/{run.id}/plan")) as page:
        expect(page.locator(".node.tone-succeeded")).to_have_count(2)
        expect(page.locator(".node", has_text="__proto__")).to_be_visible()
        page.get_by_role("tab", name="Timeline").click()
        press(page, "One event back")
        assert page.evaluate("Object.keys(Object.prototype)") == []
        page.goto(live.at("runs?__proto__=1&constructor=2"))
        expect(page.get_by_role("alert")).to_contain_text("__proto__")
