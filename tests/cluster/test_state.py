"""The state of a cluster: an empty one, and the identity that an operator names."""

from __future__ import annotations

import pytest

from gpucluster.cluster import Cluster, state
from gpucluster.cluster.composition import Options, Parts, compose
from gpucluster.errors import ToolError
from gpucluster.lifecycle.ownership import Ownership


def test_an_empty_state_is_an_error_with_the_next_command(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ownership, "outputs", lambda _: {})
    with pytest.raises(ToolError, match="this folder has no state of it") as caught:
        cluster.state.outputs()
    assert caught.value.hint.endswith("gpucluster state recover")
    (cluster.paths.root / "hosts.json").unlink()
    monkeypatch.setattr(type(cluster._parts.cloud), "in_use", lambda _: False)
    with pytest.raises(ToolError, match="there is no cluster yet"):
        cluster.state.outputs()


def test_a_named_identity_is_that_of_the_recovery(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    composed: list[Options] = []

    def composing(options: Options) -> Parts:
        composed.append(options)
        parts = compose(options)
        monkeypatch.setattr(type(parts.identity.runs), "run", lambda *_, **_more: pytest.fail("begun"))
        return parts

    monkeypatch.setattr(state, "compose", composing)
    with pytest.raises(pytest.fail.Exception, match="begun"):
        cluster.state.recover("0123456789abcdef")
    assert [each.cluster_id for each in composed] == ["0123456789abcdef"]
