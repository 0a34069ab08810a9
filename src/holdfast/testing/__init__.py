"""Test tools: a laboratory for jobs, and a check of code under every order of events."""

from holdfast.testing.crash_report import Case, CrashFailure, CrashReport
from holdfast.testing.interleavings import Actor, Deadlock, Outcome, Schedule, explore
from holdfast.testing.lab import Lab, RunStuck
from holdfast.testing.replays import ReplayFailure, ReplaysReport
from holdfast.testing.virtual_loop import HoldfastTestWarning, RealWork
from holdfast.testing.world import Act, AtMostOnce, World

__all__ = [
    "Act",
    "Actor",
    "AtMostOnce",
    "Case",
    "CrashFailure",
    "CrashReport",
    "Deadlock",
    "HoldfastTestWarning",
    "Lab",
    "Outcome",
    "RealWork",
    "ReplayFailure",
    "ReplaysReport",
    "RunStuck",
    "Schedule",
    "World",
    "explore",
]
