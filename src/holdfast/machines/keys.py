"""Reserved correlation keys and value names: constants, constructors and a parser.

The engine waits under correlation keys of its own. They begin with ``holdfast:``, which a user's signal cannot use. The
engine also records values under names that it builds from the node they belong to. Keys and names are part of the
stored format: a change here would make older streams unreadable.
"""

from __future__ import annotations

from typing import NamedTuple

# Correlation keys. Those that end with a colon are followed by a node.
RESERVED = "holdfast:"
PAUSE_KEY = "holdfast:pause"  # the wait of a paused job
BUDGET_KEY = "holdfast:budget"  # the wait of a run that has spent more than its budget
DEPLOY_KEY = "holdfast:deploy:"  # the wait for an operator's answer: which code goes on?
DOUBT_KEY = "holdfast:doubt:"  # the wait for an operator's answer: did the call act?
TIMER_KEY = "holdfast:timer:"  # a sleep
CHILD_KEY = "holdfast:child:"  # the wait for a child's end
RETRY_KEY = "holdfast:retry:"  # the pause before the next try of a call

BUILTIN = "holdfast"  # the app and the queue of built-in jobs; no other app may have this name
HUMAN = "human"  # the type of a wait that a person ends
END = "end"  # in place of a call: the code of a job has ended
DEPLOY = "deploy"  # the type of a wait of a job that does not fit the code, and the reason of its requeue

# Names of recorded values: how they begin, or how they end after the node.
OF_RUN = "run:"  # holds for one run and not for the next
EXTENSION = "extension:"  # whether an extension of a plan was refused, and why
SPENT = "spent:"  # what a job or a call has spent
GRANTED = "budget:"  # the node of a wait for a grant, with its number
CHANGED = "changed:"  # which side of a change a run is on, with the mark of the change
UNTIL = ":until"  # when a wait ends by time
ENDED = ":ended"  # how a wait ended while its job ran
ID = ":id"  # the id under which a node starts a child, or acts


class ReservedKey(NamedTuple):
    """A reserved correlation key, taken apart.

    Attributes:
        kind: ``pause``, ``budget``, ``deploy``, ``doubt``, ``timer``, ``child`` or ``retry``.
        node: the node that it belongs to; empty for a kind that has none.
    """

    kind: str
    node: str


def is_reserved(key: str) -> bool:
    """Return whether a correlation key belongs to the engine."""
    return key.startswith(RESERVED)


def parse_key(key: str) -> ReservedKey | None:
    """Return the kind and the node of a reserved key, or None for a user's key."""
    if not is_reserved(key):
        return None
    kind, _, node = key.removeprefix(RESERVED).partition(":")
    return ReservedKey(kind, node)


def deploy_key(node: str) -> str:
    """Return the key of the wait for an operator's answer about a call that does not fit the history."""
    return f"{DEPLOY_KEY}{node}"


def doubt_key(node: str) -> str:
    """Return the key of the wait for an operator's answer about a call."""
    return f"{DOUBT_KEY}{node}"


def timer_key(node: str) -> str:
    """Return the key of a sleep."""
    return f"{TIMER_KEY}{node}"


def child_key(node: str, run: str = "") -> str:
    """Return the key of the wait for a child's end; `run` is the suffix of a later run."""
    return f"{CHILD_KEY}{node}{run}"


def retry_key(node: str) -> str:
    """Return the key of the pause before a call's next try."""
    return f"{RETRY_KEY}{node}"


def until_name(node: str) -> str:
    """Return the name of the value that records when a wait ends by time."""
    return f"{node}{UNTIL}"


def ended_name(node: str) -> str:
    """Return the name of the value that records how a wait ended while its job ran."""
    return f"{node}{ENDED}"


def id_name(node: str, run: str = "") -> str:
    """Return the name of the value that records a child's id; `run` is the suffix of a later run."""
    return f"{node}{ID}{run}"


def node_of_ended(name: str) -> str | None:
    """Return the node whose wait a value records the end of, or None for any other value."""
    return name.removesuffix(ENDED) if name.endswith(ENDED) else None
