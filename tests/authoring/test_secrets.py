"""Secrets are stored as references or ciphertext, compared by identity, and revealed only where they are used."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import secrets as randomness
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import (
    App,
    IdempotencyConflict,
    InvalidArguments,
    NotDone,
    Permanent,
    RunFailed,
    Secret,
    SecretUnavailable,
    export,
    gather,
    progress,
    wait_for,
)
from holdfast.authoring import redaction
from holdfast.authoring.redaction import MARK
from holdfast.client.views import Creation
from support.codec import HmacCodec
from support.stories import drain, play, quick


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has revealed in one test is no secret in the next."""
    monkeypatch.setattr(redaction, "_outside", redaction.Revealed())


@pytest.fixture
def token() -> str:
    return f"sk-live-{randomness.token_hex(16)}"


@pytest.fixture
def sealed(app: App) -> Iterator[App]:
    app.codec = HmacCodec(b"k" * 32)
    yield app
    app.codec = None


class Login(msgspec.Struct):
    user: str
    password: Secret[str]


async def written(app: App, run: str) -> str:
    """Everything that is kept about a run, as text."""
    events = [event.payload for event in await app.aevents(run)]
    exports = [[chunk async for chunk in app.acontent(run, one.number)] for one in await app.aexports(run)]
    return repr((events, await app.aget(run), exports, await app.aevidence(run)))


# What a Secret shows


def test_a_secret_shows_nothing_of_itself(token: str) -> None:
    @dataclasses.dataclass
    class Holder:
        secret: Secret[str]

    one = Secret(token)
    shown = f"{one} {one!r} {one:>20} {str(one)} {[one]} {Holder(one)} {dataclasses.asdict(Holder(one))}" + "%s" % one  # noqa: UP031, RUF010 - every way to show it
    assert token not in shown
    assert str(one) == repr(one) == f"{one}" == "Secret(…)"
    assert not hasattr(one, "__dict__")
    assert copy.deepcopy(one) is copy.copy(one) is one
    for leak in (pickle.dumps, json.dumps, msgspec.json.encode):
        with pytest.raises(TypeError) as raised:
            leak(one)
        assert token not in str(raised.value)
    assert one.reveal() == token
    with pytest.raises(TypeError, match="the value of a Secret must fit in JSON, got object"):
        Secret(object())
    with pytest.raises(ValueError, match="needs the name of an environment variable"):
        Secret.env("A=B")


# References


def test_a_reference_is_kept_by_its_name_and_revealed_where_it_is_used(
    app: App, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @app.step
    async def price(key: Secret[str]) -> int:
        seen.append(key.reveal())
        return 7

    @app.tool
    async def charge(login: Login, cents: int) -> Secret[str]:
        seen.append(login.password.reveal() * (cents == 7))
        return Secret.env("RECEIPT_KEY")

    @app.job
    async def child(keys: list[Secret[str]]) -> str:
        return keys[0].reveal()[:2]

    @app.job
    async def pay(key: Secret[str], spare: Secret[str] | None = None) -> Secret[str]:
        assert spare is None
        await price(key)
        assert await child([key]) == "sk"
        return await charge(Login("ann", key), 7)

    async def story() -> None:
        run = await pay.astart(Secret.env("PAY_KEY"))  # which this process need not have
        (other,) = await app.astart_many(pay, [{"key": Secret.env("PAY_KEY"), "spare": None}])
        monkeypatch.setenv("PAY_KEY", token)
        monkeypatch.setenv("RECEIPT_KEY", "receipt")
        await drain(app)
        result = await run.aresult(timeout=60)
        assert isinstance(result, Secret)
        assert result.reveal() == "receipt"
        assert seen == [token] * 4
        for one in (run.id, other):
            kept = await written(app, one)
            assert token not in kept
            assert "{'$secret': {'env': 'PAY_KEY'}}" in kept
        assert await app.aoutcome(run.id) == {"$secret": {"env": "RECEIPT_KEY"}}
        assert await app.averify() == {}

    play(story())


def test_a_variable_that_is_not_there_fails_the_run_and_says_which(app: App) -> None:
    @app.job
    async def pay(key: Secret[str]) -> str:
        return key.reveal()

    async def story() -> None:
        run = await pay.astart(Secret.env("SURELY_NOT_SET"))
        await drain(app)
        with pytest.raises(
            RunFailed, match="the environment variable SURELY_NOT_SET is not set in this process: set it for"
        ):
            await run.aresult(timeout=60)

    play(story())


def test_a_variable_may_hold_json_where_the_hint_says_more_than_text(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    async def pay(keys: Secret[dict[str, int]]) -> int:
        return sum(keys.reveal().values())

    async def story() -> None:
        monkeypatch.setenv("KEYS", '{"a": 40, "b": 2}')
        monkeypatch.setenv("NO_KEYS", "ab")
        runs = [await app.astart(pay, Secret.env(name)) for name in ("KEYS", "NO_KEYS")]
        await drain(app)
        assert await runs[0].aresult(timeout=60) == 42
        with pytest.raises(RunFailed, match="NO_KEYS does not have the type in the function's hint"):
            await runs[1].aresult(timeout=60)

    play(story())


# Values


def test_without_a_codec_a_value_is_refused_and_nothing_is_stored(app: App, token: str) -> None:
    @app.step
    async def fresh() -> Secret[str]:
        return Secret(token)

    @app.job
    async def pay(key: Secret[str]) -> None: ...

    @app.job
    async def deep(login: Login) -> None: ...

    @app.job
    async def renew() -> None:
        await fresh()

    async def story() -> None:
        starts: list[Any] = [
            lambda: pay.astart(Secret(token)),
            lambda: app.astart(pay, token),  # not said to be one, but the function says so
            lambda: app.astart_many(pay, [{"key": Secret.env("A")}, {"key": Secret(token)}]),
            lambda: app.acreate(Creation(plugin_id="shop", entry_id="pay", args={"key": token})),
            lambda: deep.astart(Login("ann", Secret(token))),
        ]
        for start in starts:
            with pytest.raises(InvalidArguments, match="this app has no codec: use") as raised:
                await start()
            assert token not in str(raised.value)
        with pytest.raises(InvalidArguments, match="a secret is required"):
            await app.astart(deep, {"user": "ann", "password": "secret"})
        assert await app.alist() == []
        run = await renew.astart()
        await drain(app)
        with pytest.raises(RunFailed, match="the result of fresh cannot be stored: a Secret made from a value is"):
            await run.aresult(timeout=60)
        assert token not in await written(app, run.id)

    play(story())


def test_with_a_codec_a_value_is_kept_as_ciphertext_everywhere(sealed: App, token: str) -> None:
    app = sealed
    seen: list[Any] = []

    @app.step
    async def login(user: str, password: Secret[str]) -> Login:
        return Login(user, Secret(password.reveal() + "-session"))

    @app.tool
    async def charge(login: Login, card: Secret[dict[str, int]]) -> Secret[list[str]]:
        seen.append((login.password.reveal(), card.reveal()))
        return Secret([login.password.reveal(), "receipt"])

    @app.job
    async def child(login: Login) -> Secret[str]:
        return login.password

    @app.job
    async def pay(password: Secret[str], card: Secret[dict[str, int]]) -> Secret[list[str]]:
        session = await login("ann", password)
        await wait_for("go")  # it is read from the store again
        assert (await child(session)).reveal() == f"{token}-session"
        return await charge(session, card)

    async def story() -> None:
        run = await pay.astart(Secret(token), Secret({"number": 4242424242}))
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert (await run.aresult(timeout=60)).reveal() == [f"{token}-session", "receipt"]
        assert seen == [(f"{token}-session", {"number": 4242424242})]
        for one in await app.alist():
            kept = await written(app, one.run_id)
            assert "'box'" in kept
            assert token not in kept
            assert "4242424242" not in kept
        with pytest.raises(InvalidArguments, match="password is a secret with another type than <class 'str'>"):
            await app.astart(pay, Secret(7), Secret({"number": 1}))
        app.codec = HmacCodec(b"x" * 32)
        with pytest.raises(SecretUnavailable, match="the app's codec cannot decrypt this secret: ValueError"):
            (await run.aresult(timeout=60)).reveal()
        app.codec = None
        with pytest.raises(SecretUnavailable, match="the app has no codec in this process"):
            (await run.aresult(timeout=60)).reveal()

    play(story())


# Identity


def test_the_same_secret_is_the_same_argument_although_its_ciphertext_is_not(sealed: App, token: str) -> None:
    app = sealed

    @app.job
    async def pay(key: Secret[str]) -> None: ...

    async def story() -> None:
        keyed = pay.options(key="order-1")
        first, again = await keyed.astart(Secret(token)), await keyed.astart(Secret(token))
        assert first.id == again.id
        (event,) = await app.aevents(first.id)
        other, (one,) = await pay.astart(Secret(token)), await app.astart_many(pay, [{"key": Secret(token)}])
        boxes = [(await app.aevents(run))[0].payload["args"]["key"]["$secret"] for run in (first.id, other.id, one)]
        assert len({box["box"] for box in boxes}) == 3
        assert len({box["id"] for box in boxes}) == 1
        assert event.payload["fingerprint"]
        for different in (Secret(f"{token}2"), Secret.env("PAY_KEY")):
            with pytest.raises(IdempotencyConflict):
                await keyed.astart(different)

    play(story())


def test_calls_that_differ_in_their_secrets_alone_are_told_apart_on_replay(sealed: App, token: str) -> None:
    app = sealed
    calls: list[str] = []

    @app.step
    async def ask(key: Secret[str]) -> str:
        calls.append(key.reveal())
        return key.reveal()[-1]

    @app.job
    async def both() -> list[str]:
        keys = [Secret(f"{token}{number}") for number in range(3)]  # made again in each attempt: another ciphertext
        found: list[str] = await gather(*(ask(key) for key in (keys if not calls else reversed(keys))))
        await wait_for("go")
        return found

    async def story() -> None:
        run = await both.astart()
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == ["2", "1", "0"], "in the order of the second attempt, each with its own"
        assert len(calls) == 3

    play(story())


# From outside


def test_json_from_outside_names_no_variable_and_brings_no_box_unless_it_is_allowed(sealed: App, token: str) -> None:
    app = sealed

    @app.job
    async def pay(key: Secret[str], more: Any = None) -> str:
        return str(len(key.reveal())) if more is None else "more"

    async def story() -> None:
        async def create(**args: Any) -> str:
            made = await app.acreate(Creation(plugin_id="shop", entry_id="pay", args=args))
            return made.record.run_id

        run = await create(key=token)  # the value itself: encrypted on arrival
        (event,) = await app.aevents(run)
        box = event.payload["args"]["key"]
        assert token not in str(event.payload)
        for hostile in ({"key": {"$secret": {"env": "HOME"}}}, {"key": token, "more": [{"$secret": {"env": "HOME"}}]}):
            with pytest.raises(InvalidArguments, match="the variable 'HOME' may not be named by clients"):
                await create(**hostile)
        with pytest.raises(InvalidArguments, match="clients cannot send ciphertext"):
            await create(key=box)
        app.env_secrets = frozenset({"HOME"})
        allowed = await create(key={"$secret": {"env": "HOME"}})
        assert (await app.aevents(allowed))[0].payload["args"] == {"key": {"$secret": {"env": "HOME"}}}
        await create(key=token, more={"$secret": "of somebody else", "b": 1})  # only looks like one
        (entry,) = await app.aentries()
        assert entry.parameters["properties"]["key"]["writeOnly"] is True
        await drain(app)
        assert await app.aoutcome(run) == str(len(token))
        app.env_secrets = frozenset()

    play(story())


def test_each_app_keeps_secrets_by_its_own_codec_also_when_it_is_included(sealed: App, token: str) -> None:
    mail = App("mail", config=quick("memory:"), codec=HmacCodec(b"m" * 32))
    app = sealed

    @mail.job
    async def send(key: Secret[str]) -> Secret[str]:
        return Secret(key.reveal() + "!")

    @app.job
    async def order(key: Secret[str]) -> Secret[str]:
        return await send(key)

    app.include(mail)

    async def story() -> None:
        run = await order.astart(Secret(token))
        await drain(app)
        assert (await run.aresult(timeout=60)).reveal() == f"{token}!"

    play(story())


# The net


def test_errors_are_stored_without_the_secrets_that_were_revealed(sealed: App, token: str) -> None:
    app = sealed
    lines = f"-----BEGIN KEY-----\n{token}{'A' * 30}\n-----END KEY-----"

    @app.step(retries=1)
    async def call(key: Secret[str]) -> None:
        raise ConnectionError(f"GET https://bank/?key={key.reveal()} -> 401")

    @app.tool
    def in_thread(key: Secret[str]) -> None:
        raise KeyError(key.reveal())

    charge: Any = in_thread  # a plain function is awaited in an async job

    @app.job(retries=1)
    async def one(key: Secret[str]) -> None:
        await call(key)

    @app.job
    async def two(key: Secret[str]) -> None:
        try:
            await charge(key)
        except Exception as error:
            error.add_note(f"with {key.reveal()}")
            raise ExceptionGroup("both", [error, ValueError(key.reveal())]) from error

    @app.job(retries=1)
    async def three(key: Secret[str]) -> None:
        raise RuntimeError(key.reveal())

    async def story() -> None:
        runs = [await job.astart(Secret(text)) for job in (one, two, three) for text in (token, lines)]
        await drain(app)
        for run in runs:
            kept = await written(app, run.id)
            assert token not in kept
            assert MARK in kept
        with pytest.raises(RunFailed, match=r"key=\[secret\] -> 401"):
            await runs[0].aresult(timeout=60)

    play(story())


def test_a_value_that_holds_a_revealed_secret_is_refused_as_argument_and_result(sealed: App, token: str) -> None:
    app = sealed
    places: dict[str, Any] = {}

    @app.step
    async def echo(text: str) -> str:
        return text

    @app.step
    async def leak(key: Secret[str]) -> dict[str, str]:
        return {"header": f"Bearer {key.reveal()}"}

    @app.job
    async def child(text: str) -> None: ...

    places["argument"] = lambda key: echo(key.reveal())
    places["result"] = leak
    places["child"] = lambda key: child(key.reveal())
    places["wait"] = lambda key: wait_for(key.reveal())
    places["key"] = lambda key: echo.options(key=key.reveal())("text")

    @app.job
    async def pay(place: str, key: Secret[str]) -> None:
        await places[place](key)

    async def story() -> None:
        for place in places:
            run = await pay.astart(place, Secret(token))
            await drain(app)
            with pytest.raises(RunFailed, match="it contains the text of a secret that was revealed: pass or return"):
                await run.aresult(timeout=60)
            assert token not in await written(app, run.id)

    play(story())


def test_a_weak_secret_stops_no_job_that_only_uses_the_word(sealed: App) -> None:
    app = sealed

    @app.step
    async def describe(form: dict[str, str]) -> dict[str, str]:
        return {**form, "password": "kept", "hint": "the password that you chose"}

    @app.job
    async def sign_up(password: Secret[str], pin: Secret[str]) -> dict[str, str]:
        assert (password.reveal(), pin.reveal()) == ("password", "a")
        found = await describe({"password": "a"})
        progress(0.5, message="your password is a good one")
        return found

    async def story() -> None:
        run = await sign_up.astart(Secret("password"), Secret("a"))
        await drain(app)
        assert (await run.aresult(timeout=60))["password"] == "kept"  # noqa: S105 - not one
        assert (await run.arecord()).message == f"your {MARK} is a good one"

    play(story())


def test_what_a_run_reports_and_produces_is_redacted(sealed: App, token: str) -> None:
    app = sealed

    @app.job
    async def tell(key: Secret[str]) -> None:
        text = key.reveal()
        progress(0.5, stage=text, message=f"with {text}", metrics={text: [text], "n": 1})
        export(f"text {text}", f"name {text}")
        export({"json": [text, 1]})
        export(f"https://bank/?key={text}", kind="url")
        export(f"bytes {text}".encode(), "bytes")
        export("x" * 70_000 + text, "large")

    async def story() -> None:
        run = await tell.astart(Secret(token))
        await drain(app)
        await run.aresult(timeout=60)
        kept = await written(app, run.id)
        assert token not in kept
        record = await run.arecord()
        assert (record.stage, record.message) == (MARK, f"with {MARK}")
        assert record.metrics == {MARK: [MARK], "n": 1}
        assert [one.name for one in await app.aexports(run.id)] == [f"name {MARK}", "json", "url", "bytes", "large"]

    play(story())


def test_reconcile_gets_the_secret_and_its_failure_is_redacted(sealed: App, token: str) -> None:
    app = sealed
    asked: list[str] = []

    def look(external_key: str, key: Secret[str]) -> NotDone:
        asked.append(key.reveal())
        raise Permanent(f"no answer for {key.reveal()} and {external_key}")

    @app.tool(timeout=0.01, reconcile=look)
    async def charge(key: Secret[str]) -> None:
        await asyncio.get_running_loop().create_future()
        key.reveal()

    @app.job
    async def pay(key: Secret[str]) -> None:
        await charge(key)

    async def story() -> None:
        run = await pay.astart(Secret(token))
        await drain(app)
        with pytest.raises(RunFailed, match=r"no answer for \[secret\]"):
            await run.aresult(timeout=60)
        assert asked == [token]

    play(story())


def test_what_is_revealed_outside_a_job_is_redacted_inside(app: App, token: str) -> None:
    held = Secret(token).reveal()  # as a client that is made when its module is imported

    @app.job
    async def pay() -> None:
        raise ConnectionError(f"401 for {held}")

    async def story() -> None:
        run = await pay.astart()
        await drain(app)
        assert token not in await written(app, run.id)
        assert (await app.astart(pay)).id, "a job is not refused for what another has revealed"

    play(story())


def test_only_so_many_secrets_are_known_at_once_and_the_oldest_is_forgotten() -> None:
    known = redaction.Revealed()
    for number in range(redaction.TEXTS_MAX + 1):
        known.add(f"secret {number:04}")
    assert "secret 0000" not in known.forms
    assert "secret 0001" in known.forms
    assert "secret%200001" in known.forms
