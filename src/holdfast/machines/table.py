"""A state machine as a value: rows in, a checked look-up out.

A `Table` is built once, at import, from rows ``(state, event, target)``. Building refuses hidden mistakes:
two rows for one cell, an unreachable state, a name that is not a member, an event that no row takes. After that,
`advance` is one dictionary look-up, the drawings use the same rows, and nothing can be added.

A *qualifier* is a state that no row enters. It is another name under which a base state is shown. Its rows must equal
those of its base, so it does not change what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, NamedTuple, NoReturn, TypeVar, cast

from holdfast.errors import InvalidTable, InvalidTransition, TransitionRefused
from holdfast.machines import diagram

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class Row(NamedTuple, Generic[S, E]):
    """One legal cell: in `state` (None before the first event), `event` leads to `target`."""

    state: S | None
    event: E
    target: S


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table(Generic[S, E]):
    """A checked transition table; see the module's docstring.

    Args:
        name: the machine's name; every refusal shows it.
        states: enumeration of all states.
        events: enumeration of all events. A machine that is asked for its next state by name (Run, ReadyState) passes
            the same enumeration twice.
        lines: the rows, grouped by state. A row that starts with None says how a new machine begins.
        qualifiers: states that no row enters, each with the base state it is shown instead of.
        refusal: the error that `advance` raises.

    Raises:
        InvalidTable: the rows do not make a machine.
    """

    name: str
    states: type[S]
    events: type[E]
    lines: Iterable[tuple[S | None, E, S]]
    qualifiers: Mapping[S, S] = field(default_factory=dict)
    refusal: type[TransitionRefused] = InvalidTransition
    _rows: tuple[Row[S, E], ...] = field(init=False)
    _cells: Mapping[tuple[str | None, str], S] = field(init=False)

    def __post_init__(self) -> None:
        """Check the rows and build the look-up."""
        for kind in (self.states, self.events):
            if not issubclass(kind, StrEnum):
                raise InvalidTable(f"{self.name}: states and events are StrEnums, got {kind!r}")
        rows = tuple(self._row(line) for line in self.lines)
        cells: dict[tuple[str | None, str], S] = {}
        for row in rows:
            self._refuse_unknown_names(row)
            cell = (row.state, row.event)
            if cell in cells:
                raise InvalidTable(f"{self.name}: two rows for {_shown(row.state)} × {row.event}")
            cells[cell] = row.target
        object.__setattr__(self, "lines", rows)
        object.__setattr__(self, "qualifiers", MappingProxyType(dict(self.qualifiers)))
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_cells", cells)
        self._refuse_qualifiers_that_differ()
        self._refuse_unreachable_states()
        self._refuse_unused_events()

    def advance(self, current: S | str | None, event: E | str) -> S:
        """Return the state that `event` leads to from `current`; refuse everything that is not a row.

        Members and wire names are taken alike. A refusal changes nothing: the table is a value and holds no state.

        Raises:
            TransitionRefused: no such cell; of the class the table was built with: `InvalidTransition` for Job and
                ReadyState, `InvalidRunTransition` for Run.
        """
        try:
            return self._cells[current, event]
        except (KeyError, TypeError):  # TypeError: something unhashable was passed for a name
            self._refuse(current, event)

    def rows(self) -> list[Row[S, E]]:
        """List every legal cell, in the order of the specification."""
        return list(self._rows)

    def allowed(self, current: S | str | None) -> dict[E, S]:
        """Map every event that `current` takes to the state it leads to."""
        return {row.event: row.target for row in self._rows if row.state == current}

    @property
    def final(self) -> frozenset[S]:
        """Return the states that no row leaves."""
        return frozenset(self.states) - {row.state for row in self._rows if row.state is not None}

    def text(self) -> str:
        """Draw the table for a terminal."""
        return diagram.text(self.sketch())

    def markdown(self) -> str:
        """Draw the table as Markdown, illegal cells included."""
        return diagram.markdown(self.sketch())

    def mermaid(self) -> str:
        """Draw the machine as a Mermaid state diagram."""
        return diagram.mermaid(self.sketch())

    def dot(self) -> str:
        """Draw the machine in Graphviz's language."""
        return diagram.dot(self.sketch())

    def as_dict(self) -> dict[str, object]:
        """Describe the machine in plain JSON values."""
        return diagram.plain(self.sketch())

    def sketch(self) -> diagram.Sketch:
        """Return the names in this table, for the drawings."""
        return diagram.Sketch(
            name=self.name,
            states=tuple(state.value for state in self.states),
            events=tuple(event.value for event in self.events),
            rows=tuple((row.state and row.state.value, row.event.value, row.target.value) for row in self._rows),
            qualifiers={state.value: base.value for state, base in self.qualifiers.items()},
            asks_for_states=self._asks_for_states,
        )

    def __deepcopy__(self, memo: object) -> Table[S, E]:
        return self  # a value: there is nothing in it that could change

    def __repr__(self) -> str:
        return f"<Table {self.name}: {len(self.states)} states, {len(self.events)} events, {len(self._rows)} rows>"

    @property
    def _asks_for_states(self) -> bool:
        return cast(object, self.states) is self.events

    def _refuse(self, current: object, event: object) -> NoReturn:
        state = current if current is None or isinstance(current, str) else repr(current)
        requested = event if isinstance(event, str) else repr(event)
        target = requested if self._asks_for_states else None
        raise self.refusal(
            state, requested, machine=self.name, target=target, detail=self._reason(state, requested)
        ) from None

    def _reason(self, state: str | None, requested: str) -> str:
        if state is not None and state not in set(self.states):
            return f"{state} is not a state of {self.name}; those are {', '.join(self.states)}"
        if requested not in set(self.events):
            return f"{self.name} does not take {requested}; it takes {', '.join(self.events)}"
        taken = ", ".join(self.allowed(state))
        return f"it takes {taken}" if taken else "it is final"

    def _row(self, line: tuple[S | None, E, S]) -> Row[S, E]:
        try:
            return Row(*line)
        except TypeError:
            raise InvalidTable(f"{self.name}: a row is (state, event, target), got {line!r}") from None

    def _refuse_unknown_names(self, row: Row[S, E]) -> None:
        state = row.target if row.state is None else row.state  # None is how a machine begins
        for value, kind in ((state, self.states), (row.event, self.events), (row.target, self.states)):
            if not isinstance(value, kind):
                raise InvalidTable(f"{self.name}: {value!r} is not one of {kind.__name__}")

    def _refuse_unreachable_states(self) -> None:
        reached: set[S] = set()
        frontier = [row.target for row in self._rows if row.state is None]
        while frontier:
            state = frontier.pop()
            if state not in reached:
                reached.add(state)
                frontier += self.allowed(state).values()
        lost = [state for state in self.states if state not in reached and state not in self.qualifiers]
        if lost:
            raise InvalidTable(f"{self.name}: nothing reaches {', '.join(lost)}")

    def _refuse_unused_events(self) -> None:
        unused = [event for event in self.events if all(row.event != event for row in self._rows)]
        if unused:
            raise InvalidTable(f"{self.name}: no row takes {', '.join(unused)}")

    def _refuse_qualifiers_that_differ(self) -> None:
        for qualifier, base in self.qualifiers.items():
            if not (isinstance(qualifier, self.states) and isinstance(base, self.states)):
                raise InvalidTable(f"{self.name}: {qualifier!r} and {base!r} are not both states")
            if base in self.qualifiers:
                raise InvalidTable(f"{self.name}: {qualifier} cannot qualify {base}, which is a qualifier itself")
            if any(row.target == qualifier for row in self._rows):
                raise InvalidTable(f"{self.name}: {qualifier} is a qualifier of {base}, so no row may enter it")
            if self.allowed(qualifier) != self.allowed(base):
                raise InvalidTable(f"{self.name}: the rows of {qualifier} differ from those of {base}")


def _shown(state: str | None) -> str:
    return "(initial)" if state is None else state
