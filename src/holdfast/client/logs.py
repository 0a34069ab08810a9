"""The log filter that removes the secrets that this process has seen (rule S14).

`SecretFilter` redacts the message and traceback of a record before a handler writes them. The first `App` adds it to
Holdfast's own loggers and to asyncio's, which reports tasks that job code has abandoned. The processes of the command
line also add it to all handlers, so that lines of user code pass through it.

A record without a secret stays unchanged. In a record with a secret, the redacted text replaces the message, arguments
and exception, because they hold the secret.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import TextIO

from holdfast.authoring.redaction import redact_log_line

_OURS = ("holdfast", *(f"holdfast.{name}" for name in ("http", "job", "ready", "settings", "worker")), "asyncio")
_formatter = logging.Formatter()


class SecretFilter(logging.Filter):
    """A filter for any handler or logger that redacts the secrets that this process has seen."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record and return True: the filter never drops a record."""
        try:
            self._redact(record)
        except Exception as error:  # noqa: BLE001 - e.g. arguments that do not fit the message; never show it unredacted
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
    """Add the filter to the loggers of Holdfast and asyncio. A repeated call changes nothing."""
    for name in _OURS:
        logging.getLogger(name).addFilter(_filter)


def guard_process(stream: TextIO | None = None) -> None:
    """Add the filter to all root handlers, and log unhandled errors of threads. For processes of the command line.

    Handlers that user code has set up stay. Without any handler, warnings and errors go to standard error.
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
