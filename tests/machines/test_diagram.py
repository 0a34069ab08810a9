"""The drawings say what the tables say: each is read back and compared with the rows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast.machines import JOB, READY, RUN, Table
from support import spec
from support.scripts import ROOT, load

TABLES = pytest.mark.parametrize("table", [JOB, RUN, READY], ids=["job", "run", "ready"])
Edges = set[tuple[str, str, str]]


def edges(table: Table[Any, Any]) -> Edges:
    """(from, event, to); where states are asked for by name the event says nothing and is left out."""
    by_name = table.states is table.events
    return {(row.state or "", "" if by_name else row.event.value, row.target.value) for row in table.rows()}


@TABLES
def test_mermaid_holds_exactly_the_rows(table: Table[Any, Any]) -> None:
    lines = table.mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    drawn: Edges = set()
    ends: set[str] = set()
    for line in lines[1:]:
        found = re.fullmatch(r"    (\[\*\]|\w+) --> (\[\*\]|\w+)(?: : ([\w, ]+))?", line)
        assert found, line
        source, target, label = found.groups()
        if target == "[*]":
            ends.add(source)
            continue
        drawn |= {("" if source == "[*]" else source, event, target) for event in (label or "").split(", ")}
    assert drawn == edges(table)
    assert ends == table.final


@TABLES
def test_dot_holds_exactly_the_rows(table: Table[Any, Any]) -> None:
    text = table.dot()
    assert text.startswith(f'digraph "{table.name}" {{')
    assert text.endswith("}")
    drawn: Edges = set()
    for source, target, label in re.findall(r'^    "(\w*)" -> "(\w+)"(?: \[label="([^"]*)"\])?;$', text, re.MULTILINE):
        drawn |= {(source, event, target) for event in label.split("\\n")}
    assert drawn == edges(table)
    doubled = set(re.findall(r'^    "(\w+)" \[shape=doublecircle', text, re.MULTILINE))
    dashed = set(re.findall(r'^    "(\w+)" \[.*dashed', text, re.MULTILINE))
    assert doubled == table.final
    assert dashed == set(table.qualifiers)


@TABLES
def test_markdown_shows_every_cell_and_a_dash_for_the_refused(table: Table[Any, Any]) -> None:
    heading, _, *lines = [line.strip("| ").split(" | ") for line in table.markdown().splitlines()]
    cells = {
        (line[0].strip("*"), event): target
        for line in lines
        for event, target in zip(heading[1:], line[1:], strict=True)
    }
    starts = ["(initial)"] if table is JOB else []
    assert len(cells) == {"Job": 90, "Run": 49, "ReadyState": 25}[table.name]
    legal = {(row.state or "(initial)", row.event): row.target for row in table.rows() if row.state or starts}
    assert {cell: target for cell, target in cells.items() if target != "–"} == legal


@TABLES
def test_the_terminal_table_names_every_row_under_its_state(table: Table[Any, Any]) -> None:
    state = ""
    drawn: Edges = set()
    for line in table.text().splitlines()[2:]:
        label = line[2:].split(" ")[0]
        state = label or state
        if " → " in line:
            event, targets = line.rsplit("→", 1)
            name = event.split()[-1] if table is JOB else ""
            drawn |= {("" if state == "(initial)" else state, name, target.strip()) for target in targets.split(",")}
    assert drawn == edges(table)
    finals = {line.split()[0] for line in table.text().splitlines() if line.endswith("is final")}
    assert finals == table.final


def test_the_headlines_count_the_cells() -> None:
    assert JOB.text().splitlines()[0] == "Job: 8 states, 22 legal cells of 90, all others refused"
    assert RUN.text().splitlines()[0] == "Run: 7 states, 9 legal cells of 49, all others refused"
    assert READY.text().splitlines()[0] == "ReadyState: 5 states, 22 legal cells of 25, all others refused"


@TABLES
def test_the_plain_description_is_json_and_complete(table: Table[Any, Any]) -> None:
    described = json.loads(json.dumps(table.as_dict()))
    assert [(row["from"], row["event"], row["to"]) for row in described["rows"]] == table.rows()
    names = {
        "Job": (spec.JOB_STATES, spec.JOB_EVENTS),
        "Run": (spec.RUN_STATES, spec.RUN_STATES),
        "ReadyState": (spec.READY_STATES, spec.READY_STATES),
    }
    assert (described["states"], described["events"]) == names[table.name]
    assert set(described["final"]) == table.final
    assert described["qualifiers"] == dict(table.qualifiers)
    assert described["machine"] == table.name


def test_the_page_of_states_is_current() -> None:
    page = ROOT / "docs" / "reference" / "states.md"
    made = load(ROOT / "tools" / "write_docs.py").states_page()
    assert page.read_text() == made, "docs/reference/states.md is not current: run `make docs`"


@TABLES
def test_the_picture_holds_exactly_the_rows(table: Table[Any, Any]) -> None:
    svg = load(ROOT / "tools" / "diagrams.py").state_picture(table)
    drawn: Edges = set()
    for source, target, label in re.findall(r"<title>(\S+) → (\w+): ([\w, ]*)</title>", svg):
        drawn |= {("" if source == "●" else source, event, target) for event in label.split(", ")}
    assert drawn == edges(table)
    assert svg.count('class="box final"') == len(table.final)
