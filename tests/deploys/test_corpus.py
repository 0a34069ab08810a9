"""Histories in files: written by `holdfast export`, replayed by `holdfast check --histories`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Secret, StepFailed, gather, now, sleep, uuid4, wait_for
from holdfast.deploys.history_files import InvalidHistory, histories_in, history_text, read_history
from holdfast.deploys.history_redaction import redact_history, redact_text
from holdfast.deploys.run_check import check_run
from holdfast.errors import InvalidArguments
from holdfast.machines import Event
from support.shell import Shell

CODE = """
from holdfast import App, sleep, wait_for
app = App("shop")

@app.step
async def price(sku: str) -> dict:
    return {"name": f"the {sku}", "cents": 100}

@app.job
async def work(sku: str) -> str:
    found = await price(sku)
    await price(sku + "-" + sku)
    await sleep(0.01)
    answer = await wait_for("go")
    return found["name"] + answer
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    (tmp_path / "shop.py").write_text(textwrap.dedent(CODE))
    return made


def recorded(shell: Shell) -> str:
    run = shell.run("start", "shop.py", "work", "sku=Ada Lovelace 1815")
    shell.run("worker", "shop.py", "--until-idle")
    return run


def test_an_exported_history_is_checked_without_a_store(shell: Shell) -> None:
    run = recorded(shell)
    shell.run("signal", run, "go", '"yes"')
    shell.run("worker", "shop.py", "--until-idle")
    told = shell.run("export", run, "--to", "histories/a")
    file = shell.folder / told
    before = file.read_text()
    assert len(before.splitlines()) == len(shell.json("events", run)) + 8, "one line for each event"
    shell.run("export", run, "--to", "histories/a")
    assert file.read_text() == before
    for path in shell.folder.glob("jobs.db*"):
        path.unlink() if path.is_file() else None
    report = shell.json("check", "shop.py", "--histories", "histories")
    assert (report["checked"], report["counts"]) == (1, {"shop.work": {"fits": 1}})
    (shell.folder / "shop.py").write_text(CODE.replace("price(sku)", 'price(sku + "!")'))
    report = shell.json("check", "shop.py", "--histories", "histories", code=1)
    assert report["runs"][0]["line"] == f"{shell.folder / 'shop.py'}:11"


def test_an_empty_folder_and_a_broken_file_fail(shell: Shell) -> None:
    (shell.folder / "histories").mkdir()
    ran = shell.ran("check", "shop.py", "--histories", "histories")
    assert ran.returncode == 1
    assert "histories has no histories: write some with holdfast export" in ran.stderr
    (shell.folder / "histories" / "broken.json").write_text('{"holdfast_history": 1, "job": "x", "events": [{}]}')
    assert "broken.json is not a history" in shell.ran("check", "shop.py", "--histories", "histories").stderr


EVENT = '"at": 1, "attempt": null, "payload": {}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is not JSON (Expecting value: line 1 column 1"),
        (b"\xff", "is not JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[]", "is not a history of format 1: write it with holdfast export"),
        (b"7", "is not a history of format 1: write it with holdfast export"),
        (b"{}", "is not a history of format 1: write it with holdfast export"),
        (b'{"holdfast_history": 2}', "is not a history of format 1: write it with holdfast export"),
        (b'{"holdfast_history": 1, "job": "a"}', "Object missing required field `events`"),
        (b'{"holdfast_history": 1, "job": "a", "events": []}', "has no events"),
        (b'{"holdfast_history": 1, "job": "a", "events": [[]]}', "Expected `object`, got `array` - at `$.events[0]`"),
        (
            f'{{"holdfast_history": 1, "job": "a", "events": [{{"type": 1, {EVENT}}}]}}'.encode(),
            "Expected `str`, got `int` - at `$.events[0].type`",
        ),
    ],
)
def test_a_file_that_is_not_a_history_is_named_with_what_is_wrong(tmp_path: Path, text: bytes, why: str) -> None:
    (tmp_path / "some.json").write_bytes(text)
    with pytest.raises(InvalidHistory) as refused:
        list(histories_in(tmp_path))
    assert str(refused.value).startswith(f"{tmp_path / 'some.json'} ")
    assert why in str(refused.value)
    assert "Error:" not in str(refused.value), "it names no class of Python"


def test_a_history_is_read_as_it_was_written(app: App, tmp_path: Path) -> None:
    """From each store."""

    @app.step
    async def price(sku: str) -> dict[str, Any]:
        return {"z": 1, "a": [sku, "é\u2028"], "m": None}

    @app.job
    async def work(sku: str) -> str:
        return str(await price(sku)) + uuid4()

    run = work.start("A1")
    app.worker().run(until_idle=True)
    events = app.events(run.id)
    path = tmp_path / "history.json"
    path.write_text(history_text(events), encoding="utf-8")
    again = read_history(path)
    assert [(one.type, one.at, one.attempt, one.payload) for one in again] == [
        (one.type, one.at, one.attempt, one.payload) for one in events
    ]
    assert [list(one.payload) for one in again] == [list(one.payload) for one in events], "in the same order"


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def test_a_redacted_history_has_no_texts_and_takes_the_same_way(app: App) -> None:
    """Equal calls, children, recorded values, failures, signals and secrets keep their places."""
    person = "Ada Lovelace"

    @app.step
    async def greet(name: str, n: int = 0) -> list[str]:
        return [f"hello {name}", f"dear {name}"][: n + 1]

    @app.step
    async def broken(name: str) -> None:
        raise ValueError(f"{name} is not known")

    @app.job
    async def child(name: str) -> str:
        return name.upper()

    @app.job
    async def work(name: str, day: str, token: Secret[str]) -> dict[str, Any]:
        first = await greet(name)
        at, name_of_all = now(), uuid4()
        both = await gather(greet(f"{name}, {name}"), greet(first[0], 1), greet(name))
        try:
            await broken(name)
        except StepFailed as error:
            await greet(error.reason)
        await sleep(0.001)
        born = await child(f"{name}, {day}")
        answer = await wait_for("go")
        await greet(str(answer))
        assert token is not None
        return {"at": at, "both": both, "born": born, "id": name_of_all}

    run = work.start(person, "2026-11-16", Secret.env("HOLDFAST_TEST_NO_SUCH_KEY"))
    app.worker().run(until_idle=True)
    run.signal("go", f"yes, {person}")
    app.worker().run(until_idle=True)
    assert run.record().status == "succeeded"
    events = app.events(run.id)

    def arguments_of(job: str) -> Any:
        return app.events(job)[0].payload["args"]

    redacted = redact_history(events, arguments_of)
    shown = " ".join(texts([event.payload for event in redacted]))
    for word in ("Ada", "Lovelace", "ADA", "hello", "yes", "not known", "2026"):
        assert word not in shown
    assert [event.type for event in redacted] == [event.type for event in events]
    for history in (events, redacted):
        found = app.block(check_run(app, history, keys=False))
        assert (found.verdict, found.reasons, found.unused) == ("fits", [], [])


def test_a_redaction_says_when_the_code_depends_on_a_text(shell: Shell) -> None:
    run = recorded(shell)
    said = shell.ran("export", run, "--to", "out", "--redact").stderr
    assert "name the code with --target" in said
    said = shell.ran("export", run, "--to", "out", "--redact", "--target", "shop.py").stderr
    assert said.strip() == "the code takes the same way with the replaced texts"
    (file,) = (shell.folder / "out").iterdir()
    assert json.loads(file.read_text())["redacted"] is True
    assert "Lovelace" not in file.read_text()
    shell.run("check", "shop.py", "--histories", "out")
    changed = CODE.replace("await price(sku + ", 'if "Ada" in sku: await price(sku + ')
    (shell.folder / "shop.py").write_text(changed)
    said = shell.ran("export", run, "--to", "out", "--redact", "--target", "shop.py").stderr
    assert said.startswith("the control flow depends on a replaced text")


def test_a_run_with_a_plan_is_not_redacted() -> None:
    event = Event("a:1", "a", 1, "plan_generated", {}, None, 1.0, 1, "0" * 64, "0" * 64)
    with pytest.raises(InvalidArguments, match="a run with a plan cannot be redacted"):
        redact_history([event])


def test_texts_keep_their_form() -> None:
    assert redact_text("Ada L., born 1815-12-10 in Łódź!") == "Aaa A., aaaa 1111-11-11 aa Aaaa!"
