"""Schedules: when jobs start by themselves. Pure: the time and the open runs are arguments."""
