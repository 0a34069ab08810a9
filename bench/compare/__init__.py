"""Holdfast and its peers, measured side by side in one run: `make compare`.

Modules that run in a peer's own environment (`peer`, `process`, `tally` and `peers/`) import the standard library and
that peer, nothing else. All other modules run in the environment of Holdfast.
"""
