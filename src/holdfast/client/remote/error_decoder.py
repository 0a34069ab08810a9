"""A server's refusal as the exception that the same call on an app raises.

A problem body has the error's `code` and its fields in `params`, and the exception is built from these two. A body
without them comes from a part of the server that is not an app's (a limit of HTTP, a token), or from another release.
Then the HTTP status decides the class. In each case the message is the server's, but for the advice
when a token is missing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError

SERVER_FAILED = 500
HOW_TO_SIGN_IN = "set HOLDFAST_TOKEN, or pass token=…; `holdfast tokens create` on the server's machine makes one"


class _Problem(msgspec.Struct):
    """What a client reads of a problem body; anything else in it is for people or for other clients."""

    code: str
    detail: str = ""
    message: str = ""  # the name of `detail` in earlier releases
    hint: str = ""
    params: dict[str, Any] = {}
    id: str | None = None


_problem = msgspec.json.Decoder(_Problem)


def error_of(status: int, body: bytes, asked: str, server: str) -> HoldfastError:
    """Return the exception for a refusal.

    Args:
        status: the HTTP status of the answer.
        body: a problem document. Any other body comes from a proxy, or the server is not a Holdfast server.
        asked: what the request was about: the run, job, key or queue.
        server: its address, for the message.
    """
    try:
        problem = _problem.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem("")
    problem.message = problem.detail or problem.message
    if not problem.message:
        return errors.StoreUnavailable(
            f"{server} answers {status} and not as Holdfast does: is that the address of a Holdfast server?"
        )
    if status < SERVER_FAILED:  # what a server says of itself is told with its address
        error = errors.from_params(problem.code, problem.params, problem.message)
        if error is not None:
            return error
    return _by_status(status, problem, asked, server)


def _by_status(status: int, problem: _Problem, asked: str, server: str) -> HoldfastError:
    """Return the nearest exception for a code that has no class here, or whose params do not fit the class."""
    message = problem.message
    advice = f"{message}: {problem.hint}" if problem.hint else message
    if problem.code == "invalid_path":  # paths are sent quoted, so the id in it is one that no run can have
        return errors.UnknownJob(asked)
    match status:
        case 400 | 422:
            return errors.InvalidArguments("the request", message).with_server_text(message)
        case 401:  # not the server's hint, which names a header
            return errors.NotAllowed(f"{message}: {HOW_TO_SIGN_IN}")
        case 403:
            return errors.NotAllowed(advice)
        case 404:
            return errors.UnknownJob(asked).with_server_text(message)
        case 413:
            return errors.PayloadTooLarge("the request", 0, 0).with_server_text(message)
        case 421:
            return errors.InvalidSetting("server", server, advice)
        case _ if status in {408, 429} or status >= SERVER_FAILED:
            log_id = f" ({problem.id})" if problem.id else ""
            return errors.StoreUnavailable(f"{server}: {advice}{log_id}")
        case _:
            return HoldfastError(f"{server}: {advice}")
