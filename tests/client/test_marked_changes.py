"""`holdfast changes`: each mark of the code with the runs on each side, and when the old side can be removed."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast import App, changed, wait_for
from holdfast.client.overview.mark_uses import MarkUse, find_uses
from support.shell import Shell
from support.stories import drain, play, quick

MARK = "counted-here"


def test_runs_are_counted_by_the_side_that_they_recorded_or_that_a_replay_finds(url: str) -> None:
    app = App("shop", config=quick(url))
    marked = False

    @app.job
    async def work() -> bool:
        await wait_for("first")
        side = marked and changed("counted-here")
        await wait_for("go")
        return side

    async def story() -> None:
        nonlocal marked
        runs = [await app.astart(work) for _ in range(4)]
        await drain(app)
        for run in runs[:2]:
            await run.asignal("first")
        await drain(app)
        marked = True
        await runs[2].asignal("first")
        await drain(app)
        # Two have passed the place and wait, one has recorded the new side, one has not come to the place.
        listed = await app.achanges()
        [change] = [one for one in listed.changes if one.mark == MARK]
        assert (listed.runs, listed.complete) == (4, True)
        assert (change.old, change.new, change.unknown, change.removable) == (2, 1, 0, False)
        assert change.oldest == min(run.id for run in runs[:2])
        assert {Path(use.file).name for use in change.uses} == {"test_marked_changes.py"}
        unreplayed = await app.achanges(replay=False)
        [change] = [one for one in unreplayed.changes if one.mark == MARK]
        assert (change.old, change.new, change.unknown, change.removable) == (0, 1, 3, False)
        partly = await app.achanges(limit=3)
        assert (partly.runs, partly.complete) == (3, False)
        assert not any(one.removable for one in partly.changes)
        for run in runs[:2]:
            await run.asignal("go")
        await drain(app)
        [change] = [one for one in (await app.achanges()).changes if one.mark == MARK]
        assert (change.old, change.new, change.unknown, change.removable) == (0, 1, 0, True)

    play(story())
    app.close()


def test_uses_are_found_under_every_name_without_running_the_code(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        textwrap.dedent(
            """\
            import holdfast as h
            import holdfast
            from holdfast import changed, changed as is_new
            raise SystemExit("this code is not run")
            def work(other, mark):
                if changed("a"): ...
                if is_new("b") or h.changed(mark="c"): ...
                if holdfast.changed("a"): ...
                other.changed("not ours")
                changed(mark)
            """
        )
    )
    (tmp_path / "broken.py").write_text("def (")
    name = str(file)
    uses = find_uses([file, tmp_path / "broken.py", tmp_path / "missing.py"])
    assert uses.by_mark == {
        "a": [MarkUse(name, 6), MarkUse(name, 8)],
        "b": [MarkUse(name, 7)],
        "c": [MarkUse(name, 7)],
    }
    assert uses.unread == [MarkUse(name, 10)]


def parsed(file: Path, code: str) -> tuple[dict[str, list[int]], list[int]]:
    """The lines by mark, and those whose mark cannot be read."""
    file.write_text(textwrap.dedent(code))
    uses = find_uses([file])
    return {mark: [use.line for use in places] for mark, places in uses.by_mark.items()}, [
        use.line for use in uses.unread
    ]


def test_marks_that_are_constants_are_read_from_the_text(tmp_path: Path) -> None:
    assert parsed(
        tmp_path / "shop.py",
        """\
        from holdfast import *
        import holdfast.errors
        FEE: str = "fee"
        YEAR = "2026"
        TWICE = "one"
        TWICE = "two"
        is_new = changed
        async def work(TAX, step):
            changed(FEE)
            is_new(f"{YEAR}-11-{FEE}")
            holdfast.changed(YEAR + "-tax")
            changed(TWICE)
            changed(TAX)
            changed(f"{YEAR:>8}")
            changed(step.mark)
            changed(**step)
            return filter(changed, [FEE])
        """,
    ) == ({"fee": [9], "2026-11-fee": [10], "2026-tax": [11]}, [12, 13, 14, 15, 16, 17])


def test_names_of_other_modules_are_read_where_they_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = {
        "test_marks_of_shop": """\
            import enum
            from holdfast import changed as is_new
            FEE = "fee"
            class Tax:
                YEARLY = "yearly"
            class Side(enum.StrEnum):
                LEFT = "left"
            """,
        "test_jobs_of_shop": """\
            import test_marks_of_shop as marks
            from test_marks_of_shop import *
            from test_marks_of_shop import FEE as PRICE, Side, Tax, is_new as has
            def work():
                is_new(PRICE)
                has(marks.FEE)
                marks.is_new(Tax.YEARLY)
                has(Side.LEFT)
                has(Side.LEFT.value)
                has(marks.Side.RIGHT)
            """,
    }
    for name, text in code.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    try:
        importlib.import_module("test_jobs_of_shop")
        assert parsed(tmp_path / "test_jobs_of_shop.py", code["test_jobs_of_shop"]) == (
            {"fee": [5, 6], "yearly": [7], "left": [8, 9]}, [10]
        )  # fmt: skip
    finally:
        for name in code:
            sys.modules.pop(name, None)


CODE = """
from holdfast import App, changed, wait_for
app = App("shop")

@app.job
async def work() -> str:
    {}
    await wait_for("go")
    return "done"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_the_command_names_the_file_the_line_and_the_run_that_needs_the_old_side(shell: Shell) -> None:
    file = shell.folder / "shop.py"
    file.write_text(CODE.format("pass"))
    run = shell.run("start", "shop.py", "work")
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.run("changes", "shop.py") == "no marked changes"
    file.write_text(CODE.format(f'changed("{MARK}")'))
    [line] = [one for one in shell.run("changes", "shop.py").splitlines() if MARK in one]
    assert "shop.py:7" in line
    assert f"needed by {run}" in line
    shell.run("signal", run, "go")
    shell.run("worker", "shop.py", "--until-idle")
    [change] = shell.json("changes", "shop.py")["changes"]
    assert (change["old"], change["removable"]) == (0, True)
    assert "can be removed" in shell.run("changes", "shop.py")


def test_the_command_says_where_a_mark_cannot_be_read(shell: Shell) -> None:
    file = shell.folder / "shop.py"
    file.write_text(CODE.format("changed('-'.join(['2026', 'fee']))"))
    shell.run("migrate")
    told = shell.run("changes", "shop.py").splitlines()
    assert told[-1] == "shop.py:7 asks for a mark that cannot be read from the code: it is listed once a run records it"
    shell.run("start", "shop.py", "work")
    shell.run("worker", "shop.py", "--until-idle")
    listed = shell.json("changes", "shop.py")
    assert [(one["mark"], one["new"], one["removable"]) for one in listed["changes"]] == [("2026-fee", 1, False)]
    assert listed["unread"] == [{"file": str(file), "line": 7}]
    [line] = [one for one in shell.run("changes", "shop.py").splitlines() if one.startswith("2026-fee")]
    assert line.endswith("perhaps used at shop.py:7")
