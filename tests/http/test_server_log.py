"""The log of the server: strangers cannot fill it, and the metrics count what they send."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx

from support.web import served

SHOP = "from holdfast import App\napp = App('shop')\n"
BAD = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
)


def test_bad_requests_and_upgrades_write_no_line_and_are_counted(tmp_path: Path) -> None:
    target = tmp_path / "shop.py"
    target.write_text(SHOP)
    with served(target, f"sqlite:///{tmp_path / 'jobs.db'}") as server:
        for sent in BAD * 20:
            with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
                connection.sendall(sent)
                assert connection.recv(100).startswith(b"HTTP/1.1 ")
        metrics = httpx.get(f"{server.url}/metrics").text
        assert "\nholdfast_http_refused_total 80\n" in metrics, "all but the upgrades, which are answered as requests"
        server.process.terminate()
        assert server.process.stderr is not None
        lines = server.process.stderr.read().splitlines()
    assert [line for line in lines if not line.startswith("holdfast: ")] == []  # these are of the start
    assert len(lines) < len(BAD)
