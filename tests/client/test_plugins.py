"""Apps that serve others, and apps that installed packages offer (R11)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App, InvalidSetting, UnknownEntry
from holdfast.client.plugins import discover
from holdfast.client.views import Creation
from support.shell import Shell
from support.stories import drain, play, quick

MAIL = """
from holdfast import App

app = App("mail")


@app.job
async def send(to: str) -> str:
    \"\"\"Send a letter.\"\"\"
    return f"sent to {to}"


@app.job
async def send_later(to: str) -> str:
    return (await send.astart(to)).id
"""


def install(folder: Path, name: str, module: str, **points: str) -> None:
    """Make an installed distribution: a module, and the directory by which importlib.metadata knows it."""
    (folder / f"{name}_jobs.py").write_text(module)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[holdfast.plugins]\n{lines}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages, whose modules are forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.endswith("_jobs"):
            del sys.modules[name]


def test_an_app_serves_the_jobs_of_another_as_its_own(app: App) -> None:
    mail = App("mail", config=quick("memory:"))

    @mail.step
    async def stamp(text: str) -> str:
        return f"{text}, stamped"

    @mail.job
    async def send(to: str) -> str:
        """Send a letter."""
        return await stamp(to)

    @app.job
    async def order(to: str) -> str:
        return await send(to)  # as a child, across apps

    app.include(mail)
    app.include(mail)  # again changes nothing

    @mail.job
    async def later() -> str:  # declared when it was included already
        return "later"

    async def story() -> None:
        assert [(one.plugin_id, one.entry_id) for one in await app.aentries()] == [
            ("mail", "later"),
            ("mail", "send"),
            ("shop", "order"),
        ]
        run = await app.astart("order", "Ann")
        made = await app.acreate(Creation(plugin_id="mail", entry_id="send", args={"to": "Bob"}))
        named = await app.astart("mail.send", "Cid")
        last = await app.astart(later)
        await drain(app)
        assert await run.aresult(timeout=60) == "Ann, stamped"
        assert await app.aoutcome(made.record.run_id) == "Bob, stamped"
        assert (await named.arecord()).plugin_id == "mail"
        assert await last.aresult(timeout=60) == "later"
        with pytest.raises(UnknownEntry, match=r"the known jobs are: mail\.later, mail\.send, order"):
            await app.astart("send", "x")

    play(story())


def test_two_apps_of_one_name_may_not_both_have_a_job_of_one_name() -> None:
    one, two, host = App("mail", "memory:"), App("mail", "memory:"), App("host", "memory:")
    one.job(name="send")(lambda: None)
    two.job(name="send")(lambda: None)
    two.job(name="other")(lambda: None)
    host.include(one)
    with pytest.raises(ValueError, match=r"host already has a job mail\.send"):
        host.include(two)
    assert set(host.entries) == {("mail", "send")}, "nothing of it was included"
    three = App("mail", "memory:")
    host.include(three)
    with pytest.raises(ValueError, match=r"host already has a job mail\.send"):
        three.job(name="send")(lambda: None)
    assert not three.entries


def test_apps_that_include_each_other_have_the_same_jobs() -> None:
    one, two = App("one", "memory:"), App("two", "memory:")
    one.include(two)
    two.include(one)
    one.include(one)
    one.job(name="a")(lambda: None)
    two.job(name="b")(lambda: None)
    assert set(one.entries) == set(two.entries) == {("one", "a"), ("two", "b")}


def test_the_apps_of_installed_packages_are_found(site: Path) -> None:
    assert discover() == []
    install(site, "mail", MAIL, mail="mail_jobs:app", again="mail_jobs:app")
    install(site, "bank", 'from holdfast import App\napp = App("bank")\n', bank="bank_jobs:app")
    assert [app.name for app in discover()] == ["mail", "bank"], "each once, by the names of the entry points"


@pytest.mark.parametrize(
    ("module", "value", "reason"),
    [
        ("app = 7\n", "bad_jobs:app", "it must be an App, got int: an entry point of this group must name an App"),
        ("", "bad_jobs:app", "it cannot be imported: AttributeError"),
        ("import surely_not_there\n", "bad_jobs:app", "it cannot be imported: ModuleNotFoundError: No module named"),
        ("raise RuntimeError('no settings')\n", "bad_jobs:app", "RuntimeError: no settings; mend or uninstall the"),
    ],
)
def test_an_entry_point_that_gives_no_app_is_named_with_the_reason(
    site: Path, module: str, value: str, reason: str
) -> None:
    install(site, "bad", module, broken=value)
    with pytest.raises(InvalidSetting, match=r"the entry point holdfast\.plugins:broken='bad_jobs:app': ") as raised:
        discover()
    assert reason in str(raised.value)


def test_a_worker_runs_the_jobs_of_installed_plugins_when_asked_to(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "mail", MAIL, mail="mail_jobs:app")
    shell = Shell(tmp_path)
    shell.environment["PYTHONPATH"] = str(site)
    shop = tmp_path / "shop.py"
    shop.write_text('from holdfast import App\napp = App("shop")\n\n@app.job\ndef buy() -> str:\n    return "bought"\n')
    mine = shell.run("start", str(shop), "buy")
    other = shell.run("start", "mail_jobs", "send", "to=Ann")
    shell.run("worker", str(shop), "--until-idle")
    assert (shell.json("show", mine)["status"], shell.json("show", other)["status"]) == ("succeeded", "queued")
    again = shell.run("start", str(shop), "buy")
    shell.run("worker", str(shop), "--plugins", "--until-idle", "--processes", "2")
    assert {shell.json("show", run)["status"] for run in (again, other)} == {"succeeded"}
    # What a plugin starts by itself is kept where the others are, also where that is said on the command line only.
    elsewhere = shell.environment.pop("HOLDFAST_URL").replace("jobs.db", "elsewhere.db")
    third = shell.run("start", "mail_jobs", "send_later", "to=Bob", "--url", elsewhere)
    shell.run("worker", "--plugins", "--until-idle", "--url", elsewhere)
    assert shell.json("show", third, "--url", elsewhere)["status"] == "succeeded"
    assert len(shell.json("runs", "--url", elsewhere)) == 2
    host = tmp_path / "host.py"
    host.write_text('from holdfast import App\nimport mail_jobs\napp = App("host")\napp.include(mail_jobs.app)\n')
    named = shell.run("start", f"{host}:app", "mail.send", "to=Cid", "--url", elsewhere)
    assert shell.json("show", named, "--url", elsewhere)["plugin_id"] == "mail"


def test_a_worker_of_nothing_and_plugins_that_clash_are_refused_in_one_line(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "mail", MAIL, mail="mail_jobs:app")
    shell = Shell(tmp_path)
    shell.environment["PYTHONPATH"] = str(site)
    assert "--plugins for the apps of installed packages" in shell.run("worker", code=2)
    clash = tmp_path / "clash.py"
    clash.write_text('from holdfast import App\napp = App("mail")\n\n@app.job\ndef send() -> None: ...\n')
    assert "mail already has a job 'send'" in shell.run("worker", str(clash), "--plugins", code=2)
    install(site, "bad", "app = 7\n", broken="bad_jobs:app")
    assert "holdfast.plugins:broken" in shell.run("worker", "--plugins", code=2)
