"""What is wrong with a control plane, in the order of cause and effect, and the next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.kubernetes import control_plane_state
from gpucluster.controller.kubernetes.certificates import Certificate
from gpucluster.controller.kubernetes.etcd import Etcd, Space
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes.kubectl import Kubectl

_HEALTHY = control_plane_state.ControlPlaneFacts(
    server="",
    kubelet=True,
    parts=dict.fromkeys(("etcd", "kube-apiserver"), 1),
    space=Space(1 << 20, 1 << 19, 5, full=False),
    free=1 << 40,
    certificates=[Certificate("apiserver.crt", 1000 * 86400.0, authority=False)],
)


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
