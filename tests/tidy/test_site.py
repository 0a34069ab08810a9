"""The site of the documentation loads nothing from another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripts import ROOT, load


@pytest.mark.parametrize(
    "loaded",
    [
        '<script src="https://cdn.example.com/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example.com/a.css">',
        '<link rel="preconnect" href="https://fonts.example.com">',
        '<img src="https://badges.example.com/a.svg">',
        '<pre class="mermaid"><code>graph LR</code></pre>',
    ],
)
def test_a_page_that_loads_from_another_host_is_found(loaded: str, tmp_path: Path) -> None:
    check = load(ROOT / "tools" / "check_site.py").loads_from_elsewhere
    page = tmp_path / "index.html"
    page.write_text('<script src="assets/a.js"></script><a href="https://example.com">a link</a><img src="a.svg">')
    assert check(tmp_path) == []
    page.write_text(f"<html><body>{loaded}</body></html>")
    assert len(check(tmp_path)) == 1


def test_a_style_sheet_that_loads_a_font_from_another_host_is_found(tmp_path: Path) -> None:
    check = load(ROOT / "tools" / "check_site.py").loads_from_elsewhere
    (tmp_path / "a.css").write_text("@font-face{src:url(../fonts/a.woff2)}")
    assert check(tmp_path) == []
    (tmp_path / "a.css").write_text('@font-face{src:url("https://fonts.example.com/a.woff2")}')
    assert len(check(tmp_path)) == 1


def test_no_page_of_the_site_needs_a_script_for_its_diagrams() -> None:
    assert [page.name for page in (ROOT / "docs").rglob("*.md") if "```mermaid" in page.read_text()] == []
    assert "tools/check_site.py site" in (ROOT / "Makefile").read_text()
