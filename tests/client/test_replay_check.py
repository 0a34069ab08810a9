"""`holdfast replay`: a history against the code as it is now. Nothing is called, and every misfit is named."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from support.shell import Shell

HEAD = """
from pathlib import Path
from holdfast import App, gather, map, now, random, sleep, uuid4, wait_for
app = App("shop")

def acted(what):
    with Path("acted").open("a") as file:
        file.write(what + "\\n")

@app.step
async def price(sku: str) -> int:
    acted("price")
    return 100 * len(sku)

@app.tool
def charge(cents: int) -> str:
    acted("charge")
    return f"receipt for {cents}"

@app.step
async def broken() -> None:
    acted("broken")
    raise ValueError("never works")
"""

BRANCHES = """
@app.job
async def child(sku: str) -> int:
    return await price(sku)

@app.job
async def work(sku: str) -> list:
    at, dice, name = now(), random(), uuid4()
    prices = await gather(price(sku), price(sku + "1"), map(price, ["a", "bb"]))
    await sleep(0.01)
    born = await child(sku)
    try:
        await broken()
    except Exception as error:
        failure = str(error)
    return [at, dice, name, prices, born, failure, await charge(born)]
"""

PLAIN = """
@app.job
def work(sku: str) -> str:
    return charge(price(sku)) + str(now()) + str(map(price, ["a", "b"]))
"""

WAITING = """
@app.job
async def work(sku: str) -> str:
    cents = await price(sku)
    answer = await wait_for("go")
    return await charge(cents) + answer
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def write(shell: Shell, code: str) -> None:
    (shell.folder / "shop.py").write_text(HEAD + textwrap.dedent(code))


def recorded(shell: Shell, code: str) -> str:
    """Run a job with this code; its run."""
    write(shell, code)
    run = shell.run("start", "shop.py", "work", "sku=A1")
    shell.run("worker", "shop.py", "--until-idle")
    return run


@pytest.mark.parametrize("code", [BRANCHES, PLAIN], ids=["branches", "plain"])
def test_code_that_has_not_changed_fits_and_nothing_is_called(shell: Shell, code: str) -> None:
    run = recorded(shell, code)
    assert shell.json("show", run)["status"] == "succeeded"
    before = (shell.folder / "acted").read_text()
    history = shell.json("events", run)
    found = shell.json("replay", run, "shop.py")
    assert (found["fits"], found["reasons"], found["unasked"], found["beyond"]) == (True, [], [], [])
    assert shell.run("replay", run, "shop.py").startswith("the code fits\n")
    assert (shell.folder / "acted").read_text() == before
    assert shell.json("events", run) == history


def test_a_run_that_waits_fits_and_says_where_it_would_go_on(shell: Shell) -> None:
    run = recorded(shell, WAITING)
    assert shell.run("replay", run, "shop.py") == (
        "the code fits\n1 recorded results were used\nthe run would continue with wait:go"
    )
    write(shell, WAITING.replace('await wait_for("go")', 'await charge(1) + await wait_for("go")'))
    assert shell.json("replay", run, "shop.py")["beyond"][0].startswith("charge:"), "a new call is no misfit here"
    shell.run("signal", run, "go", "yes")
    write(shell, WAITING)
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.json("replay", run, "shop.py")["answered"] == 3


def test_another_argument_is_a_misfit_that_names_both_sides(shell: Shell) -> None:
    run = recorded(shell, WAITING)
    write(shell, WAITING.replace("price(sku)", 'price(sku + "!")'))
    told = shell.run("replay", run, "shop.py", code=1)
    misfit = (
        "the code does not fit: it now calls price(sku='A1!'), but the history has price(sku='A1') (at shop.py:27)\n"
    )
    assert told.startswith(misfit)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("return await charge(cents)", "return await charge(cents) + '!'", "and now returns 'receipt for 200!'"),
        (
            "return await charge(cents)",
            "return await charge(cents) + await charge(7)",
            "it had ended, and now calls",
        ),
        ("return await charge(cents)", "raise ValueError('no')", "it returned, and now raises ValueError: no"),
        ("sku: str) -> str:\n    cents", "sku: int) -> str:\n    cents", "its arguments do not fit"),
        ("return await charge(cents)", "return 'receipt for 200'", None),
    ],
    ids=["result", "more", "raises", "arguments", "less"],
)
def test_a_run_that_has_ended_must_end_the_same(shell: Shell, before: str, after: str, said: str | None) -> None:
    code = "@app.job\nasync def work(sku: str) -> str:\n    cents = await price(sku)\n    return await charge(cents)\n"
    run = recorded(shell, code)
    assert shell.run("replay", run, "shop.py").startswith("the code fits")
    write(shell, code.replace(before, after))
    if said is not None:
        assert said in shell.run("replay", run, "shop.py", code=1)
    else:
        told = shell.run("replay", run, "shop.py")
        assert "recorded but no longer called: charge:" in told


def test_a_failure_is_compared_too_and_an_app_without_the_job_says_what_it_has(shell: Shell) -> None:
    code = "@app.job\nasync def work(sku: str) -> None:\n    await broken()\n"
    run = recorded(shell, code)
    assert shell.run("replay", run, "shop.py").startswith("the code fits")
    write(shell, code.replace("await broken()", "return None"))
    assert "it raised StepFailed, and now returns" in shell.run("replay", run, "shop.py", code=1)
    write(shell, code.replace("work", "other"))
    assert "no job is named 'shop.work'; the known jobs are: shop.other" in shell.run("replay", run, "shop.py", code=3)
