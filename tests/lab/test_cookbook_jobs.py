"""The jobs of the cookbook, tested with the kit: every crash, every prefix of their histories, and days of waits."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import Secret
from holdfast.testing import HoldfastTestWarning, Lab, World
from support.scripts import ROOT

Load = Callable[[str], ModuleType]
FOLDER = ROOT / "examples" / "cookbook"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Secrets that any program takes, and a ledger that no test should write."""
    for name in ("MODEL_KEY", "WEBHOOK_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """The cookbook gives the kit no reason for a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastTestWarning)
        yield


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that imports a program of the cookbook, for this test alone."""

    def load_program(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"cookbook_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load_program


def survives(lab: Lab, job: Any, *args: Any, **kwargs: Any) -> set[str]:
    """Let the job crash everywhere. Return how the cases ended."""
    return {case.outcome for case in lab.crash_everywhere(job, *args, **kwargs).cases}


def test_every_program_of_the_cookbook_is_tested_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in FOLDER.glob("*.py") if f'loaded("{path.stem}")' not in text] == []


def test_an_approval_waits_three_days_and_pays_once(loaded: Load, lab: Lab, world: World) -> None:
    approval = loaded("approval")
    lab.replace(approval.ask_for_approval, world.tool())
    lab.replace(approval.pay_back, world.tool(lambda _order, cents: f"paid back {cents} cents"))
    begun = lab.now
    late, answered = lab.start(approval.refund, "A1", 5000), lab.start(approval.refund, "B2", 5000)
    lab.until_waiting(answered, "approval")
    answered.signal("approval", {"approved": True, "by": "Ann"})
    assert lab.result(answered) == "paid back 5000 cents"
    assert lab.now == begun
    assert lab.result(late) == "nobody has answered: not paid"
    assert lab.now - begun == timedelta(days=3)
    assert world.calls(approval.pay_back) == [{"order": "B2", "cents": 5000}]
    lab.replays(answered)
    signals = {"approval": {"approved": True, "by": "Ann"}}
    assert survives(lab, approval.refund, "C3", 5000, signals=signals) >= {"same", "asks"}
    assert world.at_most_once(approval.pay_back)


def test_a_saga_books_all_or_nothing(loaded: Load, lab: Lab, world: World) -> None:
    saga = loaded("saga")
    booked: dict[str, str] = {}

    def book(what: str, who: str, city: str) -> str:
        if what == "car" and city == "Oslo":
            raise saga.Permanent("no car is left in Oslo")
        booked[what] = who
        return f"{what}-{city}"

    lab.replace(saga.book, world.tool(book))
    lab.replace(saga.cancel, world.tool(lambda booking: booking))
    run = lab.start(saga.trip, "Ann", "Rome")
    assert lab.result(run) == "booked flight-Rome, hotel-Rome, car-Rome"
    lab.replays(run)
    run = lab.start(saga.trip, "Bob", "Oslo")
    assert lab.result(run) == "not booked: no car is left in Oslo; cancelled hotel-Oslo, flight-Oslo"
    assert [call["booking"] for call in world.calls(saga.cancel)] == ["hotel-Oslo", "flight-Oslo"]
    lab.replays(run)


def test_a_saga_survives_every_crash_and_looks_up_what_it_booked(loaded: Load, lab: Lab, tmp_path: Path) -> None:
    saga = loaded("saga")  # its tools write to a file of this test, which `look_up` reads
    report = lab.crash_everywhere(saga.trip, "Ann", "Rome")
    assert {case.outcome for case in report.cases} <= {"same", "not reached"}, "it never asks a person"
    assert "booked flight in Rome" in (tmp_path / "ledger").read_text()


def test_a_fan_out_counts_every_city_after_every_crash(loaded: Load, lab: Lab, world: World) -> None:
    census = loaded("fan_out")
    lab.replace(census.count, world.tool(lambda city: 1000 * len(city)))
    cities = ["Rome", "Oslo", "Bern"]
    run = lab.start(census.census, cities)
    assert lab.result(run) == 12_000
    lab.replays(run)
    assert survives(lab, census.census, cities) <= {"same", "not reached"}


def test_a_daily_report_is_sent_once_a_day(loaded: Load, lab: Lab, world: World) -> None:
    daily = loaded("daily")
    lab.replace(daily.send, world.tool(lambda day, _figures: f"sent {day}"))
    lab.use(daily.app)
    day = date(2026, 11, 15)
    run = daily.trigger(day)
    assert daily.trigger(day).id == run.id
    assert lab.result(run) == "sent 2026-11-15"
    assert world.calls(daily.send) == [{"day": day, "figures": {"orders": 15, "cents": 1500}}]
    lab.replays(run)
    assert survives(lab, daily.report, day) >= {"same", "asks"}


def test_a_webhook_is_tried_for_days_and_given_up(loaded: Load, lab: Lab, world: World) -> None:
    webhook = loaded("webhook")
    answers: Iterator[OSError | int] = iter([OSError("no answer"), OSError("no answer"), 204])

    def post(url: str, event: str, data: dict[str, Any], key: Secret[str]) -> int:
        assert (url, event, data, key.reveal()) == ("https://example.com", "paid", {}, "any")
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    lab.replace(webhook.post, world.tool(post))
    begun = lab.now
    key = Secret.env("WEBHOOK_KEY")
    run = lab.start(webhook.deliver, "https://example.com", "paid", {}, key=key)
    assert lab.result(run) == "delivered: 204"
    assert world.count(webhook.post) == 3
    assert len({act.key for act in world.acts}) == 1, "the receiver can drop a second delivery"
    assert timedelta(0) < lab.now - begun < timedelta(minutes=1)
    lab.replays(run)


def test_an_agent_pays_after_an_approval_and_only_once(loaded: Load, lab: Lab, world: World) -> None:
    agent = loaded("agent")
    lab.replace(agent.think, world.tool(lambda _goal, heard, _key: agent.SCRIPT[len(heard)]))
    lab.replace(agent.pay, world.tool(lambda to, _cents: f"paid {to}"))
    key = Secret.env("MODEL_KEY")
    run = lab.start(agent.agent, "Pay Acme", key=key)
    lab.until_waiting(run, "approve:2")
    run.signal("approve:2", payload=True)
    assert lab.result(run) == "Acme is paid."
    assert world.calls(agent.pay) == [{"to": "Acme", "cents": 1900}]
    lab.replays(run)
    assert survives(lab, agent.agent, "Pay Acme", key=key, signals={"approve:2": True}) >= {"same", "asks"}
    assert world.at_most_once(agent.pay)


def test_an_agent_that_is_not_approved_does_not_pay(loaded: Load, lab: Lab, world: World) -> None:
    agent = loaded("agent")
    lab.replace(agent.think, world.tool(lambda _goal, heard, _key: agent.SCRIPT[len(heard)]))
    lab.replace(agent.pay, world.tool())
    begun = lab.now
    assert lab.result(lab.start(agent.agent, "Pay Acme", key=Secret.env("MODEL_KEY"))) == "Acme is paid."
    assert lab.now - begun >= timedelta(days=1)
    assert world.count(agent.pay) == 0
