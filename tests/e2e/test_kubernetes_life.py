"""The life of a control plane: its state, its certificates, and its backup, by the command and over ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kubernetes_site import KubernetesSite, pod
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(PATIENCE_TO_BUILD_S)]

MAP = "configmap"


def test_the_control_plane_is_well(kubernetes: KubernetesSite) -> None:
    code, events = kubernetes.run("kubernetes", "status")
    state = events[-1]["data"]
    assert (code, state["ready"], state["problems"]) == (0, True, [])
    assert 0 < state["etcd"]["used"] <= state["etcd"]["size"]


def test_a_kubelet_that_does_not_run_is_a_problem_with_its_next_command(kubernetes: KubernetesSite) -> None:
    kubernetes.on(kubernetes.controller, "systemctl", "stop", "kubelet")
    try:
        code, events = kubernetes.run("kubernetes", "status")
    finally:
        kubernetes.on(kubernetes.controller, "systemctl", "start", "kubelet")
    assert code != 0
    assert any("kubelet does not run" in each["message"] and each["hint"] for each in events[-1]["data"]["problems"])
    kubernetes.until("the control plane is well again", lambda: kubernetes.run("kubernetes", "status")[0] == 0)


def test_renewed_certificates_are_in_use_and_pods_run_on(kubernetes: KubernetesSite) -> None:
    node = min(kubernetes.nodes())
    serial = "openssl s_client -connect localhost:6443 </dev/null 2>/dev/null | openssl x509 -noout -serial"
    with kubernetes.namespace() as space:
        kubernetes.apply(pod("stays", space, node, "sleep", "infinity"))
        kubernetes.await_ready(space)
        before = kubernetes.on(kubernetes.controller, "sh", "-c", serial)
        done = kubernetes.good("kubernetes", "certificates", "--renew")
        assert "apiserver.crt" in " ".join(done["renewed"])
        assert all(each["days"] >= 364 for each in done["certificates"] if each["file"] in done["renewed"])
        assert kubernetes.on(kubernetes.controller, "sh", "-c", serial) != before
        # kubelets have the same CA: they go on, and so does the pod.
        kubernetes.until("all nodes are ready", lambda: all(kubernetes.nodes().values()))
        (one,) = kubernetes.get("pods", f"--namespace={space}")["items"]
        assert one["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_restore_brings_objects_back_and_forgets_later_ones(kubernetes: KubernetesSite, tmp_path: Path) -> None:
    file = tmp_path / "kube.tar.gz"
    with kubernetes.namespace() as space:
        here = f"--namespace={space}"
        kubernetes.kubectl("create", MAP, "kept", here, "--from-literal=word=before")
        # What is on its way out would be counted before, and be gone afterwards.
        kubernetes.until("namespaces of earlier tests are gone", lambda: _namespaces_of_tests(kubernetes) == {space})
        made = kubernetes.good("backup", str(file))
        assert made["kubernetes_objects"] > 0
        assert file.stat().st_mode & 0o077 == 0
        kubernetes.kubectl("delete", MAP, "kept", here)
        kubernetes.kubectl("create", MAP, "later", here)
        done = kubernetes.good("restore", str(file))
        # What runs there has made events since.
        assert done["kubernetes_objects"] >= made["kubernetes_objects"]
        assert kubernetes.get(MAP, "kept", here)["data"] == {"word": "before"}
        assert "later" not in kubernetes.kubectl("get", MAP, here, "--output=name")
        # The same CA: nodes need no apply, and take pods.
        kubernetes.until("both nodes are ready", lambda: list(kubernetes.nodes().values()) == [True, True])
        kubernetes.apply(pod("after", space, min(kubernetes.nodes()), "sleep", "infinity"))
        kubernetes.await_ready(space)
    kubernetes.until("the control plane is well again", lambda: kubernetes.run("kubernetes", "status")[0] == 0)


def _namespaces_of_tests(site: KubernetesSite) -> set[str]:
    names = {each["metadata"]["name"] for each in site.get("namespaces")["items"]}
    return {name for name in names if name.startswith("test-")}
