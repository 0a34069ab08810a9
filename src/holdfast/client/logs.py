"""The log filter that removes the secrets that this process has seen (rule S14).

`SecretFilter` redacts the message and traceback of a record before a handler writes them. The first `App` adds it to
Holdfast's own loggers and to asyncio's, which reports tasks that job code has abandoned. The processes of the command
line also add it to all handlers, so that lines of user code pass through it.

A record without a secret stays unchanged. In a record with a secret, the redacted text replaces the message, arguments
and exception, because they hold the secret.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TextIO

from holdfast.authoring.redaction import redact_log_line
from holdfast.job_log import FIELDS

TEXT_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_OURS = ("holdfast", *(f"holdfast.{name}" for name in ("http", "job", "ready", "settings", "worker")), "asyncio")
_formatter = logging.Formatter()


class SecretFilter(logging.Filter):
    """A filter for any handler or logger that redacts the secrets that this process has seen."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record and return True: the filter never drops a record."""
        try:
            self._redact(record)
        except Exception as error:  # noqa: BLE001 - e.g. arguments that do not fit the message; never show it unredacted
            record.msg, record.args = f"[a log line that could not be checked for secrets: {type(error).__name__}]", ()
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


class JsonFormatter(logging.Formatter):
    """A formatter that writes each record as one line of JSON, with the facts of lines about jobs as fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object."""
        fields = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
        if record.exc_text or record.exc_info:
            fields["traceback"] = record.exc_text or self.formatException(record.exc_info or (None, None, None))
        return redact_log_line(json.dumps(fields, ensure_ascii=False, default=str))


def guard_process(stream: TextIO | None = None, *, level: str | None = None, form: str | None = None) -> None:
    """Set up the log of a process of the command line, and log unhandled errors of threads.

    Handlers that user code has set up stay, with their levels and formats unless the command names others. Without any
    handler, lines of Holdfast and of user code go to standard error. All handlers get the filter for secrets.

    Args:
        stream: Where the lines go. Default: standard error.
        level: The lowest level to write, such as ``debug``. Default: info.
        form: ``text`` or ``json``. Default: text.
    """
    root = logging.getLogger()
    own = not root.handlers
    if own:
        root.addHandler(logging.StreamHandler(stream or sys.stderr))
    if own or level is not None:
        root.setLevel((level or "info").upper())
    for handler in root.handlers:
        if own or form is not None:
            handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT_LINE))
        handler.addFilter(_filter)
    threading.excepthook = _died


def _died(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "a thread"
    logging.getLogger("holdfast").error("%s has died", name, exc_info=args.exc_value)
