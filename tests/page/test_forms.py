"""Forms of the dashboard in a real browser: what a person enters arrives once, as it is, for the question shown."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect

from holdfast import App, wait_for
from support.browser import looking
from support.dashboard import Shop, press, shop_at


def started(page: Page) -> dict[str, Any]:
    """Press Start, and return the arguments that the page has sent."""
    with page.expect_request(lambda request: request.method == "POST") as sent:
        press(page, "Start")
    arguments: dict[str, Any] = json.loads(sent.value.post_data or "")["args"]
    return arguments


def result(page: Page) -> dict[str, Any]:
    """Return the result of the run that the page shows."""
    expect(page.locator(".run-title .status")).to_have_text("succeeded")
    page.get_by_role("tab", name="Data").click()
    shown: dict[str, Any] = json.loads(page.get_by_label("result", exact=True).inner_text())
    return shown


def fill_needed(page: Page) -> None:
    """Fill the fields of the survey that have no default."""
    page.get_by_label("due").fill("2026-05-17T09:30:00")
    page.get_by_label("price").fill("12.50")
    page.get_by_label("Your initials").fill("👍👍")
    page.get_by_label("side").select_option("whole number")
    page.get_by_label("whole number", exact=True).fill("7")


def test_a_form_sends_what_was_entered_and_shows_what_is_wrong_at_the_field(browser: Browser, busy_shop: Shop) -> None:
    with looking(browser, f"{busy_shop.url}#/start?job=shop.survey") as page:
        wrong = page.get_by_role("alert")
        for field, value, message in (
            ("due", "", "due is needed"), ("due", "tomorrow", "due must look like 2026-05-17T09:30:00Z"),
            ("price", "", "price is needed"), ("price", "a lot", "price must look like 12.50"),
            ("Your initials", "👍👍👍", "Your initials has more than 2 characters"), (None, "", "side is needed"),
        ):  # fmt: skip
            if field is not None:
                page.get_by_label(field).fill(value)
            press(page, "Start")
            expect(wrong).to_have_text(message)
            expect(page.get_by_label(field or "side", exact=True)).to_be_focused()
            if field is not None:
                page.get_by_label(field).fill({"due": "2026-05-17T09:30:00", "price": "12.50"}.get(field, "👍👍"))
        page.get_by_label("side").select_option("Cat")
        page.get_by_label("side").select_option("whole number")
        page.get_by_label("whole number", exact=True).fill("7")
        needed = {"due": "2026-05-17T09:30:00", "price": "12.50", "initials": "👍👍", "side": 7}
        assert started(page) == {"sheet": needed}, "what is a default is left to the server"
        assert result(page) == {
            "sheet": {
                **needed,
                "tree": None,
                "cat": {"lives": 3},
                "note": "hello",
                "maybe": 5,
                "grade": "a",
                "limits": {},
            },
            "copies": 1,
            "more": {},
        }

        page.goto(f"{busy_shop.url}#/start?job=shop.survey")
        fill_needed(page)
        press(page, "Add tree")
        page.get_by_label("value", exact=True).fill("1")
        press(page, "Add next")
        page.get_by_label("value", exact=True).last.fill("2")
        page.get_by_label("note").fill("")
        page.get_by_label("maybe").fill("")
        page.get_by_label("grade").select_option("none")
        page.get_by_label("copies").fill("")
        press(page, "Add a value")
        page.get_by_label("Name 1").fill("most")
        page.get_by_label("Value 1", exact=True).fill("3")
        press(page, "Start")
        expect(wrong).to_contain_text("copies is needed")
        page.get_by_label("copies").fill("2")
        press(page, "Add another value")
        page.get_by_label("Name 1").last.fill("by")
        page.get_by_label("Value 1", exact=True).last.fill("ada")
        press(page, "Start")
        expect(wrong).to_contain_text("is not JSON at character 1. Choose “text” to send it as text")
        page.get_by_label("Value 1 is").select_option("text")
        changed = {"tree": {"value": 1, "next": {"value": 2}}, "note": "", "maybe": None, "grade": None}
        assert started(page) == {"sheet": {**needed, **changed, "limits": {"most": 3}}, "copies": 2, "by": "ada"}
        assert result(page)["more"] == {"by": "ada"}


def test_an_action_whose_answer_was_lost_is_not_done_twice(browser: Browser, busy_shop: Shop) -> None:
    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    made = shop_at(busy_shop.store)
    with looking(browser, f"{busy_shop.url}#/start?job=shop.quick") as page:
        page.get_by_label("number", exact=True).fill("99")
        page.route("**/api/v1/runs", lose)
        press(page, "Start")
        expect(page.get_by_role("alert")).to_contain_text("It may have received this. Try again: it is not done twice.")
        page.unroute("**/api/v1/runs")
        press(page, "Start")
        expect(page.get_by_role("heading", name="shop.quick")).to_be_visible()
        assert len(made.app.list(entry_id="quick")) == 13, "12 were there before"

        page.goto(f"{busy_shop.url}#/inbox")
        budget = page.get_by_role("article").filter(has_text="research")
        budget.get_by_label(re.compile("^Add tokens")).fill("5,000")
        press(budget, "Grant")
        expect(budget.get_by_role("alert")).to_contain_text("tokens must be a number such as 5000 or 1.5")
        press(page, "Pause live updates")  # the grant arrives, and the run soon asks for more with another card
        budget.get_by_label(re.compile("^Add tokens")).fill("100")
        page.route("**/grant", lose)
        press(budget, "Grant")
        expect(budget.get_by_role("alert")).to_contain_text("it is not done twice")
        page.unroute("**/grant")
        page.get_by_role("button", name="Grant").click()
        expect(page.get_by_text("The budget was raised.")).to_be_visible()
        grants = [row for row in made.app.audit() if row.verb == "grant"]
        assert [row.detail for row in grants] == [{"tokens": 100}]
    made.app.close()


def test_of_two_answers_to_one_question_the_second_is_not_used_for_the_next(browser: Browser, busy_shop: Shop) -> None:
    made = shop_at(busy_shop.store)
    run = made.twice.start()
    with looking(browser, f"{busy_shop.url}#/runs/{run.id}") as page:
        expect(page.get_by_label("approved")).to_be_visible()
        other = page.context.new_page()
        other.goto(f"{busy_shop.url}#/runs/{run.id}")
        expect(other.get_by_label("approved")).to_be_visible()
        press(other, "Pause live updates")
        page.get_by_label("approved").check()
        page.get_by_label("until").fill("2026-02-30")
        press(page, "Answer")
        wrong = page.locator(".field").filter(has=page.get_by_label("until")).get_by_role("alert")
        expect(wrong).to_contain_text('until must be a date such as 2026-05-17 or null, got "2026-02-30"')
        page.get_by_label("until").fill("2026-02-28")
        press(page, "Answer")
        expect(page.get_by_text("approval: answered.")).to_be_visible()
        expect(page.get_by_label("approved")).not_to_be_checked()  # the next question has a form of its own
        other.get_by_label("approved").check()
        press(other, "Answer")
        expect(other.get_by_text(re.compile("has answered first. Your answer was not stored."))).to_be_visible()
        assert [event.type for event in run.events()].count("wait_completed") == 1
    made.app.close()


def test_every_question_of_a_full_inbox_can_be_reached(browser: Browser, busy_shop: Shop) -> None:
    made = shop_at(busy_shop.store)
    runs = made.app.start_many(made.refund, [{"order": f"order-{number}", "cents": number} for number in range(101)])
    with looking(browser, f"{busy_shop.url}#/runs/{runs[-1]}") as page:
        expect(page.get_by_label("approved")).to_be_visible()
        page.goto(f"{busy_shop.url}#/inbox")
        cards = page.get_by_role("article")
        expect(page.get_by_role("button", name="All 100+")).to_be_visible()
        press(page, "Show more")
        expect(cards).to_have_count(105)
        page.get_by_role("button", name="In doubt").click()
        expect(cards).to_have_count(1)
        doubt = cards.filter(has_text="payout")
        doubt.get_by_label(re.compile("^It happened")).fill('{"a":')
        press(doubt, "Done")
        expect(doubt.get_by_role("alert")).to_contain_text("The result is not JSON at character 6. Choose “text”")
        doubt.get_by_label("Its result is").select_option("text")
        press(doubt, "Done")
        expect(page.get_by_text("Nothing of this kind waits for you")).to_be_visible()
        page.goto(f"{busy_shop.url}#/runs/{busy_shop.runs['doubt']}/data")
        expect(page.get_by_label("result", exact=True)).to_have_text('{"a":')
        page.goto(f"{busy_shop.url}#/queues")
        press(page.get_by_role("row", name=re.compile("^default")), "Limits…")
        page.get_by_label("Jobs at once", exact=True).fill("1O")
        press(page, "Save")
        expect(page.get_by_role("alert")).to_contain_text("Jobs at once must be a number")
    made.app.close()


def test_a_run_that_does_not_fit_the_code_is_answered_in_the_inbox(browser: Browser, busy_shop: Shop) -> None:
    runs = [misfit(busy_shop.store), misfit(busy_shop.store)]
    with looking(browser, f"{busy_shop.url}#/inbox") as page:
        page.get_by_role("button", name=re.compile("^Deploys")).click()
        cards = page.get_by_role("article").filter(has_text="to_pay(cents=105)")
        expect(cards).to_have_count(2)
        expect(cards.first).to_contain_text("The code of build 2 calls to_pay(cents=105)")
        expect(cards.first).to_contain_text("which build 1 recorded")
        press(cards.first, "Accept the new call")
        expect(page.get_by_text("The run goes on with the new call.")).to_be_visible()
        expect(cards).to_have_count(1)
        press(cards.first, "Fail the run…")
        press(page.get_by_role("dialog"), "Fail the run")
        expect(cards).to_have_count(0)
    app = App("misfits", busy_shop.store)
    assert app.get(runs[1]).status == "failed"
    assert [row.detail["answer"] for row in app.audit() if row.verb == "answer"] == ["fail", "accept"]
    app.close()


def misfit(store: str) -> str:
    """Make a run that build 1 began and that asks about build 2."""
    old, new = version(store, "1", 100), version(store, "2", 105)
    run = old.start("pay")
    old.worker().run(until_idle=True)
    run.signal("go")
    new.worker().run(until_idle=True)
    old.close()
    new.close()
    return run.id


def version(store: str, build: str, amount: int) -> App:
    app = App("misfits", store, build=build)

    @app.step
    async def to_pay(cents: int) -> int:
        return cents

    @app.job
    async def pay() -> None:
        await to_pay(amount)
        await wait_for("go")

    return app
