"""A table that is wrong cannot be built; a table that is built cannot be changed."""

from __future__ import annotations

import copy
import dataclasses
from enum import Enum, StrEnum
from typing import Any

import pytest

from holdfast.machines import JOB, InvalidTable, Row, Table


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    FLASHING = "flashing"


class Press(StrEnum):
    ON = "on"
    GO = "go"
    STOP = "stop"


class Other(StrEnum):
    RED = "red"
    GO = "go"


GOOD = [
    (None, Press.ON, Light.RED),
    (Light.RED, Press.GO, Light.GREEN),
    (Light.GREEN, Press.STOP, Light.RED),
    (Light.FLASHING, Press.STOP, Light.RED),
]


def build(lines: list[Any], qualifiers: dict[Any, Any] | None = None) -> Table[Light, Press]:
    return Table(
        "Light",
        states=Light,
        events=Press,
        lines=lines,
        qualifiers={Light.FLASHING: Light.GREEN} if qualifiers is None else qualifiers,
    )


def test_good_rows_make_a_table() -> None:
    table = build(GOOD)
    assert table.advance("red", "go") is Light.GREEN
    assert table.rows()[0] == Row(None, Press.ON, Light.RED)
    assert repr(table) == "<Table Light: 3 states, 3 events, 4 rows>"


@pytest.mark.parametrize("target", [Light.RED, Light.GREEN])
def test_two_rows_for_one_cell_are_refused_even_if_they_agree(target: Light) -> None:
    with pytest.raises(InvalidTable, match="two rows for red × go"):
        build([*GOOD, (Light.RED, Press.GO, target)])


def test_two_starts_on_one_event_are_refused() -> None:
    with pytest.raises(InvalidTable, match=r"two rows for \(initial\) × on"):
        build([*GOOD, (None, Press.ON, Light.GREEN)])


def test_a_state_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(InvalidTable, match="nothing reaches flashing"):
        build(GOOD, qualifiers={})


def test_states_that_only_reach_each_other_are_refused() -> None:
    lines = [
        (None, Press.ON, Light.RED),
        (Light.GREEN, Press.GO, Light.FLASHING),
        (Light.FLASHING, Press.STOP, Light.GREEN),
    ]
    with pytest.raises(InvalidTable, match="nothing reaches green, flashing"):
        build(lines, qualifiers={})


def test_a_table_without_a_start_is_refused() -> None:
    with pytest.raises(InvalidTable, match="nothing reaches red, green"):
        build(GOOD[1:])


def test_an_event_that_no_row_takes_is_refused() -> None:
    with pytest.raises(InvalidTable, match="no row takes stop"):
        build([GOOD[0], GOOD[1], (Light.GREEN, Press.GO, Light.RED), (Light.FLASHING, Press.GO, Light.RED)])


@pytest.mark.parametrize(
    "line",
    [
        ("red", Press.GO, Light.GREEN),
        (Light.RED, "go", Light.GREEN),
        (Light.RED, Press.GO, "green"),
        (Other.RED, Press.GO, Light.GREEN),
        (Light.RED, Other.GO, Light.GREEN),
        (Light.RED, None, Light.GREEN),
        (Light.RED, Press.GO, None),
        (None, Press.GO, None),
    ],
    ids=str,
)
def test_a_row_of_anything_but_members_is_refused(line: tuple[object, object, object]) -> None:
    with pytest.raises(InvalidTable, match="is not one of"):
        build([*GOOD, line])


def test_a_qualifier_with_rows_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidTable, match="the rows of flashing differ from those of green"):
        build([*GOOD, (Light.FLASHING, Press.GO, Light.GREEN)])


def test_a_qualifier_of_a_qualifier_is_refused() -> None:
    with pytest.raises(InvalidTable, match="flashing cannot qualify flashing"):
        build(GOOD, qualifiers={Light.FLASHING: Light.FLASHING})


def test_a_row_into_a_qualifier_is_refused() -> None:
    lines = [*GOOD[:2], (Light.GREEN, Press.STOP, Light.FLASHING), (Light.FLASHING, Press.STOP, Light.FLASHING)]
    with pytest.raises(InvalidTable, match="flashing is a qualifier of green, so no row may enter it"):
        build([*lines, (Light.RED, Press.ON, Light.RED)])


@pytest.mark.parametrize("line", [(Light.RED, Press.GO), (Light.RED,), (Light.RED, Press.GO, Light.RED, Light.RED)])
def test_a_row_of_another_length_is_refused(line: tuple[object, ...]) -> None:
    with pytest.raises(InvalidTable, match=r"a row is \(state, event, target\)"):
        build([*GOOD, line])


@pytest.mark.parametrize("qualifiers", [{Light.FLASHING: "green"}, {"flashing": Light.GREEN}, {Other.RED: Light.GREEN}])
def test_a_qualifier_of_anything_but_states_is_refused(qualifiers: dict[Any, Any]) -> None:
    with pytest.raises(InvalidTable, match="are not both states"):
        build(GOOD, qualifiers=qualifiers)


class Loud(Enum):
    RED = "red"


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidTable, match="states and events are StrEnums"):
        Table("Loud", states=Loud, events=Press, lines=[])  # type: ignore[type-var]


def test_two_enumerations_of_one_name_are_still_two() -> None:
    light = StrEnum("Light", ["ON", "GO", "STOP"])  # type: ignore[misc]
    rows = [(None, light.ON, Light.RED), (Light.RED, light.GO, Light.GREEN), (Light.GREEN, light.STOP, Light.FLASHING)]
    table = Table("Light", states=Light, events=light, lines=rows)
    assert ": go" in table.mermaid()


def test_a_copy_of_a_table_is_the_table() -> None:
    assert copy.deepcopy(JOB) is JOB


def test_a_table_cannot_be_changed_after_it_is_built() -> None:
    rows = JOB.rows()
    rows.clear()
    JOB.allowed("queued").clear()
    with pytest.raises(dataclasses.FrozenInstanceError):
        JOB.name = "Other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        JOB.qualifiers["queued"] = "running"  # type: ignore[index]
    assert len(JOB.rows()) == 22
    assert JOB.advance("queued", "job_running") == "running"
