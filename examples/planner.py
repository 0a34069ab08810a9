"""An agent: a model plans, tools act, a person approves, a budget holds. Kill it at any moment; it goes on.

A run has a budget of ten cents, and says what each answer of the model costs. When that is more, it is parked before
its next call, with the reason, until somebody grants more.

The model is a server of its own on the loopback interface, started here, that gives canned answers: nothing is fetched
from anywhere. It would answer differently each time it is asked; it is asked once for a plan and once for each summary.

    python examples/planner.py            a run, its worker killed with SIGKILL, the grant, the approval, the result
    holdfast worker examples/planner.py   the same app, by hand
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast import App, Config, Plan, extend, spend
from holdfast.plans import Draft, Extension
from holdfast.ready import ConcurrencyGate

MODEL = os.environ.get("AGENT_MODEL", "http://127.0.0.1:1")
OUTBOX = Path(os.environ.get("AGENT_OUTBOX", "outbox.txt"))
BUDGET = {"cents": 10}  # of one run

app = App("agent", config=Config.read({"lease_seconds": 1.0}))


@app.step(retries=3, timeout=10)
def think(prompt: str) -> dict[str, Any]:
    """Ask the model. Its answer is recorded: a replay asks nobody."""
    request = urllib.request.Request(f"{MODEL}/v1/answer", json.dumps({"prompt": prompt}).encode())  # noqa: S310 - loopback
    with urllib.request.urlopen(request) as response:  # noqa: S310 - as above
        answer: dict[str, Any] = json.load(response)
    spend(cents=answer["cents"])
    return answer


@app.step
def search(topic: str) -> str:
    """Look something up."""
    time.sleep(float(os.environ.get("AGENT_PAUSE", "0")))
    return f"three facts about {topic}"


@app.tool
def send(text: str, approved_by: str) -> str:
    """Act on the outside world: once, whatever crashes."""
    with OUTBOX.open("a") as outbox:
        outbox.write(f"{text} ({approved_by})\n")
    return "sent"


@app.step
def review(draft: dict[str, Any]) -> Extension | None:
    """Plan again, on the record: if the model wants more facts, nodes are added to the plan that runs."""
    if not draft.get("more"):
        return None
    more = Draft("more")
    more.call(search, topic=draft["more"], id="search_more")
    return extend(more)


@app.planner(gates={"model": ConcurrencyGate(2)})
def agent(goal: str) -> Plan:
    """Have the model say what to look up; make a plan of it, recorded once."""
    thought = think(f"plan: {goal}")
    plan = Draft("agent")
    facts = plan.map(search, thought["topics"], topic=plan.item, id="facts")
    draft = plan.call(think, prompt="write it", id="draft", after=facts, gate="model")
    plan.call(review, draft=draft)
    approval = plan.wait("approve", after=draft, type="human", timeout="7d")
    plan.returns(plan.call(send, text=draft.text, approved_by=approval.by))
    return plan.plan()


class Model(BaseHTTPRequestHandler):
    """A fake model: canned answers, and a count that makes every answer another."""

    asked = 0

    def do_POST(self) -> None:
        """Answer a prompt."""
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        type(self).asked += 1
        answer: dict[str, Any] = {"cents": 7, "topics": [f"otters {type(self).asked}", "rivers"]}
        if not prompt.startswith("plan:"):
            answer = {"cents": 11, "text": f"Otters like rivers. (answer {type(self).asked})", "more": "fish"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def main() -> int:
    """Run the agent, kill its worker in the middle, grant, approve, and show that nothing was done or paid twice."""
    model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        outbox, url = Path(name) / "outbox.txt", f"sqlite:///{name}/agent.db"
        host, port = model.server_address[:2]
        told = {"HOLDFAST_URL": url, "AGENT_MODEL": f"http://{host!s}:{port}", "AGENT_OUTBOX": str(outbox)}
        app.url = url
        run = agent.options(budget=BUDGET).start("a note about otters")
        worker = working(told | {"AGENT_PAUSE": "30"})
        until(lambda: any(one.payload.get("name") == "search" for one in run.events()))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        print(f"killed the worker while it searched; the model was asked {Model.asked} time")
        worker = working(told)
        until(lambda: any("over_budget" in one.payload for one in run.events()))
        print(app.explain(run.id).explanation)
        subprocess.run(command("grant", run.id, "cents=20", "--url", url), check=True)
        until(lambda: any(one.payload.get("name") == "review" for one in run.events()))
        print("it goes on, and waits for a person:")
        subprocess.run(command("plan", "show", run.id, "--url", url), check=True)
        run.signal("approve", {"by": "ann"})
        result = run.result(timeout=60)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        sent = outbox.read_text().splitlines()
        plans = sum(one.type == "plan_generated" for one in run.events())
        spent = run.record().metrics
        wrong = app.verify()
        app.close()
    model.shutdown()
    print(f"result {result}; outbox {sent}; spent {spent}")
    print(f"the model was asked {Model.asked} times, and planned {plans} time")
    return 0 if (len(sent), plans, Model.asked, wrong) == (1, 1, 2, {}) else 1


def working(told: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker process of this app."""
    process = subprocess.Popen(command("worker", __file__), env={**os.environ, **told})
    atexit.register(process.kill)  # should this end before its time
    return process


def command(*words: str) -> list[str]:
    """Give a command of ours."""
    return [sys.executable, "-m", "holdfast", *words]


def until(so: Any) -> None:
    """Look again and again, until it is so."""
    end = time.monotonic() + 60
    while not so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
