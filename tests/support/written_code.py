"""Job code that a test writes as text, so that it can change it: the app of some code, on a store."""

from __future__ import annotations

from typing import Any

from holdfast import App
from holdfast.deploys.run_check import RunCheck, check_run
from holdfast.store.memory import MemoryStore
from support.stories import quick


class Shop:
    """The app of some code, on a store."""

    def __init__(self, code: str, store: MemoryStore | None = None) -> None:
        self.made: list[str] = []
        names: dict[str, Any] = {"config": quick("memory:"), "made": self.made}
        exec(compile(code, "shop.py", "exec"), names)  # noqa: S102 - the code of this test
        self.app: App = names["app"]
        if store is not None:
            self.app._opened = store

    def work(self) -> None:
        self.app.worker().run(until_idle=True)

    def check(self, run: str) -> RunCheck:
        found: RunCheck = self.app.block(check_run(self.app, self.app.events(run)))
        return found

    def result(self, run: str) -> Any:
        return self.app.events(run)[-1].payload["result"]

    @property
    def store(self) -> MemoryStore:
        store = self.app.store()
        assert isinstance(store, MemoryStore)
        return store
