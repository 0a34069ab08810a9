"""The files of the dashboard: what is served, under which policy, and what the package carries."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from holdfast import App
from holdfast.http.page import FILES
from holdfast.server import asgi, token
from support.scripts import ROOT
from support.web import served, small_shop

FOLDER = ROOT / "src" / "holdfast" / "http" / "page_files"
SECRET = "a secret of more than thirty-two characters"  # noqa: S105 - of these tests only


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


class Web:
    """An application, asked in this process."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    def ask(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._application, client=("127.0.0.1", 50000))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(
                    method, path, headers={name.replace("_", "-"): headers[name] for name in headers}
                )

        return asyncio.run(send())


def web_of(app: App, *, page: bool = True) -> Web:
    return Web(asgi(app, tokens=[token(SECRET, name="web")], page=page))


def test_the_page_is_served_without_a_token_and_under_a_strict_policy(app: App) -> None:
    web = web_of(app)
    for path, (name, media_type) in FILES.items():
        answer = web.ask(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.content == (FOLDER / name).read_bytes()
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["trusted-types"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in answer.headers
    assert web.ask("/page/other.js").status_code == 401, "unknown paths stay hidden"
    assert web.ask("/", "POST").status_code == 405
    assert web.ask("/", host="evil.example").status_code == 421


def test_a_browser_that_has_the_files_does_not_load_them_again(app: App) -> None:
    web = web_of(app)
    first = web.ask("/page/app.js")
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["content-encoding"] == "gzip"
    again = web.ask("/page/app.js", if_none_match=first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    plain = web.ask("/page/app.js", accept_encoding="identity")
    assert "content-encoding" not in plain.headers
    assert plain.content == first.content


def test_the_page_can_be_left_out(app: App) -> None:
    web = web_of(app, page=False)
    assert {web.ask(path).status_code for path in FILES} == {401}
    bearer = f"Bearer {SECRET}"
    assert {web.ask(path, authorization=bearer).status_code for path in FILES} == {404}


def test_the_page_works_under_any_prefix(app: App) -> None:
    site = Starlette(routes=[Mount("/tools/jobs", asgi(app, tokens=[token(SECRET)]))])
    web = Web(site)
    document = web.ask("/tools/jobs/").text
    linked = re.findall(r'(?:href|src)="([^"]+)"', document)
    assert linked
    for address in linked:
        assert not address.startswith("/"), "relative to the document"
        assert web.ask(f"/tools/jobs/{address}").status_code == 200


def test_the_page_loads_nothing_from_another_host_and_has_no_inline_code() -> None:
    document = (FOLDER / "index.html").read_text()
    assert re.findall(r"https?://", document) == []
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", document) == []
    assert re.findall(r"url\((?!['\"]?data:)", (FOLDER / "app.css").read_text()) == []
    script = (FOLDER / "app.js").read_text()
    assert set(re.findall(r"https?://[\w.-]+", script)) <= {"http://www.w3.org"}, "names of XML, which nothing loads"
    assert re.findall(r"\beval\(|new Function|document\.write|document\.cookie", script) == []


def test_the_page_is_at_most_90_kib_and_carries_its_licences() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {name for name, _ in FILES.values()}
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in FOLDER.iterdir()) <= 90 * 1024
    licences = (FOLDER / "THIRD_PARTY.txt").read_text()
    assert all(name in licences for name in ("preact", "@preact/signals", "uplot"))
    assert licences.count("Permission is hereby granted") == 4


def test_the_lock_of_the_tools_names_versions_and_hashes_and_no_host() -> None:
    lock = (ROOT / "web" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert lock.count('"integrity"') >= 8
    wanted = json.loads((ROOT / "web" / "package.json").read_text())
    versions = {**wanted["dependencies"], **wanted["devDependencies"]}
    assert versions
    assert {name: one for name, one in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", one)} == {}


def test_serve_prints_a_link_with_the_first_token_only(tmp_path: Path) -> None:
    target = ROOT / "tests" / "page" / "dashboard_shop.py"
    command = [sys.executable, "-m", "holdfast", "serve", str(target), "--port", "0"]
    usual = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    told = []
    for options in ([], [], ["--no-page"]):
        store = ["--url", f"sqlite:///{tmp_path / 'jobs.db'}"]
        with subprocess.Popen([*command, *store, *options], env=usual, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "dashboard" in line or ("reachable" in line and options):
                    break
            process.send_signal(signal.SIGTERM)
        told.append("".join(lines))
    secret = re.search(r"token (\S+) has every right", told[0])
    assert secret is not None
    assert f"/#t={secret[1]}" in told[0]
    assert "#t=" not in told[1]
    assert "asks for a token" in told[1]
    assert "dashboard" not in told[2]


def test_dev_opens_the_dashboard_in_a_browser_once(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    opened.touch()
    viewer = tmp_path / "viewer"
    told = tmp_path / "told"
    os.mkfifo(told)
    viewer.write_text(f'#!/bin/sh\necho "$1" >> {opened}\necho > {told}\n')
    viewer.chmod(0o755)
    shop = tmp_path / "shop.py"
    shop.write_text('from holdfast import App\n\napp = App("shop")\n')
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    command = [sys.executable, "-m", "holdfast", "dev", str(shop), "--url", store, "--port", "0", "--browser"]
    usual = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    with subprocess.Popen(
        command, env={**usual, "BROWSER": f"{viewer} %s"}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        addresses = []
        for line in process.stderr:
            addresses += re.findall(r"dashboard at (\S+)", line)
            if len(addresses) == 1 and "dashboard" in line:
                told.read_text()  # waits until the browser was started
                shop.write_text('from holdfast import App\n\napp = App("shop")  # changed\n')
            if len(addresses) == 2:
                break
        process.send_signal(signal.SIGTERM)
    assert opened.read_text().split() == addresses[:1], "not again after the restart"


def test_no_page_leaves_the_page_out_of_the_server(tmp_path: Path) -> None:
    target = ROOT / "tests" / "page" / "dashboard_shop.py"
    with served(target, f"sqlite:///{tmp_path / 'jobs.db'}", "--no-page") as server:
        assert httpx.get(f"{server.url}/").status_code == 404
