"""A watcher of a worker's settings file. Changes take effect without a restart.

A thread watches the file. If the file cannot be read or is invalid, the error is logged and the settings stay. A file
that is replaced instead of written to is noticed within half a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from holdfast.config import Config
from holdfast.errors import InvalidSetting
from holdfast.store.sqlite.commit_watcher import CommitWatcher, file_mark

LOOK_SECONDS = 1.0  # between two reads of a file whose changes the system does not report
_log = logging.getLogger("holdfast.settings")


def watch_settings(config: Config, changed: Callable[[Config], object]) -> Callable[[], None]:
    """Call `changed` with the settings of the file, now and after each change.

    Returns a function that stops the watch.
    """
    if not config.settings_file:
        return lambda: None
    last = config

    def look() -> bool:
        nonlocal last
        try:
            new = config.reloaded()
        except InvalidSetting as error:
            _log.error("%s", error)
            return False
        if new == last:
            return False
        last = new
        changed(new)
        return True

    look()
    path = Path(config.settings_file)
    return CommitWatcher(path, lambda: file_mark(path), look, LOOK_SECONDS).stop
