"""The HTTP API: the operations of `holdfast.client.interface.Client` as JSON. It is a thin layer over that client.

A request passes these steps:

1. `request_guard` checks its bytes, on Holdfast's own server.
2. The middleware in `application` checks size and path, with `request_limits` and `auth`.
3. Its route in `routes` names the scope that the token needs.
4. A handler in `handlers` does the work.
5. `response` or `problems` builds the response.

A route needs a token unless its route object declares it public.
"""
