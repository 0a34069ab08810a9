"""A JSON object that changes step by step, and the merge patch (RFC 7396) of each step."""

from __future__ import annotations

from typing import Any

Path = tuple[str, ...]


class PatchedView:
    """A JSON object without null and without empty parts, so that null in a patch always removes a part.

    Attributes:
        value: the object. Values that were set are never changed in place.
    """

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self._before: dict[Path, Any] = {}  # the parts that were changed since the last patch, as they were

    def get(self, path: Path) -> dict[str, Any]:
        """Return an object inside this one. It is empty if it is missing."""
        part: Any = self.value
        for name in path:
            part = part.get(name, {})
        return part if isinstance(part, dict) else {}

    def set(self, path: Path, value: Any) -> None:
        """Set a part, or remove it with None. A path must not begin with another path that was set."""
        parent = self.value
        for part in path[:-1]:
            if value is None and part not in parent:
                return
            parent = parent.setdefault(part, {})
        old = parent.get(path[-1])
        if old == value:
            return
        self._before.setdefault(path, old)
        if value is None:
            del parent[path[-1]]
        else:
            parent[path[-1]] = value

    def patch(self) -> dict[str, Any]:
        """Return the merge patch of all changes since the last call."""
        patch: dict[str, Any] = {}
        for path, old in self._before.items():
            new: Any = self.value
            for part in path:
                new = new.get(part)
            if new == old:
                continue
            into = patch
            for part in path[:-1]:
                into = into.setdefault(part, {})
            into[path[-1]] = _difference(old, new)
        for path in self._before:
            if len(path) > 1 and self.value.get(path[0]) == {}:
                del self.value[path[0]]
                patch[path[0]] = None
        self._before = {}
        return patch


def _difference(old: Any, new: Any) -> Any:
    """Return the merge patch from one value to another."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {name: _difference(old.get(name), value) for name, value in new.items() if old.get(name) != value}
    return changed | {name: None for name in old if name not in new}
