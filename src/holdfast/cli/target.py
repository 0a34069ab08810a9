"""Finds the app that a command is about: in a file, in a module, or among the installed plugins."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import click

from holdfast import App
from holdfast.client.plugins import discover

__all__ = ["load"]


def load(target: str | None, url: str | None = None, *, plugins: bool = False) -> App:
    """Import ``shop.py``, ``shop`` or ``package.shop:app`` and give the App in it, its jobs at `url` if given.

    With `plugins` it includes the apps that installed packages offer, and they keep their jobs where it does. Those
    alone do without a target.
    """
    if target is None and not plugins:
        raise click.UsageError("name a file or a module with an App in it, or serve installed ones with --plugins")
    app = _found(target) if target is not None else App("plugins", url)
    if url is not None:
        app.url = url
    for plugin in discover() if plugins else []:
        plugin.url = app.url
        try:
            app.include(plugin)
        except ValueError as error:
            raise click.UsageError(f"{target or 'the plugins'} cannot be served together: {error}") from error
    return app


def _found(target: str) -> App:
    name, _, attribute = target.partition(":")
    module = _module(name)
    found = [value for value in vars(module).values() if isinstance(value, App)]
    if attribute:
        found = [value for value in [getattr(module, attribute, None)] if isinstance(value, App)]
    if not found:
        raise click.UsageError(f'{target} has no App in it: write `app = App("name")` at its top level')
    if len({id(app) for app in found}) > 1:
        raise click.UsageError(f"{target} has several Apps: say which, as in {name}:app")
    return found[0]


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
