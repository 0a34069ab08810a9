"""How old runs are removed: by hand, by settings, and by a schedule."""
