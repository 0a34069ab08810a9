"""The schedules of the dashboard: the last ticks as dots, the times to come, explanations, and the buttons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Route, expect

from holdfast import App
from holdfast.http.tokens import TokenFile
from support.browser import PHONE, SHOP, looking
from support.dashboard import HOSTILE, copy_store, press, shop_at
from support.scheduled_shop import SCHEDULES, schedule
from support.web import served


@pytest.fixture(scope="module")
def scheduled(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with schedules, made once for all tests."""
    del browser  # without one nothing is looked at
    path = tmp_path_factory.mktemp("scheduled") / "jobs.db"
    schedule(path)
    return path


@pytest.fixture(scope="module")
def url(scheduled: Path) -> Iterator[str]:
    """Return the address of a server that no test changes."""
    with served(SHOP, f"sqlite:///{scheduled}") as server:
        yield f"{server.url}/"


@pytest.fixture
def store(scheduled: Path, tmp_path: Path) -> str:
    """Return a store with schedules, for one test."""
    copy_store(scheduled, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def own_url(store: str) -> Iterator[str]:
    """Return the address of a server without a worker, for one test."""
    with served(SHOP, store) as server:
        yield f"{server.url}/"


def app_at(store: str) -> App:
    app: App = shop_at(store).app
    return app


def test_the_list_shows_states_next_ticks_and_a_dot_for_each_outcome(browser: Browser, url: str) -> None:
    with looking(browser, f"{url}#/runs") as page:
        page.get_by_role("link", name="Schedules").click()
        rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
        expect(rows).to_have_count(len(SCHEDULES))
        expect(rows.filter(has_text="nightly-report")).to_contain_text("daily at 02:30, Europe/Berlin")
        expect(rows.filter(has_text="leap-day")).to_contain_text(re.compile(r"in \d+d.*3:15.AM.*-02-29 02:15 UTC"))
        expect(rows.filter(has_text="old-import")).to_contain_text("no live worker has its job")
        expect(rows.filter(has_text="poll-stock")).not_to_contain_text("no live worker")
        expect(rows.filter(has_text="trial").get_by_text("ended")).to_be_visible()
        expect(rows.filter(has_text="leap-day")).to_contain_text("no ticks yet")
        cleanup = rows.filter(has_text="cleanup")
        expect(cleanup).to_contain_text("by ana: the disk is full, see ticket 812")
        dots = rows.filter(has_text="reconcile").get_by_role("group", name=re.compile("^Last ticks: "))
        expect(dots).to_have_accessible_name(re.compile("21 succeeded, 11 failed|11 failed, 21 succeeded"))
        expect(dots.get_by_role("link", name=re.compile("failed$"))).to_have_count(11)
        expect(dots.get_by_role("img", name=re.compile("missed: no worker was there in time$"))).to_have_count(1)
        exports = rows.filter(has_text="sync-orders").get_by_role("group", name=re.compile("^Last ticks: "))
        expect(exports.get_by_role("img", name=re.compile("skipped: a run was open$")).first).to_be_visible()
        shapes = {
            dots.get_by_role("link", name=end).first.locator("path").get_attribute("d")
            for end in ("failed", "succeeded")
        }
        assert len(shapes) == 2, "a colour is not needed to tell them apart"
        dots.get_by_role("link").last.focus()
        before = page.evaluate("document.activeElement.ariaLabel")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.ariaLabel") != before
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="shop.audit")).to_be_visible()
        expect(page.get_by_role("tab", selected=True)).to_be_visible()


def test_a_search_and_a_state_narrow_the_list_and_stay_in_the_address(browser: Browser, url: str) -> None:
    with looking(browser, f"{url}#/schedules") as page:
        rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
        expect(rows).to_have_count(len(SCHEDULES))
        page.keyboard.press("/")
        page.keyboard.type("NIGHTLY")
        expect(rows).to_have_count(1)
        page.goto(f"{url}#/schedules?search=shop.quick")
        expect(rows).to_have_count(sum(entry == "quick" for entry, _ in SCHEDULES.values()))
        page.get_by_role("group", name="Schedules by state").get_by_role("link", name="paused").click()
        expect(rows).to_have_count(1)
        expect(page).to_have_url(re.compile("search=shop.quick&state=paused"))
        page.goto(f"{url}#/schedules?search=%3Cb%3E")
        press(page, "Show all schedules")
        expect(rows).to_have_count(len(SCHEDULES))


def test_a_long_list_is_read_in_pages_and_searched_to_its_end(browser: Browser, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = app_at(store)
    for number in range(60):
        app.schedules.create(f"s{number:02}", "quick", args={"number": 1}, every="1h")
    app.close()
    with served(SHOP, store) as server, looking(browser, f"{server.url}/#/schedules") as page:
        rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
        expect(rows).to_have_count(50)
        expect(page.get_by_role("group", name="Schedules by state")).to_contain_text("50+ all")
        press(page, "Show more")
        expect(rows).to_have_count(60)
        page.goto(f"{server.url}/#/runs")
        page.goto(f"{server.url}/#/schedules?search=s59")
        expect(rows).to_have_count(1)


def test_a_schedule_shows_its_ticks_its_history_and_why_a_tick_did_not_run(browser: Browser, url: str) -> None:
    with looking(browser, f"{url}#/schedules") as page:
        page.get_by_role("link", name="shop.nightly-report").click()
        main = page.get_by_role("main")
        expect(main.get_by_text("Its next tick is")).to_be_visible()
        ticks = page.get_by_role("table", name="Ticks").locator("tbody tr")
        expect(ticks).to_have_count(10)
        usual = ticks.filter(has_text=re.compile(r"\d\d-\d\d 02:30\d{4}-\d\d-\d\d 0[01]:30"))
        expect(usual.nth(8)).to_be_visible()  # a clock change may move one
        page.get_by_label("Around a day").fill("2027-03-28")
        expect(ticks).to_have_count(3)
        expect(ticks.nth(1)).to_contain_text("moved: the clock is set forward; 02:30 does not exist")
        page.get_by_label("Around a day").fill("")
        expect(ticks).to_have_count(10)
        page.get_by_label("At this time").fill("2020-01-01T02:30")
        press(page, "Explain")
        expect(main.get_by_text("was before the schedule was created")).to_be_visible()
        page.get_by_label("At this time").fill("2027-03-28T02:31")
        press(page, "Explain")
        expect(main.get_by_text("has no tick at 2027-03-28")).to_be_visible()
        page.goto(f"{url}#/schedules/shop.sync-orders")
        history = page.get_by_role("table", name="History").locator("tbody tr")
        expect(history.filter(has_text="a run was open").first).to_be_visible()
        expect(history.filter(has_text="missed").first).to_contain_text("no worker was there in time")
        page.goto(f"{url}#/schedules/shop.reconcile")
        expect(history).to_have_count(25)
        press(page, "Show older events")
        expect(history.last).to_contain_text("declared")
        expect(page.get_by_role("button", name="Show older events")).to_have_count(0)
        page.keyboard.press("u")
        expect(page.get_by_role("heading", name="Schedules", level=1)).to_be_visible()


def test_an_operator_pauses_resumes_fires_backfills_and_deletes(browser: Browser, store: str, own_url: str) -> None:
    app = app_at(store)
    with looking(browser, f"{own_url}#/schedules/shop.nightly-report", viewport=PHONE) as page:
        dialog = page.get_by_role("dialog")
        keys: list[str | None] = []
        page.on(
            "request",
            lambda request: keys.append(request.headers.get("idempotency-key")) if request.method == "POST" else None,
        )
        press(page, "Pause…")
        dialog.get_by_label("Reason").fill("the disk is full")
        press(dialog, "Pause")
        expect(page.get_by_role("button", name="Resume…")).to_be_visible()
        expect(page.get_by_text("the disk is full").first).to_be_visible()
        assert (app.schedules.get("nightly-report").state, keys[0] is not None) == ("paused", True)
        press(page, "Resume…")
        press(dialog, "Resume")
        expect(page.get_by_role("button", name="Pause…")).to_be_visible()
        press(page, "Fire now…")
        press(dialog, "Fire now")
        expect(dialog).to_be_hidden()
        expect(page.get_by_role("link", name=re.compile("fired by hand.*queued$"))).to_have_count(1)
        press(page, "Fire now…")
        press(dialog, "Fire now")
        expect(dialog.get_by_role("alert")).to_contain_text("is open, and overlap is 'skip'")
        dialog.get_by_label("Also while a run is open").check()
        press(dialog, "Fire now")
        expect(page.get_by_role("link", name=re.compile("fired by hand.*queued$"))).to_have_count(2)
        assert len(set(keys)) == len(keys), "each action has a key of its own"
        press(page, "Backfill…")
        dialog.get_by_label("From").fill("2020-03-02T00:00")
        dialog.get_by_label("To").fill("2020-03-01T00:00")
        press(dialog, "Show the ticks")
        expect(dialog.get_by_role("alert")).to_contain_text("Backfill: needs a range of the past")
        dialog.get_by_label("To").fill("2020-03-08T00:00")
        press(dialog, "Show the ticks")
        expect(dialog.get_by_role("status")).to_contain_text("6 ticks, in Europe/Berlin:2020-03-02 02:30")
        before = len(app.list(limit=1000))
        press(dialog, "Start up to 6 runs")
        expect(page.get_by_text("Started 6 runs. 0 ticks had one.")).to_be_visible()
        assert len(app.list(limit=1000)) == before + 6
        press(page, "Delete…")
        press(dialog, "Delete")
        expect(page.get_by_role("link", name="shop.trial")).to_be_visible()
        expect(page.get_by_role("link", name="shop.nightly-report")).to_have_count(0)
        page.goto(f"{own_url}#/schedules/shop.nightly-report")
        expect(page.get_by_text("No schedule has this name")).to_be_visible()
    app.close()


def test_a_lost_answer_is_repeated_with_the_same_key_and_fires_once(browser: Browser, store: str, own_url: str) -> None:
    lost: list[str | None] = []

    def lose(route: Route) -> None:
        lost.append(route.request.headers.get("idempotency-key"))
        if len(lost) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    with looking(browser, f"{own_url}#/schedules/shop.trial") as page:
        page.route("**/fire", lose)
        dialog = page.get_by_role("dialog")
        press(page, "Fire now…")
        press(dialog, "Fire now")
        expect(dialog.get_by_role("alert")).to_contain_text("Try again: it is not done twice")
        press(dialog, "Fire now")
        expect(dialog).to_be_hidden()
    app = app_at(store)
    assert len([event for event in app.schedules.history("trial") if event.payload.get("manual")]) == 1
    assert (len(lost), len(set(lost))) == (2, 1)
    app.close()


def test_buttons_follow_the_scope_and_a_lost_scope_is_told(browser: Browser, store: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    file = TokenFile(tokens)
    secrets = {scope: file.create(f"the {scope} one", scope) for scope in ("read", "operate", "admin")}
    group = file.create("acme", "admin", group="acme")
    operator = ["Pause…", "Fire now…", "Backfill…"]
    with served(SHOP, store, HOLDFAST_TOKENS=str(tokens)) as server:
        for scope, buttons in (("read", []), ("admin", [*operator, "Delete…"])):
            with looking(browser, f"{server.url}/#t={secrets[scope]}&/schedules/shop.poll-stock") as page:
                expect(page.get_by_role("table", name="History")).to_be_visible()
                assert page.locator(".actions button").all_inner_texts() == buttons
        with looking(browser, f"{server.url}/#t={group}&/schedules") as page:
            expect(page.get_by_text("Your token belongs to one group")).to_be_visible()
        with looking(browser, f"{server.url}/#t={secrets['operate']}&/schedules/shop.poll-stock") as page:
            expect(page.locator(".actions button")).to_have_text(operator)
            press(page, "Pause…")
            tokens.write_text(tokens.read_text().replace('"operate"', '"read"'))
            asks = {"Authorization": f"Bearer {secrets['operate']}"}
            while page.request.get(f"{server.url}/api/v1/token", headers=asks).json()["scope"] != "read":
                pass  # the server reads the file again within a second
            press(page.get_by_role("dialog"), "Pause")
            expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("scope")
            file.revoke("the operate one")
            expect(page.get_by_role("alert")).to_have_text("The server no longer accepts this token.")
            assert "poll-stock" not in page.content()


def test_live_changes_reach_the_list(browser: Browser, store: str, own_url: str) -> None:
    app = app_at(store)
    with looking(browser, f"{own_url}#/schedules") as page:
        dots = (
            page.get_by_role("row")
            .filter(has_text="shop.trial")
            .get_by_role("link", name=re.compile("succeeded$|queued$"))
        )
        expect(dots).to_have_count(5)
        app.schedules.fire("trial", allow_overlap=True)
        app.schedules.create("fresh", "quick", args={"number": 1}, every="1h")
        expect(dots).to_have_count(6)
        expect(page.get_by_role("link", name="shop.fresh")).to_be_visible()
    app.close()


def test_hostile_texts_of_a_schedule_show_as_text(browser: Browser, store: str, own_url: str) -> None:
    app = app_at(store)
    for text in HOSTILE[:5]:
        app.schedules.fire("poll-stock", actor=text)
        app.schedules.pause("poll-stock", text, actor=text)
    app.schedules.create("hostile", "echo", args={"text": "\n".join(HOSTILE[:6])}, every="1h")
    with looking(browser, f"{own_url}#/schedules?search={quote(HOSTILE[0])}") as page:
        expect(page.get_by_text("No schedule matches")).to_be_visible()
        press(page, "Show all schedules")
        paused = page.get_by_role("row").filter(has_text="shop.poll-stock")
        expect(paused).to_contain_text(HOSTILE[4])
        expect(paused.get_by_role("link", name=f"by hand by {HOSTILE[0]}")).to_have_count(1)
        page.get_by_role("link", name="shop.poll-stock").click()
        history = page.get_by_role("table", name="History")
        for text in HOSTILE[:5]:
            expect(history.get_by_text(text).first).to_be_visible()
        page.goto(f"{own_url}#/schedules/shop.hostile")
        arguments = page.get_by_label("arguments", exact=True)
        expect(arguments).to_contain_text(HOSTILE[0][:12])
        expect(arguments).to_contain_text("\u27e8U+202E\u27e9gnitirw")
        page.goto(f"{own_url}#/schedules/{quote(HOSTILE[0], safe='')}")
        expect(page.get_by_text("No schedule has this name")).to_be_visible()
        assert "owned" not in page.title()
        assert page.locator("main img").count() == 0
    app.close()
