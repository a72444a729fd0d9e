"""etcd: space, the alarm of a full one, snapshots; with a real etcd and a real API server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpucluster.controller.kubernetes.etcd import Etcd, Space, space_of
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import needs_api_server, running

_STATUS = '[{"Endpoint":"x","Status":{"header":{"revision":42},"version":"3.4.23","dbSize":2048,"dbSizeInUse":1024}}]'


def test_what_etcdctl_prints() -> None:
    assert space_of(_STATUS, "") == Space(2048, 1024, 42, False)
    assert space_of(_STATUS, "memberID:10276657743932975437 alarm:NOSPACE").full
    with pytest.raises(Failed, match="reports nothing"):
        space_of("{}", "")


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_full_etcd_is_reported_and_compacted_and_a_snapshot_brings_its_objects_back(tmp_path: Path) -> None:
    with running(tmp_path, quota=24 << 20) as server:
        etcd = Etcd(server.etcd, (), tmp_path)
        server.kubectl.run("create", "configmap", "kept", "--from-literal=a=b", "--namespace=default")
        with pytest.raises(ApiFailed) as raised:
            _fill(server.kubectl)
        assert raised.value.kind == faults.SPACE
        assert raised.value.hint == "Run: gpucluster kubernetes compact"
        assert etcd.space().full
        before, after = etcd.compact()
        assert before.full
        assert not after.full
        assert after.size < before.size
        server.kubectl.run("create", "configmap", "later", "--from-literal=a=b", "--namespace=default")
        etcd.snapshot(tmp_path / "snapshot.db")
    assert (tmp_path / "snapshot.db").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("gpucluster-*"))
    restored = tmp_path / "restored"
    restored.mkdir()
    argv = ["etcdctl", "snapshot", "restore", str(tmp_path / "snapshot.db"), f"--data-dir={restored / 'etcd'}"]
    subprocess.run(argv, check=True, capture_output=True)
    with running(restored) as again:
        assert again.kubectl.get("configmap", "later", "default")["data"] == {"a": "b"}


def _fill(kubectl: Kubectl) -> None:
    """Change one object again and again: its old versions fill etcd."""
    meta = {"name": "big", "namespace": "default"}
    kubectl.run("create", "configmap", "big", "--namespace=default")
    for number in range(200):
        whole = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": f"{number}" + "x" * 900_000}}
        kubectl.run("replace", "--filename=-", text=json.dumps(whole))
