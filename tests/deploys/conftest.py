"""An app on each store."""

from support.app_fixtures import app, url, values_as_replayed

__all__ = ["app", "url", "values_as_replayed"]
