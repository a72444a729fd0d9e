"""A cluster of a controller and one node becomes another release of Kubernetes, with all real programs.

It is a rehearsal: the new release is the same source that calls itself 1.20.3 (tests/kubernetes_sources.py). So it
shows the order, kubeadm's own steps, the images and the drain, and nothing of what differs between two releases. One
difference has a double: a kubelet of another minor release starts the API server again some seconds after its own
start, and here a unit of the test ends the API server then. The cluster is its own, not that of the fixture
`kubernetes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kubernetes_site import KubernetesSite, pod
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.kubernetes_sources import NEXT, REGISTRY, RELEASE, mirror, need_kubernetes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

NODE = "work-1"
ENDED = "/root/api-server-was-ended"
# After kubelet's next start, when it has renewed the lease of its node.
DROP_IN = """\
[Service]
ExecStartPost=-/usr/bin/systemd-run /root/end-the-api-server
"""
END = """\
#!/bin/sh
export KUBECONFIG=/etc/kubernetes/admin.conf
lease() {{ kubectl get --namespace=kube-node-lease --output='jsonpath={{.spec.renewTime}}' lease {controller}; }}
before=$(lease)
until now=$(lease) && [ "$now" != "$before" ]; do :; done
rm {file} && pkill -x kube-apiserver && touch {ended}
"""
PAUSE = f"{REGISTRY}/pause:3.2"


@pytest.fixture(scope="module")
def site() -> Iterator[KubernetesSite]:
    """At RELEASE, and its file wants NEXT."""
    need_kubernetes()
    with KubernetesSite("kup", files=mirror(rehearsal=True)) as made:
        made.file.write_text(made.file.read_text().replace("count: 2}", "count: 1}"))
        made.good("apply")
        made.file.write_text(made.file.read_text().replace(f'release: "{RELEASE}"', f'release: "{NEXT}"'))
        yield made


def releases(site: KubernetesSite) -> dict[str, str]:
    """What the API server reports of itself, and of each kubelet."""
    nodes = {node["metadata"]["name"]: node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes_of(site)}
    return {"": json.loads(site.kubectl("get", "--raw=/version"))["gitVersion"], **nodes}


def nodes_of(site: KubernetesSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.get("nodes")["items"]
    return found


def cordoned(site: KubernetesSite) -> list[str]:
    return [node["metadata"]["name"] for node in nodes_of(site) if node["spec"].get("unschedulable")]


def end_the_api_server_after_the_next_start_of_kubelet(site: KubernetesSite) -> None:
    file = "/etc/systemd/system/kubelet.service.d/test.conf"
    site.on(site.controller, "mkdir", "-p", file.rpartition("/")[0])
    site.on(site.controller, "tee", file, stdin=DROP_IN)
    program = END.format(file=file, ended=ENDED, controller=site.controller)
    place = "/root/end-the-api-server"
    site.on(site.controller, "sh", "-c", f"cat > {place} && chmod 755 {place}", stdin=program)
    site.on(site.controller, "systemctl", "daemon-reload")


def test_apply_does_not_change_the_release(site: KubernetesSite) -> None:
    assert any("kubernetes upgrade" in warning for warning in site.good("plan")["warnings"])
    code, events = site.run("apply")
    assert code == 1
    assert "Run: gpucluster kubernetes upgrade" in events[-1]["message"]
    assert set(releases(site).values()) == {f"v{RELEASE}"}


def test_a_node_that_can_t_be_drained_stops_the_upgrade(site: KubernetesSite) -> None:
    steps = site.good("kubernetes", "upgrade", "--plan")["steps"]
    assert [step.partition(":")[0] for step in steps] == ["control plane", site.controller, NODE]
    # Nothing would start another one.
    site.apply(pod("alone", "default", NODE, "/pause", restartPolicy="Always", container={"image": PAUSE}))
    site.await_ready("default")
    end_the_api_server_after_the_next_start_of_kubelet(site)
    # CoreDNS on the controller has 30 seconds to end, and a busy machine needs as many more.
    code, events = site.run("kubernetes", "upgrade", "--yes", "--drain-timeout", "120")
    assert code == 1, events[-5:]
    site.on(site.controller, "test", "-e", ENDED)
    assert "default/alone" in events[-1]["message"]
    assert releases(site) == {"": f"v{NEXT}", site.controller: f"v{NEXT}", NODE: f"v{RELEASE}"}
    assert cordoned(site) == [NODE]
    assert len(backups(site)) == 1
    # What is half of an upgrade is not for apply.
    code, events = site.run("apply")
    assert code == 1
    assert f"kubelet of {NODE} has the release v{RELEASE}" in events[-1]["message"]


def test_the_same_command_goes_on(site: KubernetesSite) -> None:
    assert site.good("kubernetes", "upgrade", "--plan")["steps"] == [f"{NODE}: {RELEASE} to {NEXT}"]
    site.kubectl("delete", "pod", "alone", "--wait")
    done = site.good("kubernetes", "upgrade", "--yes")
    assert "backup" not in done
    assert len(backups(site)) == 1
    assert set(releases(site).values()) == {f"v{NEXT}"}
    assert cordoned(site) == []
    site.await_ready("kube-system")
    images = {
        container["image"]
        for found in site.get("pods", "--namespace=kube-system")["items"]
        for container in found["spec"]["containers"]
    }
    assert {image.rpartition(":")[2] for image in images if "kube-" in image} == {f"v{NEXT}"}
    for file in ("kubeadm.yaml", ".gpucluster-control-plane"):
        assert f"v{NEXT}" in site.on(site.controller, "cat", f"/etc/kubernetes/{file}")


def test_afterwards_apply_changes_nothing(site: KubernetesSite) -> None:
    assert set(site.good("apply")["changed"].values()) == {0}
    assert site.good("kubernetes", "upgrade", "--plan")["steps"] == []


def backups(site: KubernetesSite) -> list[str]:
    return [file.name for file in (site.file.parent / ".gpucluster" / "backups").iterdir()]
