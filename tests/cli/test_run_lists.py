"""`holdfast runs` and how ids are completed: filters, pages, times; on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import App
from holdfast.cli.options import full_id
from holdfast.store import Submit
from support.postgres import fresh_url
from support.scripts import ROOT
from support.shell import Shell

SHOP = str(ROOT / "examples" / "shop.py")


@pytest.fixture(params=["sqlite", "postgres"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    if request.param == "postgres":
        made.environment["HOLDFAST_URL"] = fresh_url()
    return made


def listed(shell: Shell, *words: str) -> list[str]:
    return [one["run_id"] for one in shell.json("runs", *words)]


def test_a_listing_is_narrowed_by_job_status_and_time_and_goes_on_page_by_page(shell: Shell) -> None:
    told = shell.run("start", SHOP, "notify", "text=a")
    shell.run("worker", SHOP, "--until-idle")
    bought = shell.run("start", SHOP, "checkout", "sku=A1", "card=4242")
    late = shell.run("start", SHOP, "notify", "text=b", "--delay", "1h", "--key", "k", "--group", "acme")
    assert listed(shell) == [late, bought, told]
    assert listed(shell, "--entry", "notify") == [late, told]
    assert listed(shell, "--plugin", "other") == []
    assert listed(shell, "--group", "acme") == [late]
    assert listed(shell, "--group", "bolt") == []
    assert listed(shell, "--status", "succeeded") == [told]
    assert listed(shell, "--status", "succeeded", "--status", "queued", "--entry", "checkout") == [bought]
    assert listed(shell, "--limit", "2") == [late, bought]
    assert listed(shell, "--limit", "2", "--before", bought) == [told]
    assert "holdfast runs" not in shell.run("runs", "--limit", "2"), "what is for people stays off a pipe"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "yesterday"], "--since: 'yesterday' is not a duration"),
        (["--status", "done"], "'done' is not one of"),
        (["--attr", "customer"], "attributes must be name=value, got customer"),
        (["--limit", "0"], "0 is not in the range"),
    ],
)
def test_a_wrong_filter_is_one_mistake_that_says_what_is_right(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in Shell(tmp_path).run("runs", *words, code=2)


def test_a_beginning_of_an_id_is_found_among_many_and_an_end_too(shell: Shell) -> None:
    first = shell.run("start", SHOP, "notify", "text=first")
    second = shell.run("start", SHOP, "notify", "text=second")
    for part in (second[:-1], second[-10:], second):
        assert shell.json("show", part)["run_id"] == second
    assert shell.json("show", first[:-2])["run_id"] == first
    assert f"{first[:4]} matches 2 runs" in shell.run("show", first[:4], code=2)
    assert "no job has the id 'ffff'" in shell.run("show", "ffff", code=3)
    assert "no job has the id" in shell.run("show", f"{first[:-1]}.9", code=3)
    assert shell.json("cancel", first)["status"] == "canceled"


def test_a_beginning_of_the_last_id_that_there_can_be_is_found(shell: Shell) -> None:
    app = App("shop", shell.environment["HOLDFAST_URL"])
    last = "01a1df75-0793-7784-b33d-859d091eefff"
    app.block(app.store().commit([Submit(job=last, plugin="shop", entry="notify", args={})]))
    assert [full_id(app, last[:length]) for length in (-1, -2, -3, 8)] == [last] * 4
    app.close()


def test_what_a_run_returned_is_shown_with_its_record(shell: Shell) -> None:
    run = shell.run("start", SHOP, "notify", "text=hello")
    shell.run("worker", SHOP, "--until-idle")
    shown = shell.run("show", run)
    assert 'result               "Dear customer: hello."' in shown
    assert "s ago" in shown
    assert shell.json("show", run)["result"] == "Dear customer: hello."
    assert shell.run("exports", run) == "no exports"
    assert json.loads(shell.run("stats", "--json"))["workers"] == 0
    assert shell.run("stats").startswith("workers   0")
