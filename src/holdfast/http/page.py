"""The dashboard: static files that the package carries, served without a token.

The files hold no data and no secrets. The page reads everything from the API, with a token that the user gives it, and
addresses everything relative to its own address, so it works under any mount prefix. The policy in its headers allows
scripts and styles of this server only, no inline code, and no HTML made from text (trusted types).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.responses import Response

from holdfast.http.request import Call, matches_tag
from holdfast.http.response import SAFE, Answer, Headers
from holdfast.http.route import PUBLIC, Bound, Operation, Text

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FILES = {  # by path; the first is the document
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/page/app.css": ("app.css", "text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page/THIRD_PARTY.txt": ("THIRD_PARTY.txt", "text/plain; charset=utf-8"),
}
_OWN = (b"content-security-policy", b"cache-control")  # headers of every response that the page replaces


def page_routes() -> list[Operation]:
    """Return the routes of the page."""
    return [
        Operation(
            "GET", path, PUBLIC, Bound.FREE, _sender(*FILES[path]), f"Return {FILES[path][0]} of the dashboard.",
            {200: Text(FILES[path][1]), 304: None},
        )
        for path in FILES
    ]  # fmt: skip


class _File:
    """A file of the page, plain and compressed, with its entity tag."""

    def __init__(self, name: str) -> None:
        self.plain = files("holdfast.http").joinpath("page_files", name).read_bytes()
        self.packed = gzip.compress(self.plain, 9, mtime=0)
        self.tag = f'"{hashlib.sha256(self.plain).hexdigest()[:32]}"'.encode()


_file = functools.cache(_File)


def _sender(name: str, media_type: str) -> Callable[[Call], Awaitable[Response]]:
    async def send_file(call: Call) -> Response:
        call.service.guard.check_host(call.request.scope)
        file = _file(name)
        headers: Headers = [
            *(pair for pair in SAFE if pair[0] not in _OWN),
            (b"content-security-policy", POLICY.encode()),
            (b"cache-control", b"no-cache"),  # a browser asks each time, and a new release is used at once
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"vary", b"accept-encoding"),
            (b"etag", file.tag),
        ]
        if matches_tag(call.request.headers.get("if-none-match"), file.tag):
            response = Response(status_code=304)
            response.raw_headers = [*headers]
            return response
        body = file.plain
        if "gzip" in call.request.headers.get("accept-encoding", ""):
            body, headers = file.packed, [*headers, (b"content-encoding", b"gzip")]
        answer = Answer(200, body, media_type.encode())
        answer.raw_headers = [*(pair for pair in answer.raw_headers if pair not in SAFE), *headers]
        return answer

    return send_file
