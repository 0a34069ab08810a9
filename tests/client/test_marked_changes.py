"""`holdfast changes`: each mark of the code with the runs on each side, and when the old side can be removed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from holdfast import App, changed, wait_for
from holdfast.client.overview.marked_changes import MarkUse, find_uses
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
    assert find_uses([file, tmp_path / "broken.py", tmp_path / "missing.py"]) == {
        "a": [MarkUse(name, 6), MarkUse(name, 8)],
        "b": [MarkUse(name, 7)],
        "c": [MarkUse(name, 7)],
    }


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
