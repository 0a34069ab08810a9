"""The Python API: the app, its runs, and the store that a URL names. It connects authoring, engine, plans and store."""
