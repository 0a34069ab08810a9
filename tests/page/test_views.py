"""The dashboard in a real browser: every view, and every button does what it says."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Browser, Page, expect

from support.browser import looking
from support.dashboard import Shop, confirm, hold, open_run, press


def test_the_list_counts_filters_searches_and_saves_views(browser: Browser, shop: Shop) -> None:
    with looking(browser, shop.url) as page:
        rows = page.get_by_role("rowgroup", name="Runs, newest first").get_by_role("row")
        counts = page.get_by_role("group", name="Runs by status")
        expect(counts.get_by_role("link", name="1 failed")).to_be_visible()
        expect(rows).to_have_count(21)
        counts.get_by_role("link", name="1 failed").click()
        expect(page).to_have_url(re.compile(r"#/runs\?status=failed$"))
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("the books of monday differ")
        press(page, "Save this view")
        page.get_by_label("Name").fill("broken")
        press(page, "Save")
        press(page, "Clear")
        expect(rows).to_have_count(21)
        search = page.get_by_role("combobox", name="Search runs")
        short = rows.first.get_by_role("cell").nth(2).inner_text()
        search.fill(short)
        search.press("Enter")
        expect(page.locator(".run-id")).to_contain_text(short.removeprefix("…"))
        page.go_back()
        search.fill("order-17")
        page.get_by_role("option", name="order-17 idempotency key").click()
        expect(rows).to_have_count(1)
        press(page, "Remove the filter key")
        search.fill("customer=ada")
        search.press("Enter")
        expect(page).to_have_url(re.compile(r"attr\.customer=ada"))
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("signal 'shipped'")  # what it waits for
        expect(counts).to_have_text(re.compile(r"^1 all\s*1 running\s*0 queued\s*0 failed"))
        search.fill("pay")
        search.press("Enter")
        expect(page).to_have_url(re.compile(r"entry_id=payout"))
        expect(page.get_by_text("No run matches these filters")).to_be_visible()
        press(page, "Show all runs")
        search.fill(shop.runs["done"])
        search.press("Enter")
        expect(page.get_by_role("heading", name="shop.checkout")).to_be_visible()
        page.goto(f"{shop.url}#/runs")
        page.reload()
        page.get_by_role("link", name="broken").click()
        expect(rows).to_have_count(1)
        other = page.context.new_page()
        other.goto(f"{shop.url}#/runs?status=failed")
        press(other, "Delete the view broken")
        expect(page.get_by_role("link", name="broken")).to_have_count(0)


def test_a_run_shows_its_past_its_data_and_its_proof(browser: Browser, shop: Shop) -> None:
    with looking(browser, shop.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        open_run(page, shop, "done")
        expect(page.get_by_text("It has ended: completed.")).to_be_visible()
        expect(page).to_have_title(re.compile(r"^checkout .* · Holdfast$"))
        picture = page.get_by_role("img", name=re.compile("Timeline with"))
        expect(picture.locator("text", has_text="reserve")).to_be_visible()
        expect(picture.locator("text", has_text="price 2")).to_be_visible()  # not the name of the first call again
        press(page, "Table")
        table = page.get_by_role("table", name=re.compile("Tries, waits"))
        expect(table.get_by_text("the warehouse does not answer")).to_have_count(2)
        press(page, "Bars")
        press(page, "Copy the id")
        assert page.evaluate("navigator.clipboard.readText()") == shop.runs["done"]

        slider = page.get_by_role("slider", name="Position in the history")
        last = int(slider.get_attribute("max") or "0")
        told = page.locator(".slider-text")
        expect(told).to_contain_text(f"{last} of {last}")
        press(page, "One event back")
        expect(told).to_contain_text(f"{last - 1} of {last}")
        page.locator("body").press("Home")
        expect(told).to_contain_text("Before the first event")
        for _ in range(3):
            page.locator("body").press("ArrowRight")
        expect(told).to_contain_text("node started")
        expect(told).to_contain_text("running")
        press(page, "Play the history")
        expect(told).to_contain_text(f"{last} of {last}")
        expect(told).to_contain_text("succeeded")


def test_the_parts_of_a_run_show_what_is_recorded(browser: Browser, shop: Shop) -> None:
    with looking(browser, shop.url) as page:
        open_run(page, shop, "done", "plan")
        expect(page.get_by_text("This run has no plan")).to_be_visible()
        page.get_by_role("tab", name="Events").click()
        page.get_by_role("button", name=re.compile("tool invocation finished")).first.click()
        expect(page.get_by_label("payload", exact=True)).to_contain_text("12345678901234567890")
        page.get_by_role("tab", name="Data").click()
        expect(page.get_by_label("arguments", exact=True)).to_contain_text('"amount": 3')
        expect(page.get_by_label("result", exact=True)).to_contain_text("12345678901234567890")
        page.get_by_role("tab", name="Exports").click()
        with page.expect_download() as saving:
            press(page, "Download invoice")
        assert b"ch_5555" in saving.value.path().read_bytes()
        page.get_by_role("tab", name="Evidence").click()
        expect(page.get_by_text("No evidence")).to_be_visible()
        page.get_by_role("tab", name="Verify").click()
        press(page, "Check the history")
        expect(page.get_by_text(re.compile(r"The chain is whole: \d+ events\."))).to_be_visible()
        page.get_by_role("tab", name="Raw").click()
        expect(page.get_by_label("record", exact=True)).to_contain_text(shop.runs["done"])

        open_run(page, shop, "failed", "data")
        expect(page.get_by_text("The run ended without a result")).to_be_visible()
        expect(page.get_by_text("the books of monday differ").locator("visible=true")).to_have_count(1)

        open_run(page, shop, "done")
        page.get_by_role("link", name="Machines").click()
        path = page.get_by_role("list", name="Path of the run through the Job machine")
        expect(path.get_by_role("listitem").last).to_contain_text("completed")
        page.get_by_role("link", name="Gates").click()
        expect(page.get_by_text("No gates")).to_be_visible()
        page.get_by_role("link", name="Workers").click()
        expect(page.get_by_role("heading", name="Workers")).to_be_visible()
        page.goto(f"{shop.url}#/runs/no-such-run")
        expect(page.get_by_text("No run has this id")).to_be_visible()


def test_a_changed_event_is_found_in_the_browser(browser: Browser, shop: Shop) -> None:
    with looking(browser, shop.url) as page:
        page.route("**/chain?*", lambda route: route.fulfill(body=route.fetch().text().replace("5555", "5556")))
        open_run(page, shop, "done", "verify")
        press(page, "Check the history")
        expect(page.get_by_text("Event 1 is not what was written")).to_be_visible()
        other = shop.runs["failed"]
        page.unroute("**/chain?*")
        page.route("**/chain?*", lambda route: route.continue_(url=route.request.url.replace(shop.runs["done"], other)))
        press(page, "Check the history")
        expect(page.get_by_text(f"Event 1 belongs to another job: {other}")).to_be_visible()


def test_every_button_of_a_run_acts(browser: Browser, busy_shop: Shop) -> None:
    with looking(browser, f"{busy_shop.url}#/start") as page:
        page.get_by_label("Job").select_option("shop.checkout")
        page.get_by_label("sku").fill("C7")
        page.get_by_label("card").fill("1111")
        page.get_by_label("amount").fill("many")
        press(page, "Start")
        expect(page.get_by_role("alert")).to_contain_text("must be a whole number")
        page.get_by_label("amount").fill("2")
        page.get_by_text("More: key, delay").click()
        page.get_by_label(re.compile("^Idempotency key")).fill("order-99")
        press(page, "Start")
        status = page.locator(".run-title .status")
        expect(page.get_by_text("waits for the signal 'shipped'")).to_be_visible()

        press(page, "Pause…")
        confirm(page, "Pause")
        press(page, "Signal…")
        page.get_by_label("Key", exact=True).fill("shipped")
        press(page, "Send")
        expect(page.get_by_role("button", name="Resume…")).to_be_visible()
        press(page, "Resume…")
        confirm(page, "Resume")
        expect(status).to_have_text("succeeded")

        press(page, "Fork…")
        page.get_by_label("Name").fill("charge")
        press(page, "Fork")
        expect(page.get_by_text("waits for the signal 'shipped'")).to_be_visible()
        press(page, "Cancel…")
        confirm(page, "Cancel the run", "ordered twice")
        expect(status).to_have_text("canceled")
        expect(page.get_by_text("ordered twice").first).to_be_visible()
        page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        expect(keys).to_contain_text("Next tab")
        expect(keys).not_to_contain_text("Retry the run")  # as there is no such button
        page.keyboard.press("Escape")

        open_run(page, busy_shop, "failed")
        expect(status).to_have_text("failed")
        press(page, "Retry…")
        assert page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True).is_disabled()
        confirm(page, "Retry", "the books are mended")
        expect(page).to_have_url(re.compile(rf"{busy_shop.runs['failed']}\.2"))
        expect(status).to_have_text("failed")


def test_the_inbox_answers_doubts_questions_and_budgets(browser: Browser, busy_shop: Shop) -> None:
    with looking(browser, f"{busy_shop.url}#/inbox") as page:
        cards = page.get_by_role("article")
        expect(cards).to_have_count(4)  # the approval of the plan waits for a person, too
        question = cards.filter(has_text="refund")
        press(question, "Answer")
        expect(question.get_by_role("alert")).to_contain_text("is needed")
        question.get_by_label("amount").fill("501")
        press(question, "Answer")
        expect(question.get_by_role("alert")).to_contain_text("must be at most 500")
        question.get_by_label("approved").check()
        question.get_by_label("amount").fill("480")
        question.get_by_label("reason").select_option("late")
        press(question, "Add an item")
        question.get_by_label("1", exact=True).fill("ada@example.com")
        press(question, "Answer")
        expect(question).to_have_count(0)

        budget = cards.filter(has_text="research")
        budget.get_by_label(re.compile("^Add tokens")).fill("10000")
        press(budget, "Grant")
        expect(budget).to_have_count(0)

        approval = cards.filter(has_text="etl")
        expect(approval).to_contain_text("until in 3d")
        approval.get_by_label("Your answer", exact=True).fill('{"by": "ann"}')
        press(approval, "Answer")
        expect(approval).to_have_count(0)

        doubt = cards.filter(has_text="payout")
        expect(doubt).to_contain_text("DE89 3704")
        press(doubt, "Fail the step…")
        press(page, "Back")
        doubt.get_by_label(re.compile("^It happened")).fill('{"reference": 7}')
        press(doubt, "Done")
        expect(doubt.get_by_role("alert")).to_contain_text("str")  # the type that the tool returns
        doubt.get_by_label(re.compile("^It happened")).fill('"reference 90071992547409931"')
        press(doubt, "Done")
        expect(page.get_by_text("Nothing waits for you")).to_be_visible()

        page.goto(f"{busy_shop.url}#/runs/{busy_shop.runs['question']}/data")
        expect(page.get_by_label("result", exact=True)).to_contain_text("480 of 480 cents back, late")
        page.goto(f"{busy_shop.url}#/runs/{busy_shop.runs['doubt']}/data")
        expect(page.get_by_label("result", exact=True)).to_contain_text("90071992547409931")
        page.goto(f"{busy_shop.url}#/runs/{busy_shop.runs['plan']}/plan")
        expect(page.locator(".node.tone-succeeded")).to_have_count(4)
        page.get_by_role("tab", name="Timeline").click()
        expect(page.locator(".bars text", has_text="double[1]")).to_be_visible()
        page.get_by_role("tab", name="Plan").click()
        page.get_by_role("group", name=re.compile("^Plan")).press("ArrowRight")
        page.get_by_role("group", name=re.compile("^Plan")).press("ArrowRight")
        expect(page.get_by_text("needs extract")).to_be_visible()


def test_a_doubt_is_answered_on_the_page_of_its_run(browser: Browser, busy_shop: Shop) -> None:
    with looking(browser, busy_shop.url) as page:
        open_run(page, busy_shop, "doubt")
        press(page, "Not done: run it again")
        expect(page.get_by_text(re.compile("it runs again"))).to_be_visible()
        press(page, "Fail the step…")
        confirm(page, "Fail the step")
        expect(page.locator(".run-title .status")).to_have_text("failed")


def test_bulk_actions_count_first_and_ask_for_the_number(browser: Browser, busy_shop: Shop) -> None:
    from support.dashboard import shop_at

    made = shop_at(busy_shop.store)
    for number in range(201):
        made.quick.options(delay="1h", attributes={"batch": "b1"}).start(number)
    made.app.close()
    with looking(browser, f"{busy_shop.url}#/runs?attr.batch=b1") as page:
        dialog = page.get_by_role("dialog")
        _stop_midway(page, lambda: page.keyboard.press("Escape"))
        expect(dialog).to_contain_text("Stopped. 50 runs were asked to cancel. The others were left alone.")
        press(dialog, "Close")
        _stop_midway(page, lambda: page.evaluate("location.hash = '#/workers'"))
        expect(page.get_by_text("Stopped. 50 runs were asked to cancel. The others were left alone.")).to_be_visible()
        page.goto(f"{busy_shop.url}#/runs?attr.batch=b1")
        press(page, "Cancel all…")
        expect(dialog).to_contain_text("101 runs match the filters now")
        act = dialog.get_by_role("button", name="Cancel 101 runs")
        expect(act).to_be_disabled()
        dialog.get_by_label("Type 101 to confirm").fill("101")
        act.click()
        expect(dialog).to_contain_text("101 runs were asked to cancel")
        press(dialog, "Close")
        page.goto(f"{busy_shop.url}#/runs?status=failed")
        press(page, "Retry all…")
        expect(dialog).to_contain_text("1 run matches the filters now")
        dialog.get_by_label("Reason").fill("again")
        dialog.get_by_role("button", name="Retry 1 run", exact=True).click()
        expect(dialog).to_contain_text("1 run was retried")
        press(dialog, "Close")
        page.goto(f"{busy_shop.url}#/runs?attr.batch=b1&status=canceled")
        expect(page.get_by_role("row").filter(has_text="canceled").first).to_be_visible()
        expect(page.locator(".row .bad")).to_have_count(0)  # a canceled run is no alarm


def _stop_midway(page: Page, leave: Callable[[], object]) -> None:
    """Cancel all runs of the list, and leave while the first page of them is on its way."""
    press(page, "Cancel all…")
    asked = page.get_by_label(re.compile("^Type .* to confirm"))
    asked.fill(re.findall(r"\d+", page.locator("label", has=asked).inner_text())[0])
    held = hold(page, "**/runs/cancel?*")
    with page.expect_request("**/runs/cancel?*"):
        page.get_by_role("dialog").get_by_role("button", name=re.compile("^Cancel .* runs$")).click()
    leave()
    held[0].continue_()
    page.unroute("**/runs/cancel?*")


def test_queues_are_paused_and_limited_and_workers_shown(browser: Browser, busy_shop: Shop) -> None:
    with looking(browser, f"{busy_shop.url}#/queues") as page:
        row = page.get_by_role("row", name=re.compile("^default"))
        press(row, "Pause")
        confirm(page, "Pause")
        expect(row).to_contain_text("paused")
        press(row, "Resume")
        confirm(page, "Resume")
        expect(row).to_contain_text("active")
        press(row, "Limits…")
        page.get_by_label("Jobs at once", exact=True).fill("7")
        press(page, "Save")
        expect(row).to_contain_text("of 7 at once")
        page.goto(f"{busy_shop.url}#/workers")
        expect(page.get_by_text("1 alive")).to_be_visible()
        expect(page.get_by_text("Waits for jobs of all queues")).to_be_visible()
        page.goto(f"{busy_shop.url}#/gates")
        expect(page.get_by_role("row", name=re.compile("nothing is due; opens in"))).to_be_visible()


def test_the_page_follows_runs_live_and_stops_on_pause(browser: Browser, busy_shop: Shop) -> None:
    from support.dashboard import shop_at

    made = shop_at(busy_shop.store)
    with looking(browser, f"{busy_shop.url}#/runs?entry_id=echo") as page:
        rows = page.get_by_role("rowgroup", name="Runs, newest first").get_by_role("row")
        expect(rows).to_have_count(1)
        expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
        made.echo.start("first")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("succeeded")
        press(page, "Pause live updates")
        made.echo.start("second")
        expect(page.get_by_text(re.compile("Paused, . changes? wait"))).to_be_visible()
        expect(rows).to_have_count(2)
        press(page, "Resume live updates")
        expect(rows).to_have_count(3)
    made.app.close()
