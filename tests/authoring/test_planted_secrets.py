"""Fifty secrets are planted where code leaks them, and none is found anywhere that is kept or shown (rule S14)."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import App, Secret
from holdfast.cli.main import main
from support.postgres import fresh_url
from support.scripts import load
from support.shell import Shell
from support.stories import play, quick
from support.web import near

TARGET = Path(__file__).with_name("leaky_shop.py")
PLACES = [
    *("argument", "tool", "child", "child fails", "thread", "late", "late error", "plain argument", "plain child"),
    *("wait", "key", "plain", "repr", "json", "url", "base64", "long", "progress", "exports", "chained", "retried"),
    *("result", "plain result", "anything else", "argument"),
]


def planted() -> list[str]:
    """Make one for each place and for each way to keep it: keys, and some that look different when they are quoted."""
    kinds = [
        lambda: f"sk-live-{secrets.token_hex(16)}",
        lambda: f'p&ss "{secrets.token_hex(8)}" wörd/{secrets.token_hex(8)}',
        lambda: f"-----BEGIN KEY-----\n{secrets.token_hex(24)}\n{secrets.token_hex(24)}\n-----END KEY-----",
    ]
    return [kinds[number % 3]() for number in range(2 * len(PLACES))]


def forms(text: str) -> list[bytes]:
    """Return the forms of a secret to look for, and each of its lines that no other secret has."""
    lines = [line for line in text.splitlines() if "---" not in line]
    found = {text, *lines, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
    found |= {quote(text), quote(text, safe=""), quote_plus(text), base64.b64encode(text.encode()).decode()}
    return [form.encode() for form in found]


def everything_in(url: str, folder: Path) -> bytes:
    """Every byte that is kept: files, write-ahead log, blobs, effects; or every row of every table."""
    kept = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    if url.startswith("postgresql"):
        schema = url.partition("schema=")[2].partition("&")[0]
        with psycopg.connect(url.partition("?")[0]) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
            assert len(tables) > 5
            for (table,) in tables:
                rows = connection.execute(f'SELECT t::text FROM "{schema}"."{table}" t').fetchall()  # type: ignore[arg-type,unused-ignore]
                kept += b"\n".join(row.encode() for (row,) in rows)
                raw = connection.execute(f'SELECT * FROM "{schema}"."{table}"').fetchall()  # type: ignore[arg-type,unused-ignore]
                kept += b"\n".join(cell for row in raw for cell in row if isinstance(cell, bytes))
    return kept


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_none_of_fifty_planted_secrets_is_kept_or_shown(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    shell = Shell(folder)
    url = fresh_url() if store == "postgres" else shell.environment["HOLDFAST_URL"]
    texts, key = planted(), secrets.token_hex(32)
    assert len(texts) == 50
    monkeypatch.setenv("LEAKY_KEY", key)
    shell.environment |= {"HOLDFAST_URL": url, "LEAKY_KEY": key, "PYTHONPATH": str(TARGET.parents[1])}
    shell.environment |= {"HOLDFAST_EFFECTS": f"file://{folder / 'effects'}", "HOLDFAST_BLOBS": str(folder / "blobs")}
    shell.environment |= {f"PLANTED_{number}": text for number, text in enumerate(texts)}
    runs = play(started(url, texts))
    output = worked(shell)
    output += "".join(said(shell, store, run) for run in (runs if store == "sqlite" else runs[::25]))
    output += shell.run("runs", "--json", "--limit", "100")
    assert all(word in output for word in ("[secret]", '"$secret"', '"box"'))
    for line in (
        "using [secret] for",
        "it failed",
        "a thread of its own, with [secret]",
        "for this task, with [secret]",
    ):
        assert line in output, "the worker redacts log lines of every logger"
    kept = everything_in(url, folder) + output.encode() + play(shown(url, runs))
    assert kept.count(b"[secret]") > 50
    found = [text for text in texts if any(form in kept for form in forms(text))]
    assert found == []


def said(shell: Shell, store: str, run: str) -> str:
    """What the command line says of a run; on files in this process, for a command never closes its connections."""
    words = [[command, run, *more] for command in ("show", "events", "explain") for more in ([], ["--json"])]
    if store == "postgres":
        return "".join(shell.run(*one) for one in words)
    url = shell.environment["HOLDFAST_URL"]
    return "".join(CliRunner().invoke(main, [*one, "--url", url], catch_exceptions=False).output for one in words)


async def started(url: str, texts: list[str]) -> list[str]:
    """Start a run for each: the first half by reference, the second with the secret itself."""
    app = App("leaky", config=quick(url))
    app.include(load(TARGET).app)
    try:
        names = []
        for number, text in enumerate(texts):
            secret = Secret.env(f"PLANTED_{number}") if number < len(PLACES) else Secret(text)
            names.append((await app.astart("leak", PLACES[number % len(PLACES)], secret)).id)
    finally:
        await app.aclose()
    return names


def worked(shell: Shell) -> str:
    """Run them, in a process of its own; and one more from the command line, whose result is shown."""
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", str(TARGET), "--until-idle"],
        cwd=shell.folder, env=shell.environment, capture_output=True, text=True, check=True, timeout=110,
    )  # fmt: skip
    refused = shell.ran("start", str(TARGET), "leak", "place=result", "secret=plain text")
    assert refused.returncode == 2
    assert "name the variable that has it, as in secret=env:STRIPE_KEY" in refused.stderr
    again = ["start", str(TARGET), "leak", "place=result", "secret=env:PLANTED_0", "--key", "once"]
    shell.run(*again)
    shell.run("worker", str(TARGET), "--until-idle")
    return ran.stdout + ran.stderr + shell.run(*again, "--wait", "50") + shell.run(*again, "--wait", "50", "--json")


async def shown(url: str, runs: list[str]) -> bytes:
    """Everything that programs are given."""
    app = App("leaky", config=quick(url))
    given: list[Any] = []
    try:
        for run in runs:
            record = await app.aget(run)
            given += [record, await app.aevents(run), await app.aoutcome(run), await app.aevidence(run)]
            for one in await app.aexports(run):
                given += [one, *[piece async for piece in app.acontent(run, one.number)]]
        given += await answered(app, runs)
        ended = {record.status.value for record in given if hasattr(record, "status")}
        assert ended == {"succeeded", "failed"}, "a place that leaks ends in one of these ways"
    finally:
        await app.aclose()
    return repr(given).encode() + b"".join(piece for piece in given if isinstance(piece, bytes))


async def answered(app: App, runs: list[str]) -> list[bytes]:
    """Everything that is given over HTTP."""
    async with near(app) as web:
        paths = [f"/runs/{run}{part}" for run in runs for part in ("", "/events?limit=100", "/exports", "/explain")]
        paths += [f"/runs/{run}/exports/1/content" for run in runs] + ["/runs?limit=100", "/entries", "/stats"]
        answers = [await web.get(f"/api/v1{path}") for path in paths]
    assert sum(answer.status_code == 200 for answer in answers) > 2 * len(runs)
    return [answer.content for answer in answers]
