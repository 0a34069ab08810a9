"""Every package in the locks is hashed and has a known licence, and the bill of materials lists it."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import ROOT, load

LOCKS = sorted(ROOT.glob("requirements*.lock"))
BY_LOCK = pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)

# How older metadata names a licence, in a field or a classifier.
NAMES = {
    "Apache-2.0": r"apache",
    "BSD-2-Clause": r"bsd",
    "BSD-3-Clause": r"bsd",
    "ISC": r"\bisc",
    "LGPL-3.0-only": r"lesser general public license v3|lgpl",
    "MIT": r"\bmit\b",
    "MPL-2.0": r"mpl|mozilla public license 2",
    "PSF-2.0": r"python software foundation|psf",
    "any-OSI": r"any-osi",
}


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    return load(ROOT / "tools" / "sbom.py")


def parts(expression: str) -> list[str]:
    return re.split(r" (?:AND|OR) ", expression)


@BY_LOCK
def test_every_pin_of_a_lock_is_hashed(lock: Path, sbom: ModuleType) -> None:
    pins = sbom.pins(lock)
    assert len(pins) == len(re.findall(r"^[^#\s].*==", lock.read_text(), re.MULTILINE)) > 0
    assert [pin.name for pin in pins if not pin.hashes] == []


def test_every_package_has_a_licence_that_may_be_used(sbom: ModuleType) -> None:
    allowed, known = sbom.licences()
    assert set(known) == {pin.name for lock in LOCKS for pin in sbom.pins(lock)}
    assert {name: text for name, text in known.items() if not set(parts(text)) <= allowed} == {}
    assert set(NAMES) == allowed


def test_the_table_says_what_the_installed_packages_say(sbom: ModuleType) -> None:
    _, known = sbom.licences()
    compared = 0
    for name, text in known.items():
        try:
            found: Any = metadata(name)
        except PackageNotFoundError:
            continue  # of another system, or of a lock that is not installed here
        compared += 1
        if (expression := found["License-Expression"]) is not None:
            assert expression == text, name
            continue
        told = [found["License"] or "", *(found.get_all("Classifier") or [])]
        told = [told[0].split("\n")[0], *(one for one in told[1:] if one.startswith("License ::"))]
        assert all(re.search(NAMES[part], " ".join(told), re.IGNORECASE) for part in parts(text)), (name, told)
    runtime = {pin.name for pin in sbom.pins(ROOT / "requirements-run.lock") if not pin.marker}
    assert compared >= len(runtime)


@pytest.mark.parametrize("name", ["requirements-deploy.lock", "requirements.lock"])
def test_the_bill_of_materials_lists_every_package_with_its_hashes(name: str, sbom: ModuleType) -> None:
    lock = ROOT / name
    made = json.loads(json.dumps(sbom.bill(lock)))
    assert (made["bomFormat"], made["specVersion"], made["metadata"]["component"]["name"]) == (
        "CycloneDX", "1.6", "holdfast-jobs",
    )  # fmt: skip
    listed = {(one["name"], one["version"], len(one["hashes"])) for one in made["components"]}
    assert listed == {(pin.name, pin.version, len(pin.hashes)) for pin in sbom.pins(lock)}
    references = [one["bom-ref"] for one in made["components"]]
    assert len(set(references)) == len(references)
    assert made["dependencies"][0]["dependsOn"] == references
    assert all(one["licenses"] for one in made["components"])
    assert sbom.bill(lock) == sbom.bill(lock), "the same bytes each time"
