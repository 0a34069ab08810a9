"""A client of a Holdfast server: the verbs of an app, over HTTP."""
