"""Log lines without the secrets that this process has seen (rule S14).

`SecretFilter` looks at a record's message and traceback before anybody writes them. It is put on Holdfast's own loggers
and on asyncio's, which tells of tasks that a job's code has left behind, with the first `App`; and in the processes of
the command line on whatever writes lines there, so that the lines of users' own code pass through it as well.

A record in which nothing was found stays as it is. One in which something was has its text in the place of its parts,
arguments and exception included: they hold what was found.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TextIO

from holdfast.authoring.redaction import redact_log_line

__all__ = ["SecretFilter", "guard", "guard_process"]

_OURS = ("holdfast", *(f"holdfast.{name}" for name in ("http", "job", "ready", "settings", "worker")), "asyncio")
_formatter = logging.Formatter()


class SecretFilter(logging.Filter):
    """Takes the secrets that this process has seen out of log records; for any handler or logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record; it is always let through."""
        try:
            self._redact(record)
        except Exception as error:  # noqa: BLE001 - arguments that do not fit their message, say: that is no reason to show it
            record.msg, record.args = f"[a line that could not be looked through: {type(error).__name__}]", ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True

    @staticmethod
    def _redact(record: logging.LogRecord) -> None:
        message = record.getMessage()
        if (clean := redact_log_line(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None:
            trace = record.exc_text or _formatter.formatException(record.exc_info)
            if (clean := redact_log_line(trace)) != trace:
                record.exc_info, record.exc_text = None, clean
        if record.stack_info:
            record.stack_info = redact_log_line(record.stack_info)


_filter = SecretFilter()


def guard() -> None:
    """Keep secrets out of what Holdfast and asyncio log; a repeat changes nothing."""
    for name in _OURS:
        logging.getLogger(name).addFilter(_filter)


def guard_process(stream: TextIO | None = None) -> None:
    """Keep secrets out of everything that this process logs, and of what its threads die of; for our own processes.

    Handlers that the user's code has set up are kept. Without any, warnings and errors go to standard error.
    """
    shape = "%(asctime)s %(name)s %(levelname)s %(message)s"
    logging.basicConfig(stream=stream or sys.stderr, level=logging.WARNING, format=shape)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_filter)
    threading.excepthook = _died


def _died(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "a thread"
    logging.getLogger("holdfast").error("%s has died", name, exc_info=args.exc_value)
