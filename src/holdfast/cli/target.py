"""The app that a command works on: from a file, from a module, or from installed plugins."""

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
    """Import ``shop.py``, ``shop`` or ``package.shop:app`` and return its App.

    Args:
        target: The file or module. Optional with `plugins`.
        url: The store of the jobs. Default: that of the App.
        plugins: Include the apps of installed packages. They use the same store.

    Raises:
        UsageError: There is no such file or module, or it does not have exactly one App.
    """
    if target is None and not plugins:
        raise click.UsageError("give a file or module with an App, or --plugins for the apps of installed packages")
    app = _app_in(target) if target is not None else App("plugins", url)
    if url is not None:
        app.url = url
    for plugin in discover() if plugins else []:
        plugin.url = app.url
        try:
            app.include(plugin)
        except ValueError as error:
            raise click.UsageError(f"{target or 'the plugins'} cannot be combined: {error}") from error
    return app


def _app_in(target: str) -> App:
    name, _, attribute = target.partition(":")
    module = _module(name)
    apps = [value for value in vars(module).values() if isinstance(value, App)]
    if attribute:
        apps = [value for value in [getattr(module, attribute, None)] if isinstance(value, App)]
    if not apps:
        raise click.UsageError(f'{target} has no App: write `app = App("name")` at its top level')
    if len({id(app) for app in apps}) > 1:
        raise click.UsageError(f"{target} has several Apps: name one, such as {name}:app")
    return apps[0]


def _module(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise click.UsageError(f"no file or module is named {name!r} ({error})") from error
    if not path.is_file():
        raise click.UsageError(f"no file is named {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "and it can load"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
