"""Discovery of apps in installed packages, through the entry-point group ``holdfast.plugins``.

A package registers its app with two lines in its ``pyproject.toml``::

    [project.entry-points."holdfast.plugins"]
    shop = "shop.jobs:app"

What can fail: the entry point does not resolve, its module raises, or its object is not an App. Then `InvalidSetting`
names the entry point and the reason. No app is returned, because a worker with half of its jobs would be worse.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from holdfast.client.app import App
from holdfast.errors import InvalidSetting

GROUP = "holdfast.plugins"


def discover() -> list[App]:
    """Import and return the apps of all installed plugins, each once, ordered by entry-point name.

    Raises:
        InvalidSetting: An entry point cannot be imported or is not an App.
    """
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return list({id(app): app for app in map(_load, points)}.values())


def _load(point: EntryPoint) -> App:
    try:
        app = point.load()
    except Exception as error:
        reason = f"it cannot be imported: {type(error).__name__}: {error}; mend or uninstall {_package(point)}"
        raise InvalidSetting(f"the entry point {GROUP}:{point.name}", point.value, reason) from error
    if not isinstance(app, App):
        reason = f"it must be an App, got {type(app).__name__}: an entry point of this group must name an App"
        raise InvalidSetting(f"the entry point {GROUP}:{point.name}", point.value, reason)
    return app


def _package(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist is not None else "its package"
