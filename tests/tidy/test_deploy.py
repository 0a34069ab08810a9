"""The deployment kit fits the product: its commands, settings, ports, probes and time limits exist and agree."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast import App, Config
from holdfast.cli.main import main
from holdfast.cli.serve import PORT
from support.scripts import ROOT
from support.web import near

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
IMAGE = (DEPLOY / "Dockerfile").read_text()
USER = 10001


class Strict(yaml.SafeLoader):
    """Refuses a key that is given twice, which YAML readers accept in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT002 - as in the base
        keys = [key.value for key, _ in node.value]
        doubled = {key for key in keys if keys.count(key) > 1}
        assert not doubled, f"{doubled} {node.start_mark}"
        return super().construct_mapping(node, deep)


def documents(path: Path) -> list[Any]:
    return list(yaml.load_all(path.read_text(), Strict))


COMPOSE = documents(DEPLOY / "compose.yaml")[0]
MANIFESTS = documents(DEPLOY / "kubernetes" / "holdfast.yaml")
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in MANIFESTS if "template" in one.get("spec", {})
}


def unit(path: Path) -> dict[str, list[str]]:
    """Return the values of a unit, by name; a name may be given several times."""
    values: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, equals, value = line.partition("=")
            assert equals, line
            values.setdefault(name, []).append(value)
    return values


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every holdfast command of the kit, with the place where it stands."""
    yield "Dockerfile", re.findall(r'"([^"]*)"', re.search(r"^CMD (\[.*\])$", IMAGE, re.MULTILINE)[1])  # type: ignore[index]
    for name, service in COMPOSE["services"].items():
        if "command" in service:
            yield f"compose {name}", service["command"]
    for name, pod in PODS.items():
        yield f"kubernetes {name}", pod["containers"][0]["args"]
    for path in UNITS:
        yield path.name, unit(path)["ExecStart"][0].split()


COMMANDS = dict(commands())


@pytest.mark.parametrize("place", COMMANDS)
def test_every_command_and_option_exists(place: str) -> None:
    program, name, *rest = COMMANDS[place]
    assert program.rpartition("/")[2] == "holdfast"
    main.commands[name].make_context(name, rest)  # parses as for a call, and calls nothing


def options_of(words: list[str]) -> dict[str, Any]:
    return main.commands[words[1]].make_context(words[1], words[2:]).params


def test_servers_listen_where_probes_and_services_look() -> None:
    listening = {place: options_of(words) for place, words in COMMANDS.items() if words[1] == "serve"}
    assert {options["port"] for options in listening.values()} == {PORT}
    inside = {options["host"] for place, options in listening.items() if not place.endswith(".service")}
    assert inside == {"0.0.0.0"}  # noqa: S104 - of a container
    assert f"EXPOSE {PORT}" in IMAGE
    assert COMPOSE["services"]["server"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    server = PODS["holdfast-server"]["containers"][0]
    assert server["ports"] == [{"name": "http", "containerPort": PORT}]
    (service,) = (one for one in MANIFESTS if one["kind"] == "Service")
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert service["spec"]["selector"] == {"app": "holdfast", "part": "server"}
    assert service["metadata"]["name"] in listening["kubernetes holdfast-server"]["hosts"], (
        "clients name it as the host"
    )


def test_every_probe_is_answered_without_a_token(tmp_path: Path) -> None:
    server = PODS["holdfast-server"]["containers"][0]
    probes = [server[name]["httpGet"] for name in ("livenessProbe", "readinessProbe", "startupProbe")]
    asked = [(probe["path"], {head["name"]: head["value"] for head in probe["httpHeaders"]}) for probe in probes]
    checked = re.search(r"urlopen\('http://([\d.]+):(\d+)(/\w+)'", IMAGE)
    assert checked is not None
    assert int(checked[2]) == PORT
    asked.append((checked[3], {"Host": checked[1]}))

    app = App("shop", config=Config(url=f"sqlite:///{tmp_path / 'jobs.db'}", token="x" * 32))

    async def statuses() -> list[int]:
        async with near(app, peer=("10.0.0.7", 50000)) as client:
            return [(await client.get(path, headers=heads)).status_code for path, heads in asked]

    try:
        assert asyncio.run(statuses()) == [200] * 4
    finally:
        app.close()


def settings() -> Iterator[tuple[str, str]]:
    """Every variable of Holdfast that the kit sets, with its value."""
    for service in COMPOSE["services"].values():
        yield from service.get("environment", {}).items()
    for pod in PODS.values():
        yield from ((one["name"], one.get("value", "")) for one in pod["containers"][0]["env"])
    text = (DEPLOY / "systemd" / "holdfast.env").read_text()
    yield from re.findall(r"^#?(HOLDFAST_\w+)=(.*)$", text, re.MULTILINE)


def test_every_setting_exists_and_has_a_value_that_it_takes() -> None:
    known = {f"HOLDFAST_{name.upper()}" for name in Config.__struct_fields__}
    ours = [(name, value) for name, value in settings() if name.startswith("HOLDFAST_")]
    assert len(ours) > 8
    assert {name.removesuffix("_FILE") for name, _ in ours} <= known
    for name, value in ours:
        if value and not name.endswith("_FILE"):
            Config.read(environment={name: value})


def seconds_to_stop(environment: dict[str, str]) -> float:
    config = Config.read(environment=environment)
    return config.shutdown_seconds + config.grace_seconds


def test_platforms_wait_longer_than_a_worker_takes_to_stop() -> None:
    worker = COMPOSE["services"]["worker"]
    assert int(worker["stop_grace_period"].removesuffix("s")) >= seconds_to_stop(worker["environment"]) + 5
    pod = PODS["holdfast-worker"]
    values = {one["name"]: one["value"] for one in pod["containers"][0]["env"] if "value" in one}
    assert pod["terminationGracePeriodSeconds"] >= seconds_to_stop(values) + 5
    for path in UNITS:
        values = unit(path)
        assert int(values["TimeoutStopSec"][0]) >= seconds_to_stop({}) + 5
        assert values["KillMode"] == ["mixed"], "a supervisor stops its workers itself"


def test_nothing_runs_as_root() -> None:
    assert re.findall(r"^USER (.*)$", IMAGE, re.MULTILINE) == [f"{USER}:{USER}"]
    assert IMAGE.rindex("\nFROM ") < IMAGE.index("\nUSER "), "in the last stage"
    for pod in PODS.values():
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, USER)
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for name in ("worker", "server"):
        assert (COMPOSE["services"][name]["read_only"], COMPOSE["services"][name]["cap_drop"]) == (True, ["ALL"])
    assert all(unit(path)["User"] == ["holdfast"] for path in UNITS)


def test_secrets_come_from_files_and_references_alone() -> None:
    assert COMPOSE["services"]["worker"]["deploy"]["replicas"] == 2
    for service in COMPOSE["services"].values():
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
        given = {value for name, value in service["environment"].items() if name.endswith("_FILE")}
        assert given == {f"/run/secrets/{name}" for name in service["secrets"]}
    (secret,) = (one for one in MANIFESTS if one["kind"] == "Secret")
    for pod in PODS.values():
        taken = [one["valueFrom"]["secretKeyRef"] for one in pod["containers"][0]["env"] if "valueFrom" in one]
        assert taken
        assert all(one["name"] == secret["metadata"]["name"] and one["key"] in secret["stringData"] for one in taken)


def test_the_image_copies_only_what_the_builder_gets() -> None:
    ignored = [line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    sent = [line.removeprefix("!") for line in ignored]
    app = re.search(r"^ARG APP=(.*)$", IMAGE, re.MULTILINE)
    assert app is not None
    for line in re.findall(r"^COPY (?!--from)(.*)$", IMAGE, re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        for source in sources:
            path = source.replace("${APP}", app[1])
            assert (ROOT / path).exists(), path
            assert any(fnmatch(path, one) or path.startswith(f"{one}/") for one in sent), path
    assert all("--require-hashes" in part for part in re.findall(r"pip install .*-r .*", IMAGE))


def test_the_entry_point_reads_secrets_and_becomes_the_command(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://ada:pass word$(id)@db/shop\n")
    script = DEPLOY / "entrypoint.sh"
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_URL_FILE": str(tmp_path / "url"), "HOLDFAST_TOKEN": "kept"}
    show = ["sh", "-c", 'echo "$$ $HOLDFAST_URL $HOLDFAST_TOKEN ${HOLDFAST_URL_FILE-unset}"']
    with subprocess.Popen([script, *show], env=environment, stdout=subprocess.PIPE, text=True) as started:
        shown = started.communicate(timeout=60)[0]
    assert shown == f"{started.pid} postgresql://ada:pass word$(id)@db/shop kept unset\n"
    environment["HOLDFAST_URL_FILE"] = str(tmp_path / "missing")
    ran = subprocess.run([script, "true"], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 2
    assert "cannot read HOLDFAST_URL_FILE=" in ran.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_valid_and_restrict_their_process(path: Path, tmp_path: Path) -> None:
    reader = configparser.RawConfigParser(strict=False)
    reader.read(path)
    assert reader.sections() == ["Unit", "Service", "Install"]
    values = unit(path)
    assert values["EnvironmentFile"] == ["/etc/holdfast/holdfast.env"]
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert values[name] == ["yes"]
    assert values["ProtectSystem"] == ["strict"]
    if (analyze := shutil.which("systemd-analyze")) is not None:
        program = values["ExecStart"][0].split()[0]
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace(program, shutil.which("true") or "/bin/true"))
        ran = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, check=False, timeout=60)
        assert (ran.returncode, [line for line in ran.stderr.splitlines() if path.name in line]) == (0, [])
