"""Clients of streams at the level of ASGI, for tests of what is sent and of who does not read it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from holdfast.http.application import Service
from support.stories import until


def told(text: str) -> list[tuple[str, str, Any]]:
    """Give a stream's messages: event, id, data."""
    found = re.findall(r"event: (\w+)\nid: (\S+)\ndata: (.*)\n\n", text)
    return [(event, place, json.loads(data)) for event, place, data in found]


class Peer:
    """A client at the level of ASGI, which reads as fast as it is told to."""

    def __init__(self, service: Service, path: str, *, headers: dict[str, str] | None = None, reads: int = -1) -> None:
        self.text = ""
        self.reads = reads  # how many messages it takes before it takes none any more
        self.leave = asyncio.Event()
        self.aborted = False
        path, _, query = path.partition("?")
        sent = [(b"host", b"localhost"), *((k.encode(), v.encode()) for k, v in (headers or {}).items())]
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": sent, "client": ("127.0.0.1", 1), "extensions": {"holdfast.abort": self._abort},
        }  # fmt: skip
        self.task = asyncio.ensure_future(service(scope, self._receive, self._send))

    def _abort(self) -> None:
        self.aborted = True

    async def _receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.reads -= 1
        if self.reads == -1:
            await asyncio.Event().wait()
        self.text += message.get("body", b"").decode()

    async def has(self, part: str) -> None:
        async def there() -> bool:
            return part in self.text

        await until(there)
