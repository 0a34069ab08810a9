"""Code that does not fit a run, over HTTP, with the remote client and on the command line."""

from __future__ import annotations

import textwrap
from pathlib import Path

from holdfast import App, wait_for
from support.shell import Shell
from support.stories import drain, play, quick
from support.web import near


def version(url: str, build: str, cents: int) -> App:
    app = App("shop", config=quick(url), build=build)

    @app.step
    async def charge(amount: int) -> str:
        return f"paid {amount}"

    @app.job
    async def pay() -> str:
        paid = await charge(cents)
        await wait_for("go")
        return paid

    return app


def test_a_misfit_is_listed_and_answered_over_http(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    old, new = version(url, "1", 100), version(url, "2", 105)

    async def story() -> None:
        handle = await old.astart("pay")
        await drain(old)
        await handle.asignal("go")
        await drain(new)
        async with near(new) as client:
            [question] = (await client.get("/api/v1/inbox", params={"kind": "deploy"})).json()["items"]
            assert question["deploy"]["call"] == "charge(amount=105)"
            assert (question["deploy"]["began"], question["deploy"]["build"]) == ("1", "2")
            path = f"/api/v1/runs/{handle.id}/answer"
            assert (await client.post(path, json={"answer": "later"})).status_code == 422
            other = await client.post(path, json={"answer": "accept", "node": "charge:other"})
            assert (other.status_code, other.json()["code"]) == (409, "question_closed")
            answered = await client.post(path, json={"answer": "accept", "node": question["node"], "actor": "ana"})
            assert (answered.status_code, answered.json()["run_id"]) == (200, handle.id)
            assert (await client.post(path, json={"answer": "fail"})).status_code == 409
        await drain(new)
        assert await handle.aresult() == "paid 105"

    play(story())
    old.close()
    new.close()


CODE = """
from holdfast import App, wait_for
app = App("shop")

@app.step
async def charge(amount: int) -> str:
    return f"paid {amount}"

@app.job
async def pay() -> str:
    paid = await charge(CENTS)
    await wait_for("go")
    return paid
"""


def test_the_command_line_explains_lists_and_answers_a_misfit(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shop = shell.folder / "shop.py"

    def deploy(build: str, cents: str) -> None:
        shop.write_text(textwrap.dedent(CODE).replace("CENTS", cents))
        shell.environment["HOLDFAST_BUILD"] = build

    deploy("1", "100")
    run = shell.run("start", "shop.py", "pay")
    shell.run("worker", "shop.py", "--until-idle")
    shell.run("signal", run, "go")
    deploy("2", "105")
    shell.run("worker", "shop.py", "--until-idle")
    told = shell.run("explain", run)
    assert "The code of build 2 calls charge(amount=105) at shop.py:11, but the history has charge(amount=100)" in told
    assert "which build 1 recorded" in told
    assert "deploy" in shell.run("inbox")
    assert shell.run("answer", run, "build") == f"{run} running"
    assert "no longer open" in shell.run("answer", run, "accept", code=4)
    shell.run("worker", "shop.py", "--until-idle")
    assert "It is kept for workers of build 1, and none is alive" in shell.run("explain", run)
    deploy("1", "100")
    shell.run("worker", "shop.py", "--until-idle")
    assert shell.json("show", run)["status"] == "succeeded"
