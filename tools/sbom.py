"""Writes a software bill of materials from a lock and the table of licences: CycloneDX 1.6 as JSON, without a network.

`make sbom` runs it. By default it lists what an image of deploy/Dockerfile contains. The result depends only on the
files, so equal locks give equal bytes.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Pin", "bill", "licences", "pins"]

ROOT = Path(__file__).parents[1]


class Pin(NamedTuple):
    """One package of a lock."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pins(lock: Path) -> list[Pin]:
    """Return the packages of a lock, in its order."""
    found = []
    for entry in re.split(r"\n(?=\S)", lock.read_text()):
        if (start := re.match(r"([a-z0-9][\w.-]*)==([^\s;\\]+)(?:\s*;\s*([^\\\n]*))?", entry)) is not None:
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry))
            found.append(Pin(start[1], start[2], (start[3] or "").strip(), hashes))
    return found


def licences() -> tuple[set[str], dict[str, str]]:
    """Return the licences that may be used, and the licence of each package."""
    table = tomllib.loads((ROOT / "tools" / "licences.toml").read_text())
    return set(table["allowed"]), table["packages"]


def bill(lock: Path) -> dict[str, Any]:
    """Return the bill of materials of a lock.

    Raises:
        KeyError: The table of licences lacks a package.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _, known = licences()
    root = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [_component(pin, known[pin.name]) for pin in pins(lock)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, root + lock.read_text())}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": root,
                "name": project["name"],
                "version": project["version"],
                "purl": root,
                "licenses": [{"expression": project["license"]}],
            },
        },
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _component(pin: Pin, licence: str) -> dict[str, Any]:
    place = f"pkg:pypi/{pin.name}@{pin.version}"
    known = {"license": {"name": licence}} if licence == "any-OSI" else {"expression": licence}
    return {
        "type": "library",
        "bom-ref": place,
        "name": pin.name,
        "version": pin.version,
        "purl": place,
        "licenses": [known],
        "hashes": [{"alg": "SHA-256", "content": content} for content in pin.hashes],
        **({"properties": [{"name": "holdfast:marker", "value": pin.marker}]} if pin.marker else {}),
    }


if __name__ == "__main__":
    lock, destination = Path(sys.argv[1]), Path(sys.argv[2])
    made = bill(lock)
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_text(json.dumps(made, indent=2) + "\n")
    print(f"wrote {destination}: {len(made['components'])} packages of {lock.name}")
