"""The HTTP API: the same verbs as a program has, as JSON. A thin layer over `holdfast.client.interface.Client`.

A request passes `request_guard` (bytes, on our own server) · the middleware in `application`, with `request_limits` and
`auth` (size, path) · its route in `routes`, which names the scope that it needs · a handler in `handlers` · `response`,
or `problems`. No route is open unless its route object says so.
"""
