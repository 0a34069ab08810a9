"""HTTP: the same verbs as a program has, for whoever can speak JSON. Thin over `holdfast.client.interface.Client`.

A request's way through it: `limits` (may it be this large?) · `security` (which path, which Host, whose token?) · the
route object in `routes`, which says what scope it needs · a handler in `looking` or `steering` · `answers`, or
`problems`. Nothing is open unless its route object says so.
"""
