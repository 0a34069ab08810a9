"""Who may do what in the dashboard: tokens, scopes, and text that tries to be more than text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from holdfast.http.tokens import TokenFile
from support.browser import SHOP, looking
from support.dashboard import HOSTILE, Shop, fill, open_run, press, shop_at
from support.web import served

LONG = "x" * 1_000_000
# `expect` asks again after growing pauses, so the page itself takes the time.
WATCH_FOR_ALERT = """
    new MutationObserver(() => {
        if (document.querySelector("[role=alert]")) window.emptied ??= Date.now();
    }).observe(document.body, { childList: true, subtree: true });
"""


def test_a_token_leaves_the_address_and_ends_with_its_revocation(browser: Browser, tmp_path: Path) -> None:
    store, tokens = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "tokens.json"
    runs = fill(shop_at(store))
    file = TokenFile(tokens)
    reader = file.create("rob", "read")
    admins = {name: file.create(name, "admin") for name in ("ana", "ben", "cleo")}
    with served(SHOP, store, HOLDFAST_TOKENS=str(tokens)) as server:
        url = f"{server.url}/"
        with looking(browser, url) as page:
            expect(page.get_by_role("alert")).to_have_text("This server asks for a token.")
            page.get_by_label("Token").fill("not-a-token")
            press(page, "Open the dashboard")
            expect(page.get_by_role("alert")).to_have_text("The server does not accept this token.")
            page.get_by_label("Token").fill("ключ")  # no header can carry it
            press(page, "Open the dashboard")
            expect(page.get_by_role("alert")).to_contain_text("This is not a token")
            page.goto(f"{url}#t=%")
            expect(page.get_by_role("alert")).to_have_text("The server does not accept this token.")
            page.get_by_label("Token").fill(reader)
            press(page, "Open the dashboard")
            expect(page.get_by_role("button", name="rob")).to_be_visible()
            _sees_no_buttons(page, url, runs)
        seconds = [
            _until_empty(browser, f"{url}#t={secret}", secret, runs["done"], partial(file.revoke, name))
            for name, secret in admins.items()
        ]
        assert min(seconds) < 1, "a busy machine may delay one of them"


def _until_empty(browser: Browser, link: str, secret: str, run: str, revoke: Callable[[], object]) -> float:
    """Return the seconds from the revocation of a token to the page without content."""
    with looking(browser, link) as page:
        expect(page.get_by_role("row").last).to_be_visible()
        assert secret not in page.url
        assert secret not in page.evaluate("JSON.stringify([history.state, {...localStorage}, document.cookie])")
        assert page.context.cookies() == []
        assert page.evaluate("sessionStorage.getItem('holdfast.token')") == secret
        page.goto(f"{link.partition('#')[0]}#/runs/{run}")
        expect(page.get_by_text("It has ended: completed.")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
        page.evaluate(WATCH_FOR_ALERT)
        revoke()
        revoked = time.time() * 1000
        expect(page.get_by_role("alert")).to_have_text("The server no longer accepts this token.")
        assert "checkout" not in page.content()
        assert page.evaluate("sessionStorage.getItem('holdfast.token')") is None
        emptied: float = page.evaluate("window.emptied")
        return (emptied - revoked) / 1000


def _sees_no_buttons(page: Page, url: str, runs: dict[str, str]) -> None:
    expect(page.get_by_role("link", name="Start")).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel all…")).to_have_count(0)
    page.goto(f"{url}#/runs/{runs['parked']}")
    expect(page.get_by_text("waits for the signal 'shipped'")).to_be_visible()
    for name in ("Cancel…", "Pause…", "Signal…", "Fork…"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.goto(f"{url}#/start")
    expect(page.get_by_text("Starting needs a token with the scope submit")).to_be_visible()


def test_a_token_of_a_group_sees_its_runs_and_is_told_what_it_may_not(browser: Browser, tmp_path: Path) -> None:
    store, tokens = f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path / "tokens.json"
    shop = shop_at(store)
    shop.quick.options(group="acme").start(1)
    shop.quick.options(group="other").start(2)
    shop.app.close()
    secret = TokenFile(tokens).create("acme", "operate", group="acme")
    with (
        served(SHOP, store, HOLDFAST_TOKENS=str(tokens)) as server,
        looking(browser, f"{server.url}/#t={secret}") as page,
    ):
        expect(page.get_by_role("rowgroup", name="Runs, newest first").get_by_role("row")).to_have_count(1)
        expect(page.get_by_role("group", name="Runs by status")).to_have_count(0)
        for place in ("Queues", "Workers", "Gates"):
            page.get_by_role("link", name=place).click()
            expect(page.get_by_text("Your token belongs to one group")).to_be_visible()


def test_hostile_text_shows_as_text_everywhere(browser: Browser, shop: Shop) -> None:
    with looking(browser, f"{shop.url}#/runs?entry_id=echo") as page:
        rows = page.get_by_role("rowgroup", name="Runs, newest first").get_by_role("row")
        expect(rows.first).to_contain_text(HOSTILE[0][:30])  # the key
        for tab in ("timeline", "events", "data", "exports", "raw", "family"):
            open_run(page, shop, "hostile", tab)
            expect(page.get_by_role("tabpanel")).not_to_contain_text("Reading")
        open_run(page, shop, "hostile", "data")
        shown = page.get_by_label("result", exact=True)
        for text in HOSTILE[:5]:
            expect(shown).to_contain_text(text)
        expect(shown).to_contain_text("\u27e8U+202E\u27e9gnitirw")  # shown as a code, and not obeyed
        expect(shown).to_contain_text("\u27e8U+0000\u27e9")
        page.goto(f"{shop.url}#/runs?idempotency_key=%3Cscript%3E&attr.%3Cb%3E=%3Ci%3E")
        expect(page.locator(".chip").first).to_contain_text("<script>")
        page.goto(f"{shop.url}#/runs/%3Cimg%20src%3Dx%3E")
        expect(page.get_by_text("No run has this id")).to_be_visible()
        assert "owned" not in page.title()
        assert page.locator("#app img, #app script, #app iframe").count() == 0


def test_a_megabyte_of_text_is_shown_in_part_and_then_in_full(browser: Browser, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop = shop_at(store)
    run = shop.echo.start(LONG)
    shop.app.worker().run(until_idle=True)
    shop.app.close()
    with served(SHOP, store) as server, looking(browser, f"{server.url}/#/runs/{run.id}/data") as page:
        box = page.get_by_label("result", exact=True)
        expect(box).to_be_visible()
        assert len(box.inner_text()) < 30_000
        page.get_by_role("button", name=re.compile("Show all 1,000,000")).last.click()
        page.wait_for_function("document.querySelectorAll('pre')[1].textContent.length === 1000000")
