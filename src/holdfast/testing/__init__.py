"""How users prove it: tools to show that code holds under every order of events, not only under the usual one."""

from holdfast.testing.interleavings import Actor, Deadlock, Outcome, Schedule, explore

__all__ = ["Actor", "Deadlock", "Outcome", "Schedule", "explore"]
