"""Agent: a model chooses tools until it is done. Choices are recorded, tools act at most once, and people approve.

The model here is a function that follows a script, so that the program runs anywhere. Replace it by a call of a real
model. Its answers are in the history. After a crash the model is not asked the same question again. The tools are a
closed list. A tool that is not on the list is an error for the model. No output of the model is run as code.

Run it:  MODEL_KEY=… holdfast worker agent.py
         holdfast start agent.py agent goal='Pay the invoice of Acme' key=env:MODEL_KEY
         holdfast signal <run> approve:2 true
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast import App, Secret, StepFailed, WaitTimeout, export, external_key, progress, wait_for

app = App("agents")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # stands for the outside world
PACE_SECONDS = float(os.environ.get("PACE", "0"))  # makes the program slow, for tests
TURNS_MAX = 8


class Choice(msgspec.Struct):
    """The choice of the model: a tool with arguments, or a final answer."""

    say: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}


SCRIPT = [
    Choice(tool="search", arguments={"text": "Acme"}),
    Choice(tool="rm -rf", arguments={"path": "everything"}),  # the model may ask for anything
    Choice(tool="pay", arguments={"to": "Acme", "cents": 1900}),
    Choice(say="Acme is paid."),
]


@app.step(retries=3, timeout=60)  # a repeated question costs money, but is harmless
async def think(goal: str, heard: list[str], key: Secret[str]) -> Choice:
    """Ask the model what to do next."""
    with LEDGER.open("a") as file:  # noqa: ASYNC230 - one line
        file.write(f"asked the model about {goal!r}, turn {len(heard) + 1}\n")
    assert key.reveal(), "a real model wants it with every call"
    await asyncio.sleep(PACE_SECONDS)
    return SCRIPT[len(heard)]


@app.step(retries=3)
async def search(text: str) -> str:
    """Look something up. This tool only reads."""
    return f"1 invoice of {text}: 1900 cents"


@app.tool(on_doubt="ask")  # money: at most once
async def pay(to: str, cents: int) -> str:
    """Pay a supplier."""
    with LEDGER.open("a") as file:  # noqa: ASYNC230 - one line
        file.write(f"paid {cents} cents to {to}, key {external_key()}\n")
    await asyncio.sleep(PACE_SECONDS)
    return f"paid {to}"


TOOLS: dict[str, Callable[..., Awaitable[str]]] = {"search": search, "pay": pay}
NEEDS_APPROVAL = {"pay"}


async def use(turn: int, choice: Choice) -> str:
    """Run the chosen tool if it is allowed, and return the result as text for the model."""
    tool = TOOLS.get(choice.tool)
    if tool is None:
        return f"error: there is no tool {choice.tool!r}; there are {', '.join(TOOLS)}"
    if choice.tool in NEEDS_APPROVAL:
        try:
            approved = await wait_for(f"approve:{turn}", timeout="1d", type="human")
        except WaitTimeout:
            approved = False
        if approved is not True:
            return "error: nobody has approved of that"
    try:
        return await tool(**choice.arguments)
    except (StepFailed, TypeError) as error:  # the model can correct wrong arguments
        return f"error: {error}"


@app.job
async def agent(goal: str, key: Secret[str]) -> str:
    """Ask the model and run its tools until it gives a final answer."""
    heard: list[str] = []
    for turn in range(TURNS_MAX):
        progress(turn / TURNS_MAX, stage=f"turn {turn + 1}", message=heard[-1] if heard else goal)
        choice = await think(goal, heard, key)
        if not choice.tool:
            export({"goal": goal, "heard": heard}, "transcript")
            return choice.say
        heard.append(await use(turn, choice))
    return "too many turns"


if __name__ == "__main__":
    os.environ.setdefault("MODEL_KEY", "any will do: this model is a script")
    run = agent.start("Pay the invoice of Acme", key=Secret.env("MODEL_KEY"))
    app.worker().run(until_idle=True)
    print(run.record().stage)
    run.signal("approve:2", payload=True)
    app.worker().run(until_idle=True)
    print(run.result())
    for line in LEDGER.read_text().splitlines():
        print(line.partition(", key")[0])
