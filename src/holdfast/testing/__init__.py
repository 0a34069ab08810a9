"""Test tools that check code under every order of events."""

from holdfast.testing.interleavings import Actor, Deadlock, Outcome, Schedule, explore

__all__ = ["Actor", "Deadlock", "Outcome", "Schedule", "explore"]
