"""Fixtures of the browser tests: one browser and one filled shop for each module."""

from __future__ import annotations

from support.dashboard import browser, busy_shop, filled, installed, shop

__all__ = ["browser", "busy_shop", "filled", "installed", "shop"]
