"""The fixtures of the pytest plugin, also where the package was installed before it had them."""

from __future__ import annotations

from holdfast.testing.pytest_plugin import lab, world

__all__ = ["lab", "world"]
