"""The trace of a run: its children and theirs belong to the same one."""

from __future__ import annotations

from holdfast import App
from holdfast.client.views import Creation
from support.stories import drain, play


def test_children_belong_to_the_trace_of_their_parent(app: App) -> None:
    @app.job
    async def leaf() -> None:
        pass

    @app.job
    async def middle() -> None:
        await leaf()

    @app.job
    async def root() -> None:
        await middle()

    async def story() -> None:
        for trace in ("4bf92f3577b34da6a3ce929d0e0e4736", None):
            await app.acreate(Creation(plugin_id="shop", entry_id="root", trace_id=trace))
        await drain(app)
        found = [(run.entry_id, run.trace_id) for run in await app.alist()]
        traces = {"4bf92f3577b34da6a3ce929d0e0e4736", None}
        assert sorted(found, key=str) == sorted(
            ((name, t) for name in ("leaf", "middle", "root") for t in traces), key=str
        )

    play(story())
