"""Jobs as graphs, written by people, read from files or made by planners; run as a job's code is (SPEC E11)."""

from holdfast.plans.builder import Draft
from holdfast.plans.model import Extension, Plan, extend

__all__ = ["Draft", "Extension", "Plan", "extend"]
