"""Wrong use of the kit: each error says what is wrong, and what to pass."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App
from holdfast.errors import InvalidArguments
from holdfast.testing import Lab, World
from support import lab_shop as shop


def refused(act: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        act(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["oracle", "", None, 5])
def test_an_unknown_store_is_refused(kind: Any) -> None:
    assert f"store: must be 'memory', 'sqlite', 'postgres' or a URL postgresql://…, got {kind!r}" in refused(Lab, kind)


def test_a_first_time_without_a_zone_is_refused() -> None:
    assert "start_at: must be a datetime with a time zone" in refused(Lab, start_at="2027-01-01")


def test_only_jobs_are_started(lab: Lab) -> None:
    for wrong in (shop.charge, lambda: None, "checkout", None):
        assert "job: must be a function with @app.job" in refused(lab.start, wrong)
        assert "job: must be a function with @app.job" in refused(lab.crash_everywhere, wrong)
    assert "missing a required argument: 'order'" in refused(lab.start, shop.checkout)
    assert "app: must be an App" in refused(lab.use, shop)


def test_only_runs_of_the_lab_are_taken(lab: Lab) -> None:
    with Lab() as other:
        run = other.start(shop.dated)
    acts: list[Any] = [lab.result, lab.until_waiting, lab.history, lab.replays, lab.golden]
    for act in acts[:4]:
        assert "run: must be what lab.start returned, got None" in refused(act, None)
        assert "was not started in this lab" in refused(act, run)
    assert "key: must be the key of a wait" in refused(lab.until_waiting, lab.start(shop.dated), 5)


def test_a_closed_lab_says_so() -> None:
    lab = Lab()
    run = lab.start(shop.dated)
    lab.close()
    lab.close()
    for act, given in ((lab.start, shop.dated), (lab.advance, "1d"), (lab.result, run), (lab.use, shop.app)):
        assert "lab: is closed" in refused(act, given)


@pytest.mark.parametrize("duration", ["2 days", -1, "", None, float("nan")])
def test_what_is_not_a_duration_is_refused(lab: Lab, duration: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        lab.advance(duration)


def test_a_stand_in_takes_the_arguments_of_the_tool(lab: Lab, world: World) -> None:
    assert "fake: must be a function, got 'receipt'" in refused(lab.replace, shop.charge, "receipt")
    assert "fake: must be a function, got 'receipt'" in refused(world.tool, "receipt")
    text = "takes (order), and charge is called with (card, cents)"
    assert text in refused(lab.replace, shop.charge, lambda order: order)
    assert text in refused(lab.replace, shop.charge, world.tool(lambda order: order))
    lab.replace(shop.charge, lambda number, cents: f"{number} {cents}")  # in their order
    lab.replace(shop.charge, lambda **all_of_them: str(all_of_them))
    lab.replace(shop.charge, world.tool())


def test_a_stand_in_may_leave_out_what_has_a_default(lab: Lab) -> None:
    app = App("defaults", "memory:")

    @app.tool
    async def send(text: str, colour: str = "black") -> str:
        return f"{text} in {colour}"

    @app.job
    async def job() -> str:
        return await send("news")

    lab.replace(send, lambda text: f"sent {text}")
    assert lab.result(lab.start(job)) == "sent news"


def test_the_options_of_crashes_are_checked(lab: Lab) -> None:
    assert "signals: must be a dict" in refused(lab.crash_everywhere, shop.plain, 1, signals=["shipped"])
    for only in (3, (1,), (1, "sometimes"), ("error", 1)):
        assert "only: must be the number of a commit and one of" in refused(
            lab.crash_everywhere, shop.plain, 1, only=only
        )


def test_a_world_names_the_tools_that_it_has(world: World) -> None:
    assert "tool: must be a step, a tool or its name" in refused(world.calls, 5)
    assert "no stand-in for 'charge'; it has: tool" in refused(world.count, shop.charge)
