"""`holdfast check`: every run of a store against the code as it is now. The store is only read."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Config, Secret, export, progress, spend, wait_for
from holdfast.client.store_url import open_reader
from holdfast.deploys import store_check
from holdfast.deploys.run_check import RunCheck
from holdfast.deploys.store_check import Findings, acheck
from holdfast.engine.replay_report import Verdict
from holdfast.errors import StoreUnavailable
from support.postgres import fresh_url
from support.shell import Shell

HEAD = """
from holdfast import App, Secret, wait_for
app = App("shop")

@app.step
async def price(sku: str) -> int:
    return 100 * len(sku)

@app.tool
def charge(cents: int) -> str:
    return f"receipt for {cents}"
"""
WAITING = """
@app.job
async def work(sku: str) -> str:
    cents = await price(sku)
    answer = await wait_for("go")
    return await charge(cents) + answer
"""


def write(shell: Shell, code: str) -> None:
    (shell.folder / "shop.py").write_text(HEAD + textwrap.dedent(code))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    write(made, WAITING)
    return made


def files(folder: Path) -> dict[str, str]:
    """The files of a store and their contents."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("jobs.db*") if path.is_file()
    }


def found(report: dict[str, Any], run: str) -> dict[str, Any]:
    return next(one for one in report["runs"] if one["run"] == run)


def check(app: App, **options: Any) -> Findings:
    """Check the runs of an app's store in this process, as another process would read it."""

    async def checked() -> Findings:
        reader = app.store() if app.url == "memory:" else open_reader(app.url)
        try:
            return await acheck(app, reader, **options)
        finally:
            if reader is not app.store():
                await reader.close()

    return app.block(checked())


def test_a_check_finds_what_fits_and_what_would_stop_and_writes_nothing(shell: Shell) -> None:
    run = shell.run("start", "shop.py", "work", "sku=A1")
    queued = shell.run("start", "shop.py", "work", "sku=B2")
    shell.run("worker", "shop.py", "--until-idle")
    late = shell.run("start", "shop.py", "work", "sku=C3")
    before = files(shell.folder)
    report = shell.json("check", "shop.py")
    assert (report["fits"], report["checked"], report["counts"]) == (True, 3, {"shop.work": {"fits": 3}})
    write(shell, WAITING.replace("price(sku)", 'price(sku + "!")'))
    report = shell.json("check", "shop.py", code=1)
    assert report["counts"] == {"shop.work": {"stops": 2, "fits": 1}}
    assert {one["run"] for one in report["runs"]} == {run, queued}, f"{late} has called nothing yet"
    stopped = found(report, run)
    assert stopped["reasons"] == ["it now calls price(sku='A1!'), but the history has price(sku='A1')"]
    assert stopped["line"] == f"{shell.folder / 'shop.py'}:15"
    told = shell.run("check", "shop.py", code=1)
    assert f"{run}  would stop at shop.py:15: it now calls price(sku='A1!')" in told
    assert told.endswith("the code does not fit: 2 of 3 checked runs would not go on")
    assert files(shell.folder) == before
    assert not (shell.folder / ".holdfast").exists()


def test_runs_that_are_kept_for_another_build_are_counted_and_not_checked(shell: Shell) -> None:
    """Blue-green: the new code never takes them. So they do not keep it from a start."""
    pinned = WAITING.replace("@app.job", "@app.job(pin=True)")
    write(shell, pinned)
    shell.environment["HOLDFAST_BUILD"] = "1"
    shell.run("start", "shop.py", "work", "sku=A1")
    shell.run("worker", "shop.py", "--until-idle")
    write(shell, pinned.replace("price(sku)", 'price(sku + "!")'))
    assert shell.json("check", "shop.py", code=1)["counts"] == {"shop.work": {"stops": 1}}
    shell.environment["HOLDFAST_BUILD"] = "2"
    report = shell.json("check", "shop.py")
    assert (report["fits"], report["checked"], report["kept"]) == (True, 0, 1)
    assert "1 run is kept for other builds, and not checked" in shell.run("check", "shop.py")
    shell.run("worker", "shop.py", "--until-idle", "--check")


def test_a_result_that_no_longer_decodes_and_a_key_that_is_missing_are_told(app: App) -> None:
    """On each store, which is read without a write."""

    @app.step
    async def price(sku: str) -> Any:
        return {"cents": sku}

    @app.job
    async def work(sku: str, key: Secret[str] | None = None) -> None:
        await price(sku)
        await wait_for("go")
        assert key

    plain = work.start("A1")
    secret = work.start("A1", Secret.env("HOLDFAST_TEST_NO_SUCH_KEY"))
    app.worker().run(until_idle=True)
    rows = {run.id: app.get(run.id) for run in (plain, secret)}
    findings = check(app)
    assert {one.run: one.verdict for one in findings.runs} == {secret.id: "key_missing"}
    assert "HOLDFAST_TEST_NO_SUCH_KEY is not set" in findings.runs[0].reasons[0]

    del app.calls["price"]

    @app.step(name="price")
    async def typed(sku: str) -> int:
        raise AssertionError(f"nothing is called, also not for {sku}")

    async def changed(sku: str, key: Secret[str] | None = None) -> None:
        await typed(sku)
        await wait_for("go")
        assert key

    work.function = changed
    findings = check(app)
    assert {one.run: one.verdict for one in findings.runs} == {secret.id: "key_missing", plain.id: "undecodable"}
    assert {run: app.get(run) for run in rows} == rows


def test_reports_and_secrets_in_job_code_do_not_disturb_its_check(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_KEY", "hush")

    @app.step
    async def price(n: int) -> int:
        return n

    @app.job
    async def work(key: Secret[str]) -> None:
        progress(0.5, stage="reading")
        export({"a": 1}, "one")
        spend(tokens=len(key.reveal()))
        await price(1)
        await wait_for("go")

    @app.job
    def plain(key: Secret[str]) -> None:
        progress(0.5, stage="reading")
        export({"a": 1}, "one")
        spend(tokens=len(key.reveal()))
        plain_price: Any = price
        plain_price(1)

    runs = [work.start(Secret.env("HOLDFAST_TEST_KEY"))]
    app.worker().run(until_idle=True)
    runs.append(plain.start(Secret.env("HOLDFAST_TEST_KEY")))
    findings = check(app)
    assert (findings.checked, findings.counts) == (2, {"shop.work": {"fits": 1}, "shop.plain": {"fits": 1}})
    assert app.exports(runs[1].id) == []


def test_runs_with_long_histories_are_checked_a_few_at_a_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "EVENTS_MAX", 10)
    runs = many(app, 7)
    assert sorted(one.run for one in check(app).runs) == runs


def many(app: App, number: int) -> list[str]:
    """Runs with calls that the code no longer makes."""

    @app.step
    async def price(n: int) -> int:
        return n

    @app.job
    async def work() -> None:
        await price(1)
        await wait_for("go")

    async def changed() -> None:
        await wait_for("go")

    runs = sorted(work.start().id for _ in range(number))
    app.worker().run(until_idle=True)
    work.function = changed
    return runs


def test_ended_runs_are_sampled_per_job_and_do_not_fail_the_check(app: App) -> None:
    @app.job
    async def work(n: int) -> int:
        return n

    @app.job
    async def rare(n: int) -> int:
        return n

    rare.start(1)
    for n in range(5):
        work.start(n)
    app.worker().run(until_idle=True)
    assert check(app, sample=3).counts == {"shop.work": {"fits": 3}, "shop.rare": {"fits": 1}}
    assert check(app, sample=0).checked == 0

    async def changed(n: int) -> int:
        return n + 1

    work.function = changed
    findings = check(app, sample=3)
    assert (findings.counts["shop.work"], findings.failures) == ({"other_end": 3}, 0)
    assert findings.runs[-1].reasons == ["it returned 4, and now returns 5"]


def test_ended_runs_that_would_stop_are_told_apart(shell: Shell) -> None:
    ended, waits = (shell.run("start", "shop.py", "work", f"sku={sku}") for sku in ("A1", "B2"))
    shell.run("signal", ended, "go", '"yes"')
    shell.run("worker", "shop.py", "--until-idle")
    write(shell, WAITING.replace("price(sku)", 'price(sku + "!")'))
    told = shell.run("check", "shop.py", code=1)
    assert f"{ended}  has ended, and would stop at shop.py:15: " in told
    assert f"{waits}  would stop at shop.py:15: " in told
    assert told.endswith("2 of 2 checked runs would not go on; 1 of them has ended (--sample 0 skips such)")
    assert shell.json("check", "shop.py", code=1)["ended"] == 1
    assert shell.run("check", "shop.py", "--sample", "0", code=1).endswith("1 of 1 checked run would not go on")


def test_ended_runs_of_a_pinned_job_are_those_of_the_build(app: App) -> None:
    """Blue-green: new code need not fit the ended runs of the old one, which it would never have taken."""

    def declare(made: App, sku: str) -> None:
        @made.step
        async def price(of: str) -> int:
            return len(of)

        @made.job(pin=True)
        async def work() -> int:
            return await price(sku)

    apps = {build: App("shop", config=app.config, build=build) for build in ("1", "2")}
    for build, made in apps.items():
        made._opened = app.store()
        declare(made, f"of {build}")
        made.start("work")
        made.worker().run(until_idle=True)
        findings = check(made)
        assert (findings.counts, findings.failures) == ({"shop.work": {"fits": 1}}, 0)


def test_a_run_that_would_stop_is_listed_before_any_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.deploys.store_check.LISTED_MAX", 3)
    unused, stops = Verdict.UNUSED, Verdict.STOPS
    for order in itertools.permutations([unused, unused, unused, stops, stops]):
        findings = Findings()
        for number, verdict in enumerate(order):
            findings.add(RunCheck(run=str(number), entry="shop.work", live=True, verdict=verdict))
        listed = [(found.verdict, order[int(found.run)]) for found in findings.end().runs]
        assert listed == [(stops, stops), (stops, stops), (unused, unused)]
        assert len({found.run for found in findings.runs}) == 3
        assert findings.left_off == 2


def test_runs_of_other_apps_are_counted_and_not_checked(app: App) -> None:
    other = App("bank", config=app.config)
    other._opened = app.store()

    @other.job
    async def pay() -> None:
        await wait_for("go")

    @app.job
    async def work() -> None: ...

    pay.start()
    work.start()
    findings = check(app)
    assert (findings.checked, findings.elsewhere) == (1, 1)


def test_a_second_check_skips_what_has_not_changed_unless_the_code_has(shell: Shell) -> None:
    runs = [shell.run("start", "shop.py", "work", f"sku={sku}") for sku in ("A1", "B2")]
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.json("check", "shop.py", "--since-last")["checked"] == 2
    mark = shell.folder / ".holdfast" / "check.json"
    moved = json.loads(mark.read_text())
    mark.write_text(json.dumps({**moved, "at": moved["at"] + 3600}))  # as if the last check was later than every event
    report = shell.json("check", "shop.py", "--since-last")
    assert (report["checked"], report["unchanged"]) == (0, 2)
    write(shell, WAITING.replace("price(sku)", 'price(sku + "!")'))
    assert shell.json("check", "shop.py", "--since-last", code=1)["checked"] == 2, "other code"
    moved = json.loads(mark.read_text())
    assert sorted(moved["again"]) == sorted(runs)
    mark.write_text(json.dumps({**moved, "at": moved["at"] + 3600}))
    assert shell.json("check", "shop.py", "--since-last", code=1)["checked"] == 2, "they did not fit before"
    mark.write_text("broken")
    assert shell.json("check", "shop.py", "--since-last", code=1)["checked"] == 2


def test_many_runs_are_checked_by_several_processes_with_the_same_result(shell: Shell) -> None:
    code = WAITING.replace("cents = await price(sku)", 'print("a job prints")\n    cents = await price(sku)')
    write(shell, code)
    app = App("shop", shell.environment["HOLDFAST_URL"])
    app.block(app.store().now())

    @app.job
    async def work(sku: str) -> str:
        return sku

    app.start_many(work, [{"sku": f"S{n}"} for n in range(250)])
    app.close()
    one = shell.json("check", "shop.py", "--processes", "1")
    two = shell.json("check", "shop.py", "--processes", "2")
    assert (one["checked"], one["counts"]) == (250, {"shop.work": {"fits": 250}})
    assert {**one, "at": 0} == {**two, "at": 0}


STUCK = """
import os, sys, time
from holdfast import App, Config
from holdfast.deploys import store_check

def load():
    app = App("shop", config=Config(url=sys.argv[1]))

    @app.job
    async def work() -> None:
        print("checking", flush=True)
        time.sleep(3600)

    return app

if __name__ == "__main__":
    load().start("work")
    store_check.CHUNK = store_check.FEW = 1  # so that another process checks it
    store_check.check_store(load, load(), processes=1 + 1)
"""


def test_the_processes_of_a_check_end_with_it_also_if_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    command = [sys.executable, str(script), f"sqlite:///{tmp_path / 'jobs.db'}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as checking:
        assert checking.stderr is not None
        assert any("checking" in line for line in checking.stderr)
        checking.kill()
        checking.communicate(timeout=60)  # standard error ends when no process has it open


def test_the_report_for_ci_has_a_case_per_run_that_would_stop(shell: Shell) -> None:
    def read() -> ET.Element:
        return ET.fromstring((shell.folder / "report.xml").read_text())  # noqa: S314 - ours

    run = shell.run("start", "shop.py", "work", "sku=<A&\x07>")
    shell.run("worker", "shop.py", "--until-idle")
    shell.run("check", "shop.py", "--junit", "report.xml")
    assert [case.get("name") for case in read().iter("testcase")] == ["1 runs fit"]
    write(shell, WAITING.replace("price(sku)", 'price(sku + "!")'))
    shell.run("check", "shop.py", "--junit", "report.xml", code=1)
    suite = read().find("testsuite")
    assert suite is not None
    assert (suite.get("name"), suite.get("failures")) == ("shop.work", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "stops"
    assert run in str(failure.text)


def test_a_store_that_does_not_exist_is_an_error_and_is_not_made(shell: Shell) -> None:
    shell.run("check", "shop.py", code=5)
    assert files(shell.folder) == {}


def test_a_reader_of_an_unused_file_sees_what_is_committed_later(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a file?.db'}"
    app = App("shop", url)
    assert app.list() == []
    app.close()
    reader = open_reader(url)
    again = App("shop", url)

    @again.job
    async def work() -> None: ...

    async def jobs() -> list[str]:
        return [job.id for job in await reader.jobs()]

    assert again.block(jobs()) == []
    runs = [work.start().id]
    assert again.block(jobs()) == runs
    runs.insert(0, work.start().id)
    assert again.block(jobs()) == runs
    again.block(reader.close())
    again.close()


def test_a_reader_of_postgres_cannot_write() -> None:
    url = fresh_url()
    app = App("shop", config=Config(url=url))

    @app.job
    async def work() -> None: ...

    work.start()
    reader: Any = open_reader(url)
    with pytest.raises(StoreUnavailable, match="read-only"):
        app.block(reader._read("DELETE FROM " + reader._reads.job.split("FROM ")[1].split()[0] + " RETURNING 1", ()))
    app.block(reader.close())
    app.close()


@pytest.mark.parametrize(("store", "processes"), [("sqlite", "1"), ("postgres", "2")])
def test_a_worker_whose_code_does_not_fit_claims_nothing_and_says_why(shell: Shell, store: str, processes: str) -> None:
    if store == "postgres":
        shell.environment["HOLDFAST_URL"] = fresh_url()
    shell.environment["HOLDFAST_BUILD"] = "2.0"
    words = ("worker", "shop.py", "--check", "--until-idle", "--processes", processes)
    shell.run(*words)  # there is no store yet
    run = shell.run("start", "shop.py", "work", "sku=A1")
    shell.run(*words)
    shell.run("signal", run, "go", "yes")
    history = shell.json("events", run)
    write(shell, WAITING.replace("price(sku)", 'price(sku + "!")'))
    ran = shell.ran(*words)
    assert ran.returncode == 10
    assert f"{run}  would stop at shop.py:15" in ran.stderr
    assert shell.json("events", run) == history
    assert shell.ran(*words).returncode == 10
    (refused,) = shell.json("workers")  # one row, however often it is started
    assert (refused["alive"], refused["card"]["slots"], refused["card"]["build"]) == (False, 0, "2.0")
    assert "1 of 1 checked run would not go on" in refused["card"]["blocked"]
    told = shell.run("workers")
    assert "NOT READY" in told
    assert "takes no jobs: the code does not fit" in told
    write(shell, WAITING)
    shell.run(*words)
    assert shell.json("show", run)["status"] == "succeeded"
    assert shell.json("workers") == []
