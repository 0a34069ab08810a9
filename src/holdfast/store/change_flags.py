"""What a commit has changed, for those who want to be told: a sum of these."""

from __future__ import annotations

__all__ = ["ASKED", "DEATHS", "EVENTS", "EVERYTHING", "LIMITS", "PROGRESS", "ROOM", "WORK"]

EVENTS = 1  # an event was written
WORK = 2  # a job can be claimed or reclaimed now, or something will come about by time alone
ASKED = 4  # a job that is held was asked to cancel or to pause
PROGRESS = 8  # a run has reported something of itself that is no event
LIMITS = 16  # a limit of a queue was changed, or a queue was paused or resumed
ROOM = 32  # a job of a queue with a limit has ended, and whoever ended it has not taken another in its place
DEATHS = 64  # the process of a worker is gone, and the worker is to be buried

EVERYTHING = EVENTS | WORK | ASKED | PROGRESS | ROOM  # what a process may have changed that does not say what
