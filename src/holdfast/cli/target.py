"""The app that a command works on: from a file, from a module, or from installed plugins."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import click

from holdfast import App
from holdfast.cli.terminal_text import folded
from holdfast.client.plugins import discover
from holdfast.errors import InvalidSetting
from holdfast.import_guard import importing


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
    if path.is_dir():
        dotted = ".".join(path.parts)
        raise click.UsageError(f"{name} is a folder: name a file or a module with an App, such as {dotted}.jobs")
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        with _errors_of(name):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise  # the module exists, and imports another that does not
                raise click.UsageError(f"no file or module is named {name!r} ({error})") from error
    if not path.is_file():
        raise click.UsageError(f"no file is named {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "and it can load"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    with _errors_of(name):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _errors_of(target: str) -> Iterator[None]:
    """Turn an error of the user's module into one message with the user's frames and what to do."""
    try:
        with importing(target):
            yield
    except (click.ClickException, KeyboardInterrupt, SystemExit):
        raise
    except InvalidSetting as error:
        if error.name.startswith("HOLDFAST_"):  # a fault of the environment, not of the module
            raise
        raise _broken(target, error) from error
    except BaseException as error:
        raise _broken(target, error) from error


def _broken(target: str, error: BaseException) -> click.ClickException:
    advice = ""
    if isinstance(error, ImportError) and "relative import" in str(error):
        dotted = ".".join(Path(target).with_suffix("").parts)
        advice = f"\nA file with relative imports must be named as a module: {dotted}"
    elif isinstance(error, ModuleNotFoundError):
        advice = "\nInstall the module, or run the command in the folder that contains it."
    return _BrokenTarget(f"cannot import {target}\n{_users_frames(error)}{advice}")


class _BrokenTarget(click.ClickException):
    exit_code = 2


def _users_frames(error: BaseException) -> str:
    """Return a traceback that starts in the user's code."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, chain=False)
    return "\n".join(folded("".join(lines)))


def _is_own(file: str) -> bool:
    return file.startswith(("<frozen", str(Path(__file__).parents[1]), importlib.__path__[0]))
