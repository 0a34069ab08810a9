"""The root of the tree that `holdfast.errors` draws."""

from __future__ import annotations

__all__ = ["HoldfastError"]


class HoldfastError(Exception):
    """Base of every error raised by Holdfast."""
