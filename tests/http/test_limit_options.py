"""Limits of requests that the operator chooses on the command line."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from holdfast.cli.serve import serve
from support.web import served

SHOP = """
from typing import Any
from holdfast import App
app = App("shop")

@app.job
async def take(x: Any) -> None:
    pass
"""


def test_a_limit_of_the_command_line_holds(tmp_path: Path) -> None:
    target = tmp_path / "shop.py"
    target.write_text(SHOP)
    body = {"plugin_id": "shop", "entry_id": "take", "args": {"x": [1] * 20}}
    with served(target, f"sqlite:///{tmp_path / 'jobs.db'}", "--limit", "json_values=10") as server:
        answer = httpx.post(f"{server.url}/api/v1/runs", json=body)
        assert (answer.status_code, answer.json()["code"]) == (413, "json_too_large")
        assert "more than 10 values" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("json_value=10", "there is no limit 'json_value'; the limits are body_bytes, header_bytes"),
        ("json_values=ten", "json_values must be a number, such as 50000"),
        ("json_values=0", "json_values must be greater than 0"),
    ],
)
def test_a_limit_that_is_none_is_refused_before_anything_starts(option: str, told: str) -> None:
    answer = CliRunner().invoke(serve, ["missing.py", "--limit", option])
    assert answer.exit_code == 2
    assert told in answer.output
