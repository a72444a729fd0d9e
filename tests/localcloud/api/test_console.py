"""Console histories whose row changes while the console is read; the SDK's view of them: test_instances_elastic.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpucluster.localcloud.api import kinds
from gpucluster.localcloud.api.console import HISTORY, capture
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.server.home import open_authority, open_cloud
from gpucluster.oci.states import LifecycleState


class Read(NullEngine):
    """The null engine, in which something happens while a console is read."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def console(self, name: str) -> bytes:
        self.meanwhile()
        return b"login:"


def test_one_that_is_deleted_while_the_console_is_read_stays_deleted(tmp_path: Path) -> None:
    engine = Read(tmp_path / "null")
    cloud = open_cloud(tmp_path, engine, open_authority(tmp_path))
    try:
        rows = [
            cloud.new(HISTORY.name, {"lifecycleState": LifecycleState.REQUESTED}, {"name": "x", "content": ""})
            for _ in range(2)
        ]
        capture(cloud, rows[0].id)
        engine.meanwhile = lambda: kinds.remove(cloud, HISTORY, rows[1].id)
        capture(cloud, rows[1].id)
        read, deleted = (cloud.get(HISTORY.name, row.id) for row in rows)
        assert (read.state, read.hidden["content"]) == ("SUCCEEDED", "login:")
        assert (deleted.state, deleted.gone_at is None) == ("DELETED", False)
    finally:
        cloud.close()
