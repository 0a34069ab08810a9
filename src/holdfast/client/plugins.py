"""Apps that installed packages offer, found through the entry-point group ``holdfast.plugins``.

A package offers its app with two lines of its ``pyproject.toml``::

    [project.entry-points."holdfast.plugins"]
    shop = "shop.jobs:app"

What can go wrong: the entry point leads nowhere, its module fails, or what it names is no App. Then `InvalidSetting`
names the entry point and the reason, and no app is given: half of what was asked for would be worse.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from holdfast.client.app import App
from holdfast.errors import InvalidSetting

__all__ = ["GROUP", "discover"]

GROUP = "holdfast.plugins"


def discover() -> list[App]:
    """Import the apps of all installed plugins, each once, in the order of their entry points' names.

    Raises:
        InvalidSetting: an entry point cannot be imported, or is no App.
    """
    found = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return list({id(app): app for app in map(_load, found)}.values())


def _load(point: EntryPoint) -> App:
    try:
        found = point.load()
    except Exception as error:
        said = f"it cannot be imported: {type(error).__name__}: {error}; mend or uninstall {_package(point)}"
        raise InvalidSetting(f"the entry point {GROUP}:{point.name}", point.value, said) from error
    if not isinstance(found, App):
        said = f"it is no App but a {type(found).__name__}: an entry point of this group names an App"
        raise InvalidSetting(f"the entry point {GROUP}:{point.name}", point.value, said)
    return found


def _package(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist is not None else "its package"
