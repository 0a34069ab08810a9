"""What others have written is printed so that a terminal does not obey it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import App, export
from holdfast.cli.main import main
from holdfast.cli.terminal_text import safe_text
from support.stories import drain, play, quick

EVIL = "\x1b]52;c;AAAA\x07 \x9b2J \u202etxt\u2066 \x08\r"
UNSAFE = set(EVIL) - set(" ]52;cA2Jtx")


def test_control_characters_are_shown_and_text_stays() -> None:
    assert safe_text("a\tb\nç 漢字 🙂\u3000") == "a\tb\nç 漢字 🙂\u3000"
    shown = safe_text(EVIL)
    assert not UNSAFE & set(shown)
    assert json.loads(f'"{shown}"') == EVIL


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_command_prints_an_escape_that_a_client_has_sent(tmp_path: Path, form: list[str]) -> None:
    app = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}"))

    @app.step
    async def told(text: str) -> str:
        return text

    @app.job
    async def evil(text: str) -> None:
        export(text, text)
        await told(text)
        raise ValueError(text)

    async def story() -> str:
        chosen = evil.options(queue=EVIL, group=EVIL, attributes={"name": EVIL}, key=EVIL)
        run = await chosen.astart(EVIL)
        await drain(app)
        await app.aclose()
        return str(run.id)

    run = play(story())
    url = ["--url", f"sqlite:///{tmp_path / 'jobs.db'}"]
    commands = [["show", run], ["explain", run], ["exports", run], ["runs"], ["events", run], ["follow", run]]
    for command in [*commands, ["stats"], ["runs", "--queue", EVIL]]:
        done = CliRunner().invoke(main, [*command, *form, *url])
        assert done.output
        assert not UNSAFE & set(done.output), command
        assert done.exception is None or isinstance(done.exception, SystemExit)
