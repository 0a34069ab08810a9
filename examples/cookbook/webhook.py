"""Webhook: tell another system what happened, signed and with retries.

The delivery is a step with retries, so that an answer that was lost is followed by another delivery. Both have the same
`webhook-id`, by which the receiver drops the second one. The signature follows the Standard Webhooks scheme: the
receiver checks who has sent the body, and that it is not an old one. A receiver that says 4xx will not change its mind.

Run it:  WEBHOOK_KEY=… holdfast worker webhook.py
         holdfast start webhook.py deliver url=https://example.com/hook event=paid data='{}' key=env:WEBHOOK_KEY
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from holdfast import App, Backoff, Permanent, Secret, external_key

app = App("webhook")
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))  # stands for what the receiver remembers
PACE = float(os.environ.get("PACE", "1"))  # seconds until the first retry


def signed(key: str, name: str, sent_at: str, body: bytes) -> str:
    """Return the signature of a delivery."""
    digest = hmac.digest(key.encode(), b".".join([name.encode(), sent_at.encode(), body]), hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()


@app.step(retries=8, backoff=Backoff(first_seconds=max(0.01, PACE), cap_seconds=3600), timeout="30s")
def post(url: str, event: str, data: dict[str, Any], key: Secret[str]) -> int:
    """Deliver once. The id is the same for every try, and the signature is new for each."""
    if not url.startswith(("https://", "http://127.0.0.1")):
        raise Permanent(f"{url} must begin with https://")
    body = json.dumps({"type": event, "data": data}).encode()
    name, sent_at = external_key(), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": sent_at,
        "webhook-signature": signed(key.reveal(), name, sent_at, body),
    }
    try:
        with urlopen(Request(url, body, headers), timeout=20) as answer:  # noqa: S310 - the scheme was checked
            status: int = answer.status
    except HTTPError as error:
        if error.code in range(400, 500) and error.code not in {408, 425, 429}:
            raise Permanent(f"{url} refuses the delivery: {error.code}") from error
        raise
    return status


@app.job(deadline="3d")
def deliver(url: str, event: str, data: dict[str, Any], key: Secret[str]) -> str:
    """Deliver one event."""
    return f"delivered: {post(url, event, data, key)}"


class Receiver(BaseHTTPRequestHandler):
    """The other side: it checks the signature, forgets its first answer, and takes each event once."""

    def do_POST(self) -> None:
        """Take a delivery."""
        body = self.rfile.read(int(self.headers["content-length"]))
        name, sent_at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        right = signed(os.environ["WEBHOOK_KEY"], name, sent_at, body)
        is_right = hmac.compare_digest(right, self.headers["webhook-signature"])
        known = LEDGER.read_text().splitlines() if LEDGER.exists() else []
        if is_right and name not in known:
            LEDGER.write_text("\n".join([*known, name, ""]))
            print(f"received {body.decode()}")
            self.send_response(500)  # as if the answer were lost
        else:
            print("received again, and dropped" if is_right else "refused")
            self.send_response(200 if is_right else 401)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


if __name__ == "__main__":
    os.environ.setdefault("WEBHOOK_KEY", "any will do: this receiver knows it")
    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    run = deliver.start(
        f"http://127.0.0.1:{receiver.server_port}", "paid", {"order": "A1"}, key=Secret.env("WEBHOOK_KEY")
    )
    app.worker().run(until_idle=True)
    print(run.result())
    receiver.shutdown()
