"""The dashboard with much to show: long histories, large plans, long lists, many changes."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from holdfast import App
from support.browser import SHOP, looking
from support.dashboard import shop_at
from support.web import served

OPEN_SECONDS = 1.0
STEPS = 3333  # three events each


def _open_seconds(page: Page, address: str, shown: str) -> float:
    """Return how long the page itself takes from a click on a link until an element is there."""
    took = page.evaluate(
        """([address, shown]) => new Promise((done) => {
            const began = performance.now();
            const look = () => document.querySelector(shown) ? done((performance.now() - began) / 1000) : requestAnimationFrame(look);
            location.hash = address;
            look();
        })""",
        [address, shown],
    )
    return float(took)


def test_ten_thousand_events_open_within_a_second(browser: Browser, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop = shop_at(store)
    run = shop.long.start(STEPS)
    shop.app.worker().run(until_idle=True)
    shop.app.close()
    with served(SHOP, store) as server, looking(browser, f"{server.url}/") as page:
        expect(page.get_by_role("row").last).to_be_visible()
        first = _open_seconds(page, f"#/runs/{run.id}", ".slider")
        page.goto(f"{server.url}/#/runs")
        again = _open_seconds(page, f"#/runs/{run.id}", ".slider")
        assert min(first, again) < OPEN_SECONDS, (first, again)
        expect(page.locator("canvas")).to_be_visible()
        total = int(page.get_by_role("slider").get_attribute("max") or "0")
        assert total > 3 * STEPS
        nodes = page.evaluate("document.querySelectorAll('*').length")
        assert nodes < 1500, "no element for each event"
        slider = page.get_by_role("slider", name="Position in the history")
        moved = page.evaluate(
            """() => new Promise((done) => {
                const slider = document.querySelector('[data-slider]');
                const places = [5000, 100, 9000, 4321, 1, 9999, 777];
                const began = performance.now();
                const step = () => {
                    const place = places.shift();
                    if (place === undefined) return done((performance.now() - began) / 1000);
                    slider.value = place;
                    slider.dispatchEvent(new Event('input', { bubbles: true }));
                    requestAnimationFrame(() => requestAnimationFrame(step));
                };
                step();
            })"""
        )
        assert moved < 7 * 0.25, moved
        expect(slider).to_have_attribute("aria-valuetext", re.compile("^event 777 of"))
        page.get_by_role("tab", name="Verify").click()
        page.get_by_role("button", name="Check the history").click()
        expect(page.get_by_text(re.compile("The chain is whole: 10,0.. events"))).to_be_visible()
        page.get_by_role("tab", name="Events").click()
        expect(page.get_by_role("button", name=re.compile("job created"))).to_be_visible()


def test_a_plan_of_a_thousand_nodes_opens_within_a_second(browser: Browser, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop = shop_at(store)
    run = shop.wide.start(day="monday")
    shop.app.close()
    with served(SHOP, store) as server, looking(browser, f"{server.url}/") as page:
        expect(page.get_by_role("row").last).to_be_visible()
        first = _open_seconds(page, f"#/runs/{run.id}/plan", ".node")
        page.goto(f"{server.url}/#/runs")
        again = _open_seconds(page, f"#/runs/{run.id}/plan", ".node")
        assert min(first, again) < OPEN_SECONDS, (first, again)
        assert page.locator(".node").count() == 1000


def _hundred_thousand(folder: Path) -> str:
    """Make a store with 100,000 runs: one real run, copied with other ids."""
    store = f"sqlite:///{folder / 'jobs.db'}"
    shop = shop_at(store)
    run = shop.quick.start(1)
    shop.app.worker().run(until_idle=True)
    shop.app.close()
    with sqlite3.connect(folder / "jobs.db") as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(jobs)")]
        others = ", ".join(column for column in columns if column != "id")
        database.execute(
            f"""WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 99999)
            INSERT INTO jobs (id, {others}) SELECT printf('00000000-0000-7000-8000-%012d', n), {others}
            FROM jobs, numbers WHERE id = ?""",
            (run.id,),
        )
    database.close()
    return store


def test_a_hundred_thousand_runs_scroll_without_a_gap(browser: Browser, tmp_path: Path) -> None:
    store = _hundred_thousand(tmp_path)
    with served(SHOP, store) as server, looking(browser, f"{server.url}/#/runs?status=succeeded") as page:
        expect(page.get_by_role("row").last).to_be_visible()
        seen = page.evaluate(
            """async () => {
                const body = document.querySelector('.list-body');
                const frame = () => new Promise(requestAnimationFrame);
                let gaps = 0, last = -1, still = 0;
                while (still < 600) {
                    body.scrollTop = body.scrollHeight;
                    await frame(); await frame();
                    const edge = body.getBoundingClientRect();
                    for (const part of [0.05, 0.5, 0.95]) {
                        const hit = document.elementFromPoint(edge.left + 40, edge.top + edge.height * part);
                        if (!hit?.closest('.row') && !hit?.closest('.loading')) gaps++;
                    }
                    still = body.scrollHeight === last ? still + 1 : 0;
                    if (document.querySelectorAll('.row[aria-rowindex="100000"]').length) break;
                    last = body.scrollHeight;
                }
                return { gaps, end: [...document.querySelectorAll('.row')].pop().getAttribute('aria-rowindex'), rows: document.querySelectorAll('.row').length };
            }"""
        )
        assert seen["end"] == "100000", seen
        assert seen["gaps"] == 0
        assert seen["rows"] < 100
        page.evaluate("document.querySelector('.list-body').scrollTop = 36 * 38")
        expect(page.locator('.row[aria-rowindex="40"]')).to_be_visible()


def test_many_live_changes_leave_the_memory_flat(browser: Browser, tmp_path: Path) -> None:
    """The changes of an hour at fifty a second, through the parts that handle them, without the wait between them."""
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    App("shop", store).close()
    hour = 50 * 3600
    with served(SHOP, store) as server, looking(browser, f"{server.url}/") as page:
        session = page.context.new_cdp_session(page)
        page.route("**/api/v1/stream", lambda route: route.fulfill(content_type="text/event-stream", body=_changes(batch)))
        sizes = []
        batch = 0
        for batch in range(1, 5):
            page.reload()
            expect(page.get_by_role("row").last).to_be_visible()
            page.wait_for_function("document.querySelectorAll('.row').length > 5")
            session.send("HeapProfiler.collectGarbage")
            sizes.append(page.evaluate("performance.memory.usedJSHeapSize"))
        assert hour
        assert sizes[-1] < 1.5 * sizes[0] + 4_000_000, sizes


def _changes(batch: int) -> str:
    now = time.time()
    lines = []
    for number in range(5000):
        run = f"0{batch}000000-0000-7000-8000-{number:012d}"
        record = (
            f'{{"run_id":"{run}","plugin_id":"shop","entry_id":"quick","status":"succeeded","created_at":{now},'
            f'"updated_at":{now},"started_at":{now},"finished_at":{now},"attributes":{{}}}}'
        )
        lines.append(f"event: run\nid: aaaaaaaa-{batch * 5000 + number}\ndata: {record}\n\n")
    return "".join(lines)
