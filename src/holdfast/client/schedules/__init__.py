"""Schedules at run time: the interface, its implementation on a store, and explanations."""
