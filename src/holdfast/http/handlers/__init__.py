"""Handlers of the HTTP API, one module per subject."""
