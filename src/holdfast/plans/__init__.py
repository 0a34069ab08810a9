"""Jobs as graphs: written in Python, read from files, or made by planners. A plan runs as job code does (SPEC E11)."""

from holdfast.plans.builder import Draft
from holdfast.plans.model import Extension, Plan, extend

__all__ = ["Draft", "Extension", "Plan", "extend"]
