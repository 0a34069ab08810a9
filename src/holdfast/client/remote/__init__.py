"""The client of a Holdfast server: the operations of an app, over HTTP."""
