"""Finds the app that a command is about: in a file, or in a module that can be imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import click

from holdfast import App

__all__ = ["load"]


def load(target: str, url: str | None = None) -> App:
    """Import ``shop.py``, ``shop`` or ``package.shop:app`` and give the App in it, its jobs at `url` if given."""
    name, _, attribute = target.partition(":")
    module = _module(name)
    found = [value for value in vars(module).values() if isinstance(value, App)]
    if attribute:
        found = [value for value in [getattr(module, attribute, None)] if isinstance(value, App)]
    if not found:
        raise click.UsageError(f'{target} has no App in it: write `app = App("name")` at its top level')
    if len({id(app) for app in found}) > 1:
        raise click.UsageError(f"{target} has several Apps: say which, as in {name}:app")
    app = found[0]
    if url is not None:
        app.url = url
    return app


def _module(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise click.UsageError(f"there is no file and no module {name!r} ({error})") from error
    if not path.is_file():
        raise click.UsageError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "and it can load"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
