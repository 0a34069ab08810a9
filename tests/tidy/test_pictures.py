"""The pictures in the README are of the real thing: the script that records them works, and shows what they show."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from support.scripts import ROOT

PICTURES = ("follow.svg", "end.svg")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    subprocess.run([sys.executable, ROOT / "tools" / "record_terminal.py", folder], check=True, timeout=120)
    return folder


def words(picture: Path) -> str:
    """What can be read in a picture, from top to bottom."""
    ET.parse(picture)  # noqa: S314 - our own picture; it must be one
    rows: dict[float, list[tuple[float, str]]] = {}
    found = re.findall(r'<text [^>]*?x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture.read_text())
    for across, down, text in found:
        rows.setdefault(float(down), []).append((float(across), html.unescape(text).replace("\xa0", " ")))
    return "\n".join("".join(text for _, text in sorted(rows[down])) for down in sorted(rows))


@pytest.mark.parametrize("folder", ["new", "kept"])
def test_the_pictures_show_a_killed_worker_and_a_card_charged_once(folder: str, recorded: Path) -> None:
    images = recorded if folder == "new" else ROOT / "docs" / "images"
    middle, end = (words(images / name) for name in PICTURES)
    for shown in (middle, end):
        assert shown.startswith("$ holdfast start shop.py checkout sku=A1 card=4242 --follow")
        assert shown.index("attempt 1") < shown.index("its worker is gone") < shown.index("attempt 2")
        assert shown.count("charge(") == 1
    assert "pack(" in middle, "a step under way"
    assert "━━━" in middle, "and the live bar"
    assert "succeeded in" in end
    assert "the history is valid" in end


def test_the_pictures_fetch_nothing(recorded: Path) -> None:
    for folder in (recorded, ROOT / "docs" / "images"):
        for name in PICTURES:
            assert not re.search(r"url\((?!#)|href|@import", (folder / name).read_text())
