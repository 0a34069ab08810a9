"""No log line of Holdfast contains a secret, whatever its source (rule S14)."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import secrets
from collections.abc import Iterator

import pytest

from holdfast import App, Secret
from holdfast.authoring.redaction import LOGGED_MAX, redact_log_line
from holdfast.client.logs import SecretFilter
from support.codec import HmacCodec
from support.stories import drain, play, quick
from support.web import near


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a program that has set up logging itself would have in its log."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)


class TalkativeCodec(HmacCodec):
    """Its errors show what they should not."""

    def encrypt(self, data: bytes) -> bytes:
        raise RuntimeError(f"cannot encrypt {data!r}")


def test_an_error_of_the_server_with_a_secret_in_it_is_logged_without(lines: io.StringIO) -> None:
    token = f"sk-live-{secrets.token_hex(16)}"
    app = App("shop", config=quick("memory:"), codec=TalkativeCodec(b"k" * 32))

    @app.job
    async def pay(key: Secret[str]) -> None: ...

    async def story() -> None:
        async with near(app) as web:
            body = {"plugin_id": "shop", "entry_id": "pay", "args": {"key": token}}
            answer = await web.post("/api/v1/runs", json=body)
            assert answer.status_code == 500
            assert answer.json()["id"] in lines.getvalue(), "the operator finds it by its id"
            assert token not in answer.text
        await app.aclose()

    play(story())
    assert "RuntimeError: cannot encrypt b'\"[secret]\"'" in lines.getvalue()
    assert token not in lines.getvalue()


def test_a_task_that_a_job_left_behind_dies_without_showing_a_secret(
    lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = f"p&ss {secrets.token_hex(16)}"
    monkeypatch.setenv("SHOP_KEY", token)
    app = App("shop", config=quick("memory:"))

    async def stray(text: str) -> None:
        raise OSError(f"with {text!r}")

    @app.job
    async def pay(key: Secret[str]) -> None:
        await asyncio.wait([asyncio.create_task(stray(key.reveal()))])

    async def story() -> None:
        await pay.astart(Secret.env("SHOP_KEY"))
        await drain(app)
        gc.collect()
        await app.aclose()

    play(story())
    assert "Task exception was never retrieved" in lines.getvalue()
    assert "OSError: with '[secret]'" in lines.getvalue()
    assert token not in lines.getvalue()


def test_a_line_without_secrets_stays_as_it_is_and_one_that_cannot_be_read_is_not_shown() -> None:
    known = Secret(f"sk-{secrets.token_hex(16)}").reveal()
    error = (ValueError, ValueError("no"), None)
    record = logging.LogRecord("shop", logging.ERROR, "", 1, "%d jobs", (7,), error)
    assert SecretFilter().filter(record)
    assert (record.msg, record.args, record.exc_info) == ("%d jobs", (7,), error), "handlers still get its parts"
    broken = logging.LogRecord("shop", logging.ERROR, "", 1, "%d jobs", (known,), None)
    assert SecretFilter().filter(broken)
    assert known not in broken.getMessage()
    assert "could not be checked for secrets: TypeError" in broken.getMessage()


def test_secrets_that_clients_send_do_not_displace_those_of_the_app() -> None:
    app = App("shop", config=quick("memory:"), codec=HmacCodec(b"k" * 32))

    @app.job
    async def work(password: Secret[str]) -> None:
        pass

    own = f"own-{secrets.token_hex(16)}"
    Secret(own)
    signature = app.entry(work).signature
    sent = [f"sent-{number}-{secrets.token_hex(8)}" for number in range(LOGGED_MAX + 10)]
    for text in sent:
        signature.encode((), {"password": text})
    assert redact_log_line(f"a {own} b") == "a [secret] b"
    assert redact_log_line(f"a {sent[-1]} b") == "a [secret] b", "the newest of them are redacted too"
