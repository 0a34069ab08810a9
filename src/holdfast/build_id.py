"""The build of an app's code, found from files: the version of its distribution, and its git revision.

It is found once, when a worker starts, and no program is run for it. It is never a hash of the source: a comment would
change that, and the same code on two hosts may differ in its files. A revision does not show uncommitted changes.

A file that cannot be read means that this part of the build is not known. Nothing raises.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.config import BUILD_MAX

REVISION_LENGTH = 12  # characters of a git revision that are shown
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def found_build(module: str) -> str | None:
    """Return the build of the code of a module; None if it is not known."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    try:
        return _build_at(Path(file).resolve(), module.partition(".")[0])
    except (OSError, ValueError):
        return None


def _build_at(file: Path, package: str) -> str | None:
    distribution = _distribution(file, package)
    if distribution is None:
        return git_revision(file.parent)
    version, origin = distribution.version or "", _origin(distribution)
    if origin.get("dir_info", {}).get("editable"):
        revision = git_revision(file.parent)
    else:
        revision = _shown(str(origin.get("vcs_info", {}).get("commit_id", "")))
    if revision is None or revision[:7] in version:  # some versions have the revision
        return version[:BUILD_MAX] or None
    return f"{version}{'.' if '+' in version else '+'}{revision}"[:BUILD_MAX] if version else revision


def _distribution(file: Path, package: str) -> Distribution | None:
    """Return the installed distribution that has a module's file; None for code that is not installed."""
    installed_in = _folder_of(file, package)
    for distribution in distributions(path=[str(installed_in)]):
        if _has(distribution, package):
            return distribution
    for distribution in distributions(name=package):
        source = urlsplit(str(_origin(distribution).get("url", "")))  # editable: its files stay where they were
        if source.scheme == "file" and file.is_relative_to(Path(unquote(source.path)).resolve()):
            return distribution
    return None


def _folder_of(file: Path, package: str) -> Path:
    """Return the folder in which the import system has found a top-level package or module."""
    for parent in file.parents if file.stem != package else ():
        if parent.name == package:
            return parent.parent
    return file.parent


def _has(distribution: Distribution, package: str) -> bool:
    names = distribution.read_text("top_level.txt")
    if names is not None:
        return package in names.split()
    files = f"\n{distribution.read_text('RECORD') or ''}"
    return f"\n{package}/" in files or f"\n{package}.py," in files


def _origin(distribution: Distribution) -> dict[str, Any]:
    """Return from where a distribution was installed (PEP 610)."""
    text = distribution.read_text("direct_url.json")
    origin = json.loads(text) if text else {}
    return origin if isinstance(origin, dict) else {}


def git_revision(folder: Path) -> str | None:
    """Return the revision of the git work tree that a folder is in, from the files of git."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if git.is_dir():
            return _shown(_head(git))
        if git.is_file():  # a linked work tree, or a submodule
            path = git.read_text().removeprefix("gitdir:").strip()
            return _shown(_head(parent / path))
    return None


def _head(git: Path) -> str:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = git / common.read_text().strip() if common.is_file() else git
    for place in (git, shared):
        if (place / name).is_file():
            return (place / name).read_text().strip()
    packed = shared / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        revision, _, ref = line.partition(" ")
        if ref == name:
            return revision
    return ""


def _shown(revision: str) -> str | None:
    return revision[:REVISION_LENGTH] if _REVISION.fullmatch(revision) else None
