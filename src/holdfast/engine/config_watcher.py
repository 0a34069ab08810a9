"""Has a worker's settings changed? A thread watches their file, and what it says takes effect without a restart.

A file that cannot be read, or says what it may not, is told of in the log, and the settings stay as they were. One
that is replaced instead of written to is noticed within half a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from holdfast.config import Config
from holdfast.errors import InvalidSetting
from holdfast.store.sqlite.commit_watcher import Ear

__all__ = ["watch_settings"]

LOOK_SECONDS = 1.0  # between two looks at a file that the system does not tell of
_log = logging.getLogger("holdfast.settings")


def watch_settings(config: Config, changed: Callable[[Config], object]) -> Callable[[], None]:
    """Call `changed` with the settings that the file makes, now and whenever it changes; returns what ends it."""
    if not config.settings_file:
        return lambda: None
    last = config

    def look() -> None:
        nonlocal last
        try:
            new = config.reloaded()
        except InvalidSetting as error:
            _log.error("%s", error)
            return
        if new != last:
            last = new
            changed(new)

    look()
    path = Path(config.settings_file)
    return Ear(path, path, look, LOOK_SECONDS).stop
