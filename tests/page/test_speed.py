"""The dashboard with much to show: long histories, large plans, long lists, many changes."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, expect

from support.browser import SHOP, looking
from support.dashboard import shop_at
from support.web import Served, served

OPEN_SECONDS = 1.0  # of processor time, of page and server together: other tests may keep the machine busy
STEPS = 3333  # three events each
MINUTES = int(os.environ.get("HOLDFAST_PAGE_MINUTES", "15"))
CHANGES = 50 * 60 * MINUTES  # at fifty a second
GROWTH_MAX = 3_000_000  # bytes; a page that kept every change would grow by several times that
BATCH = 4500
LISTED = 200  # runs of the first page of a list


class Clock:
    """Counts the processor time that the page and its server use."""

    def __init__(self, page: Page, server: Served) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._process = Path(f"/proc/{server.process.pid}/stat")

    def seconds(self) -> float:
        """Return the seconds so far."""
        metrics = {one["name"]: one["value"] for one in self._session.send("Performance.getMetrics")["metrics"]}
        fields = self._process.read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return float(metrics["ThreadTime"]) + ticks / os.sysconf("SC_CLK_TCK")


def _open_seconds(page: Page, server: Served, address: str, shown: str) -> float:
    """Return what it costs to open an address from the list, until an element is there."""
    page.goto(f"{server.url}/#/runs")
    expect(page.locator(".row").first).to_be_visible()
    clock = Clock(page, server)
    before = clock.seconds()
    page.evaluate("address => { location.hash = address }", address)
    page.wait_for_selector(shown)
    return clock.seconds() - before


def test_ten_thousand_events_open_within_a_second(browser: Browser, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop = shop_at(store)
    run = shop.long.start(STEPS)
    shop.app.worker().run(until_idle=True)
    shop.app.close()
    with served(SHOP, store) as server, looking(browser, f"{server.url}/") as page:
        assert _open_seconds(page, server, f"#/runs/{run.id}", ".slider") < OPEN_SECONDS
        expect(page.locator("canvas")).to_be_visible()
        slider = page.get_by_role("slider", name="Position in the history")
        assert int(slider.get_attribute("max") or "0") > 3 * STEPS
        assert page.evaluate("document.querySelectorAll('*').length") < 1500, "no element for each event"
        clock = Clock(page, server)
        before = clock.seconds()
        places = [5000, 100, 9000, 4321, 1, 9999, 777]
        page.evaluate(
            """async (places) => {
                const slider = document.querySelector('[data-slider]');
                for (const place of places) {
                    slider.value = place;
                    slider.dispatchEvent(new Event('input', { bubbles: true }));
                    await new Promise(requestAnimationFrame);
                }
            }""",
            places,
        )
        expect(slider).to_have_attribute("aria-valuetext", re.compile("^event 777 of"))
        assert (clock.seconds() - before) / len(places) < 0.1, "the slider follows the hand"
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
        assert _open_seconds(page, server, f"#/runs/{run.id}/plan", ".node") < OPEN_SECONDS
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
        expect(page.locator(".row").first).to_be_visible()
        seen = page.evaluate(
            """async () => {
                const body = document.querySelector('.list-body');
                const frame = () => new Promise(requestAnimationFrame);
                let gaps = 0, last = -1, still = 0;
                while (still < 600) {
                    body.scrollTop = body.scrollHeight;
                    await frame(); await frame(); await frame();
                    const edge = body.getBoundingClientRect();
                    for (const part of [0.05, 0.5, 0.95]) {
                        const hit = document.elementFromPoint(edge.left + 40, edge.top + edge.height * part);
                        if (!hit?.closest('.row') && !hit?.closest('.loading')) gaps++;
                    }
                    still = body.scrollHeight === last ? still + 1 : 0;
                    if (document.querySelectorAll('.row[aria-rowindex="100000"]').length) break;
                    last = body.scrollHeight;
                }
                const rows = [...document.querySelectorAll('.row')];
                return { gaps, end: rows.at(-1).getAttribute('aria-rowindex'), rows: rows.length };
            }"""
        )
        assert seen["end"] == "100000", seen
        assert seen["gaps"] == 0
        assert seen["rows"] < 100
        page.evaluate("document.querySelector('.list-body').scrollTop = 5000 * 38")
        page.locator('.row[aria-rowindex="5004"] a').click()
        expect(page.get_by_role("tab", selected=True)).to_be_visible()
        page.go_back()
        expect(page.locator('.row[aria-rowindex="5004"]')).to_be_in_viewport()
        page.keyboard.press("j")  # from the first row, as no row was chosen
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.get_by_role("tab", selected=True)).to_be_visible()
        page.reload()
        page.go_back()
        expect(page.locator('.row.chosen[aria-rowindex="2"]')).to_be_in_viewport()
        page.get_by_role("button", name="Cancel all…").click()
        expect(page.get_by_role("dialog")).to_contain_text("No run that matches these filters can be cancelled")
        page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).click()
        page.goto(f"{server.url}/#/runs?entry_id=quick")
        expect(page.get_by_role("group", name="Runs by status")).to_contain_text("20,000+ succeeded")


def test_many_live_changes_leave_the_memory_flat(browser: Browser, tmp_path: Path) -> None:
    """The page gets all changes of many minutes at fifty a second, without the time between them.

    A batch is handed out after the page has shown the one before it, as a later batch pushes its rows out. The list has
    the runs of the stream, as that of a real server has. Otherwise a late answer to the list would empty it again.
    """
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop_at(store).app.close()
    batches = CHANGES // BATCH
    wanted = sent = 0

    def stream(route: Route) -> None:
        nonlocal sent
        body = _changes(wanted) if sent < wanted else ""  # after an empty one, the page asks again
        sent = wanted
        route.fulfill(content_type="text/event-stream", body=body)

    def runs(route: Route) -> None:
        newest = [_record(sent, BATCH - 1 - place) for place in range(LISTED if sent else 0)]
        route.fulfill(content_type="application/json", body=f'{{"items":[{",".join(newest)}],"next":null}}')

    with served(SHOP, store) as server, looking(browser, f"{server.url}/healthz") as page:
        page.route("**/api/v1/stream", stream)
        page.route("**/api/v1/runs?*", runs)
        page.goto(f"{server.url}/")
        session = page.context.new_cdp_session(page)
        sizes: dict[int, int] = {}
        for wanted in range(1, batches + 1):
            page.wait_for_selector(f'.row [title="{_run(wanted, BATCH - 1)}"]', timeout=60_000)
            if wanted in {batches // 4, batches}:
                session.send("HeapProfiler.collectGarbage")
                sizes[wanted] = session.send("Runtime.getHeapUsage")["usedSize"]
        first, last = sizes.values()
        assert last < first + GROWTH_MAX, sizes


def _run(batch: int, number: int) -> str:
    return f"{batch:08d}-0000-7000-8000-{number:012d}"


def _record(batch: int, number: int) -> str:
    """Return a run as the server writes it."""
    return (
        f'{{"run_id":"{_run(batch, number)}","plugin_id":"shop","entry_id":"quick","status":"succeeded",'
        '"created_at":1800000000,"updated_at":1800000000,"started_at":1800000000,"finished_at":1800000000,"attributes":{}}'
    )


def _changes(batch: int) -> str:
    """Return a stream with as many new runs as one batch has."""
    return "".join(
        f"event: run\nid: aaaaaaaa-{batch * BATCH + number}\ndata: {_record(batch, number)}\n\n"
        for number in range(BATCH)
    )
