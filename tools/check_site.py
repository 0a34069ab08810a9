"""Checks that the pages in site/ load nothing from another host: no script, style, font, image or frame.

`make site` runs it. The theme's bundle knows addresses of scripts that it loads for certain elements, such as Mermaid
diagrams; a page with such an element fails too.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
LOADING_LINKS = {"stylesheet", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch", "icon"}
FETCHED = {"mermaid", "glightbox", "pyodide"}  # classes for which the theme loads a script from another host


class Page(HTMLParser):
    """What one page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what this element makes a browser load."""
        values = {name: value or "" for name, value in attrs}
        address = values.get(LOADS.get(tag, ""), "")
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            address = values.get("href", "")
        if re.match(r"(?:https?:)?//", address):
            self.found.append(f"<{tag}> loads {address}")
        for name in FETCHED & set(values.get("class", "").split()):
            self.found.append(f"<{tag} class={name}> makes the theme load a script")


def loads_from_elsewhere(site: Path) -> list[str]:
    """Return one line for each thing that a page or style sheet of a site loads from another host."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(path.read_text())
        found += [f"{path.relative_to(site)}: {thing}" for thing in page.found]
    for path in sorted(site.rglob("*.css")):
        addresses = re.findall(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"') ]+)", path.read_text())
        found += [f"{path.relative_to(site)}: loads {address}" for address in addresses]
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not any(site.rglob("*.html")):
        sys.exit(f"{site} has no pages: run make site")
    if lines := loads_from_elsewhere(site):
        sys.exit("\n".join(lines))
    print("no page loads anything from another host")
