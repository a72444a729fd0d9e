"""Bad luck on a cluster: each fault has a clear message, and the next `gpucluster apply` makes the cluster whole.

Of the same kind elsewhere: kubelet that does not run (test_kubernetes_life.py), a lost node (test_kubernetes.py), a
drain that is refused (test_kubernetes_upgrade.py).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpucluster.node_agent.kubernetes.faults import DEAD, explained
from gpucluster.node_agent.kubernetes.kubectl import ADMIN
from tests.e2e.kubernetes_site import KubernetesSite, pod
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.kubernetes_sources import RELEASE, mirror
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(PATIENCE_TO_BUILD_S)]

PKI = "/etc/kubernetes/pki"
#: A certificate for the same names that ended in 2020.
EXPIRE = f"""
set -e
cd {PKI}
openssl x509 -x509toreq -copy_extensions copyall -in apiserver.crt -signkey apiserver.key -out /tmp/old.csr
openssl x509 -req -in /tmp/old.csr -copy_extensions copyall -CA ca.crt -CAkey ca.key -set_serial 7 \
    -not_before 20200101000000Z -not_after 20200201000000Z -out apiserver.crt
rm /tmp/old.csr
"""
KILL = "kill -KILL $(pgrep -x {part})"
ETCD = "/etc/kubernetes/manifests/etcd.yaml"


def test_a_dead_api_server_is_reported_and_apply_starts_it(kubernetes: KubernetesSite) -> None:
    control = kubernetes.controller
    kubernetes.on(control, "sh", "-c", f"systemctl stop kubelet && {KILL.format(part='kube-apiserver')}")
    assert not _ready(kubernetes)
    problem = _problems(kubernetes)[0]
    assert "kubelet does not run on the controller" in problem["message"]
    kubernetes.good("apply")
    # Parts of the control plane that have lost their lease meanwhile end, and kubelet starts them again after a while.
    kubernetes.until("the control plane has no problems", lambda: not _problems(kubernetes))


def test_apply_renews_a_certificate_that_has_expired(kubernetes: KubernetesSite) -> None:
    kubernetes.on(kubernetes.controller, "sh", "-c", EXPIRE)
    kubernetes.on(kubernetes.controller, "sh", "-c", KILL.format(part="kube-apiserver"))
    kubernetes.until("kubectl complains about the certificate", lambda: "certificate" in _kubectl_error(kubernetes))
    problem = _problems(kubernetes)[0]
    assert f"1 of the control plane's certificates expired: {PKI}/apiserver.crt" in problem["message"]
    assert problem["hint"] == "Run: gpucluster kubernetes certificates --renew"
    kubernetes.good("apply")
    assert _ready(kubernetes)
    ends = kubernetes.on(kubernetes.controller, "openssl", "x509", "-noout", "-checkend", "86400", "-in",
                         f"{PKI}/apiserver.crt")  # fmt: skip
    assert "will not expire" in ends
    kubernetes.until("all nodes are ready", lambda: all(kubernetes.nodes().values()))


def test_a_full_etcd_is_reported_and_after_compact_apply_goes_on(kubernetes: KubernetesSite) -> None:
    manifest = kubernetes.on(kubernetes.controller, "cat", ETCD)
    # A controller manager whose API server was dead ends namespaces of before only now.
    kubernetes.until("the control plane has no problems", lambda: not _problems(kubernetes))
    size = kubernetes.good("kubernetes", "status")["etcd"]["size"]
    with kubernetes.namespace() as space:
        try:
            # etcd's own limit is 2 GiB.
            _restart_etcd(
                kubernetes, manifest.replace("- etcd\n", f"- etcd\n    - --quota-backend-bytes={size + (8 << 20)}\n")
            )
            assert "etcd is full" in _fill(kubernetes, space)
            problem = next(each for each in _problems(kubernetes) if "etcd" in each["message"])
            assert ("etcd is full" in problem["message"], problem["hint"]) == (
                True,
                "Run: gpucluster kubernetes compact",
            )
            code, events = kubernetes.run("apply")
            assert code == 1
            assert "etcd is full" in str(events[-1]), events[-1]
            kubernetes.good("kubernetes", "compact")
            kubernetes.good("apply")
        finally:
            _restart_etcd(kubernetes, manifest)
    # Parts of the control plane that have lost their lease meanwhile end, and kubelet starts them again after a while.
    kubernetes.until("the control plane has no problems", lambda: not _problems(kubernetes))


def test_a_namespace_that_does_not_end_is_reported_and_hinders_no_apply(kubernetes: KubernetesSite) -> None:
    held = {"name": "held", "namespace": "stuck", "finalizers": ["example.com/gone"]}
    kubernetes.kubectl("create", "namespace", "stuck")
    kubernetes.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": held})
    kubernetes.kubectl("delete", "namespace", "stuck", "--wait=false")
    try:
        # Parts of the control plane may start again beside it, see above.
        problem = wait_for(
            "the object that holds the namespace is named",
            lambda: next((each for each in _problems(kubernetes) if "example.com/gone" in str(each)), None),
            interval=0.5,
            state=kubernetes._state,
        )
        assert problem is not None
        assert "namespace stuck does not end" in problem["message"]
        kubernetes.good("apply")
    finally:
        kubernetes.kubectl("patch", "configmap", "held", "--namespace=stuck", "--type=merge",
                           '--patch={"metadata": {"finalizers": null}}')  # fmt: skip
    kubernetes.until("the control plane has no problems", lambda: _problems(kubernetes) == [])


def test_a_host_that_can_t_join_is_told_why_until_it_can(kubernetes: KubernetesSite, tmp_path: Path) -> None:
    """One node that is to join, with one fault after the other. Containers have the clock of their machine: the wrong
    clock is a double of `date` on the controller."""
    node = min(kubernetes.nodes())
    kubernetes.kubectl("delete", "node", node)
    date = "/usr/local/bin/date"
    kubernetes.on(kubernetes.controller, "sh", "-c", f"cat > {date} && chmod 755 {date}",
                  stdin="#!/bin/sh\nexec /usr/bin/date --date='100 seconds' \"$@\"\n")  # fmt: skip
    try:
        said = _refused(kubernetes)
    finally:
        kubernetes.on(kubernetes.controller, "rm", date)
    assert re.search(rf"the clock of {node} is \d+ s behind that of the controller", said), said

    flags = "/var/lib/kubelet/kubeadm-flags.env"
    other = "KUBELET_KUBEADM_ARGS=--container-runtime=remote --container-runtime-endpoint=/var/run/crio/crio.sock"
    kubernetes.on(node, "sh", "-c", f"mkdir -p $(dirname {flags}) && echo '{other}' > {flags}")
    said = _refused(kubernetes)
    assert f"kubelet of {node} is configured for another runtime (/var/run/crio/crio.sock)" in said
    kubernetes.on(node, "rm", flags)

    pause = "k8s.gcr.io/pause:3.2"
    good = kubernetes.file.read_text()
    kubernetes.file.write_text(good.replace(str(mirror()), str(_mirror_without(pause, tmp_path))))
    kubernetes.on(node, "ctr", "--namespace=k8s.io", "images", "remove", pause)
    try:
        said = _refused(kubernetes)
    finally:
        kubernetes.file.write_text(good)
    assert re.search(rf"kubernetes-images-{RELEASE}-\S+ lacks 1 of \d+ images: {pause}", said), said

    kubernetes.good("apply")
    kubernetes.until("both nodes are ready", lambda: list(kubernetes.nodes().values()) == [True, True])
    # It has another part of the addresses of pods now, and the bridge of its plugins that of before.
    kubernetes.import_tools([node])
    with kubernetes.namespace() as space:
        kubernetes.apply(pod("again", space, node, "sleep", "infinity"))
        kubernetes.await_ready(space)


def _refused(site: KubernetesSite) -> str:
    """What an apply prints that fails."""
    code, events = site.run("apply")
    assert code == 1, events[-3:]
    return str(events[-1])


def _problems(site: KubernetesSite) -> list[dict[str, str]]:
    """What `gpucluster kubernetes status` finds."""
    found: list[dict[str, str]] = site.run("kubernetes", "status")[1][-1]["data"]["problems"]
    return found


def _ready(site: KubernetesSite) -> bool:
    return not _kubectl_error(site)


def _kubectl_error(site: KubernetesSite) -> str:
    argv = ["podman", "exec", site.hosts()[site.controller], "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf"]
    return subprocess.run(
        [*argv, "get", "--raw=/readyz"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    ).stderr


def _restart_etcd(site: KubernetesSite, manifest: str) -> None:
    """Let etcd have these options."""
    number = "pgrep -x etcd || true"
    before = site.on(site.controller, "sh", "-c", number)
    site.on(site.controller, "sh", "-c", f"cat > {ETCD}", stdin=manifest)
    # kubelet sees the file within 20 s, then the API server waits for etcd.
    site.until("etcd is another process", lambda: site.on(site.controller, "sh", "-c", number) not in ("", before))
    site.until("the API server is ready", lambda: _ready(site))


def _fill(site: KubernetesSite, space: str) -> str:
    """Change one object until etcd takes no more: old versions fill it. Returns what kubectl prints then."""
    argv = ["podman", "exec", "--interactive", site.hosts()[site.controller], "kubectl"]
    argv += ["--kubeconfig=/etc/kubernetes/admin.conf", "replace", "--force=false", "--filename=-"]
    site.kubectl("create", "configmap", "big", f"--namespace={space}")
    for number in range(100):
        meta = {"name": "big", "namespace": space}
        text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": f"{number}" + "x" * 900_000}}
        done = subprocess.run(
            argv, input=json.dumps(text), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if "space exceeded" in done.stderr:
            return "etcd is full"
        # On a busy disk etcd may give no answer in time.
        assert done.returncode == 0 or explained(done.stderr, done.returncode, ADMIN).kind == DEAD, done.stderr
    return "etcd takes everything"


def _mirror_without(image: str, folder: Path) -> Path:
    """A copy of the mirror whose archive of images lacks one of them."""
    made = folder / "mirror"
    shutil.copytree(mirror(), made, copy_function=shutil.copyfile)
    (archive,) = made.glob(f"kubernetes-images-{RELEASE}-*.tar")
    archive.unlink()
    with tarfile.open(mirror() / archive.name) as whole, tarfile.open(archive, "w") as less:
        for entry in whole:
            content = whole.extractfile(entry)
            assert content is not None
            if entry.name == "manifest.json":
                kept = json.dumps([each for each in json.load(content) if image not in each["RepoTags"]]).encode()
                entry.size, content = len(kept), io.BytesIO(kept)
            less.addfile(entry, content)
    with archive.open("rb") as content:
        checksum = hashlib.file_digest(content, "sha256").hexdigest()
    sums = made / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if not line.endswith(f"  {archive.name}")]
    sums.write_text("".join(f"{line}\n" for line in (*lines, f"{checksum}  {archive.name}")))
    return made
