"""etcd: space, the alarm of a full one, snapshots; with a real etcd and a real API server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpucluster.controller.kubernetes import control_plane_state
from gpucluster.controller.kubernetes.certificates import Certificate
from gpucluster.controller.kubernetes.etcd import Etcd, Space, space_of
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import faults
from gpucluster.node_agent.kubernetes.kubectl import ApiFailed, Kubectl
from tests.controller.kubernetes.api_server import needs_api_server, running

_STATUS = '[{"Endpoint":"x","Status":{"header":{"revision":42},"version":"3.4.23","dbSize":2048,"dbSizeInUse":1024}}]'
_HEALTHY = control_plane_state.ControlPlaneFacts(
    server="",
    kubelet=True,
    parts=dict.fromkeys(("etcd", "kube-apiserver"), 1),
    space=Space(1 << 20, 1 << 19, 5, full=False),
    free=1 << 40,
    certificates=[Certificate("apiserver.crt", 1000 * 86400.0, authority=False)],
)


def test_what_etcdctl_prints() -> None:
    assert space_of(_STATUS, "") == Space(2048, 1024, 42, False)
    assert space_of(_STATUS, "memberID:10276657743932975437 alarm:NOSPACE").full
    with pytest.raises(Failed, match="reports nothing"):
        space_of("{}", "")


def test_a_healthy_control_plane_has_no_problem() -> None:
    assert control_plane_state.judged(_HEALTHY, 0.0) == []


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"certificates": [Certificate("pki/apiserver.crt", -1.0, False)]}, "certificates expired: pki/apiserver.crt",
         "gpucluster kubernetes certificates --renew"),
        ({"certificates": [Certificate("pki/ca.crt", 86400.0, True)]}, "CA pki/ca.crt ends in 1 days",
         "by hand"),
        ({"space": Space(2 << 30, 1, 5, True)}, "etcd is full (2048 MiB)", "gpucluster kubernetes compact"),
        ({"space": Space(1900 << 20, 1, 5, False)}, "etcd stores 1900 MiB", "gpucluster kubernetes compact"),
        ({"free": 1 << 20}, "the disk of etcd has 1 MiB left", "Free space"),
        ({"kubelet": False, "server": "refused"}, "kubelet does not run", "journalctl --unit kubelet"),
        ({"kubelet_expired": True}, "the certificate of kubelet on the controller has expired", "--renew"),
        ({"parts": None}, "containerd gives no answer", "systemctl status containerd"),
        ({"parts": {"etcd": 0, "kube-apiserver": 1}}, "etcd does not run", "log"),
        ({"server": "the API server gives no answer"}, "the API server gives no answer", "journalctl"),
        ({"stuck": [{"message": "namespace a does not end", "hint": "edit"}]}, "namespace a does not end", "edit"),
    ],
)  # fmt: skip
def test_each_misfortune_has_its_message_and_the_next_command(
    change: dict[str, object], message: str, hint: str
) -> None:
    (found,) = control_plane_state.judged(_HEALTHY._replace(**change), 0.0)  # type: ignore[arg-type]
    assert message in found["message"]
    assert hint in found["hint"]


def test_the_cause_comes_before_what_follows_from_it() -> None:
    expired = [Certificate("apiserver.crt", -1.0, False)]
    parts = {"etcd": 1, "kube-apiserver": 0}
    found = control_plane_state.judged(_HEALTHY._replace(certificates=expired, parts=parts, server="dead"), 0.0)
    assert ["expired" in found[0]["message"], "kube-apiserver does not run" in found[1]["message"]] == [True, True]


@pytest.mark.parametrize("known", [True, False])
def test_a_wait_that_fails_reports_what_is_wrong_and_not_only_that_there_is_no_answer(
    known: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problems = [{"message": "kubelet does not run", "hint": "look"}, {"message": "etcd does not run", "hint": "else"}]
    monkeypatch.setattr(control_plane_state, "look", lambda *_: {"problems": problems if known else []})
    kubectl = tmp_path / "kubectl"  # a double: no API server is there
    kubectl.write_text("#!/bin/sh\necho 'The connection to the server was refused' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    with pytest.raises(Failed) as raised:
        control_plane_state.await_ready(Kubectl("/none", str(kubectl)), Etcd(), lambda _: None, 0)
    if known:
        assert (raised.value.message, raised.value.hint) == ("kubelet does not run; etcd does not run", "look")
    else:
        assert "the API server is not ready after 0 s" in raised.value.message


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
