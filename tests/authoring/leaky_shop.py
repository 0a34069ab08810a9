"""A shop that leaks its secrets in every place where data of a job is stored."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import threading
import time
import urllib.parse
from typing import Any

import msgspec

from holdfast import App, Permanent, Secret, export, progress, wait_for
from support.codec import HmacCodec

app = App("leaky", codec=HmacCodec(os.environ.get("LEAKY_KEY", "").encode()))


class Letter(msgspec.Struct):
    to: str
    seal: Secret[str]


@app.step
async def step(secret: Secret[str]) -> Secret[str]:
    return Secret(f"{secret.reveal()} from a step")


@app.step
async def telling(how: str, secret: Secret[str]) -> None:
    raise Permanent(HOW[how](secret.reveal()))


@app.step
async def echo(text: Any) -> Any:
    return text


@app.tool
async def tool(letter: Letter) -> Letter:
    return Letter(letter.seal.reveal()[:3], Secret([letter.seal.reveal()][0]))


@app.tool(retries=1)
def threaded(secret: Secret[str]) -> None:
    raise KeyError(secret.reveal())


@app.tool(timeout=0.05, on_doubt="fail")
def late(secret: Secret[str]) -> str:
    time.sleep(0.3)  # its time is over: what it gives is kept as evidence
    return secret.reveal()


@app.tool(timeout=0.05, on_doubt="fail")
def late_error(secret: Secret[str]) -> str:
    time.sleep(0.3)
    raise OSError(secret.reveal())


@app.job
async def child(secrets: list[Secret[str]]) -> Secret[str]:
    return Secret(f"{secrets[0].reveal()} from a child")


@app.job
async def failing_child(secret: Secret[str]) -> None:
    raise ValueError(secret.reveal())


def chained(text: str) -> Exception:
    first, second = KeyError(text), OSError(f"could not use {text!r}")
    first.add_note(f"noted {text}")
    second.__cause__ = first
    return ExceptionGroup(f"group {text}", [second, ValueError(text)])


HOW: dict[str, Any] = {
    "plain": lambda text: f"401 for {text}",
    "repr": lambda text: f"401 for {text!r}",
    "json": lambda text: msgspec.json.encode({"key": text}).decode(),
    "url": lambda text: f"https://bank/?key={urllib.parse.quote_plus(text)}&x=1",
    "base64": lambda text: f"Authorization: {base64.b64encode(text.encode()).decode()}",
    "long": lambda text: "x" * 1990 + text,  # what is cut must be redacted before
}


def report(text: str) -> None:
    progress(0.5, stage=text[:128], message=f"with {text}"[:512], metrics={"key": text, text: 1})


PLACES: dict[str, Any] = {
    "argument": step,
    "tool": lambda s: tool(Letter("ann", s)),
    "child": lambda s: child([s]),
    "child fails": failing_child,
    "thread": threaded,
    "late": late,
    "late error": late_error,
    "plain argument": lambda s: echo({"deep": [s.reveal()]}),
    "plain child": lambda s: failing_child(s.reveal()),
    "wait": lambda s: wait_for(s.reveal()),
    "key": lambda s: echo.options(key=s.reveal())("x"),
    **{how: lambda s, how=how: telling(how, s) for how in HOW},
}


def die(text: str) -> None:
    raise OSError(f"a thread of its own, with {text}")


async def stray(text: str) -> None:
    raise OSError(f"nobody waits for this task, with {text}")


async def say(text: str) -> None:
    """Write log lines with it, and leave what dies of it to others."""
    log = logging.getLogger("leaky")
    log.error("using %s for %r", text, {"key": text})
    try:
        raise chained(text)
    except ExceptionGroup:
        log.exception("it failed", stack_info=True)
    thread = threading.Thread(target=die, args=(text,))
    thread.start()
    await asyncio.to_thread(thread.join)
    left = asyncio.create_task(stray(text))
    await asyncio.wait([left])


@app.job(retries=1)
async def leak(place: str, secret: Secret[str]) -> Any:
    """Do the wrong thing."""
    if place in PLACES:
        return await PLACES[place](secret)
    text = secret.reveal()
    match place:
        case "progress":
            report(text)
            await say(text)
        case "exports":
            export(text, text[:200])
            export({"key": [text, {text: text}]})
            export(f"https://bank/?key={urllib.parse.quote(text)}", kind="url")
            export(text.encode(), "bytes")
            export("x" * 80_000 + text, "large")
        case "chained":
            raise chained(text)
        case "retried":
            raise RuntimeError(text)
        case "result":
            return Secret({"session": text})
        case "plain result":
            return {"session": text}
        case _:
            raise Permanent(f"{place} with {text}")
    return None
