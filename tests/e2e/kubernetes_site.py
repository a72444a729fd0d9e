"""A cluster of the local cloud with the scheduler kubernetes, and what its tests do on it.

The fixture `kubernetes` (conftest.py) builds one for all files test_kubernetes*.py: a control plane and two nodes. A
test leaves it as it was. Kubernetes is real (tests/kubernetes_sources.py); its nodes are containers, so a test sees no
kernel of their own.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpucluster.node_agent.kubernetes.faults import DEAD, explained
from gpucluster.node_agent.kubernetes.kubectl import ADMIN
from tests.e2e.site_harness import NETWORK, Site, container_names
from tests.kubernetes_sources import CRICTL, RELEASE, TOOLS, mirror, tools_archive
from tests.waiting import PATIENCE_S, wait_for

CLUSTER_YML = """\
version: 1
name: {name}
cloud: {{provider: local}}
{network}scheduler: kubernetes
kubernetes: {{control_plane: {plane}, release: "{release}", network: routes}}
controller: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8}}
pools:
  work: {work}
{pools}users:
  people: [{{name: alice, full_name: Alice Example, generate_key: true}}]
software: {{mirror: {mirror}, versions: {{cri-tools: "{crictl}"}}}}
"""


#: Verbs of kubectl that do the same once more.
_MAY_BE_ASKED_TWICE = ("get", "describe", "apply")
#: The pool of most tests: two nodes.
TWO_NODES = "{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 2}"


class KubernetesSite(Site):
    """Such a cluster, by its folder.

    Args:
        more: text at the end of cluster.yml. `work`: the definition of the pool. `pools`: lines with other ones.
        plane: self or oke.
    """

    def __init__(
        self,
        name: str = "kube",
        more: str = "",
        files: Path | None = None,
        work: str = TWO_NODES,
        pools: str = "",
        plane: str = "self",
    ) -> None:
        text = CLUSTER_YML.format(
            name=name,
            network=NETWORK,
            plane=plane,
            release=RELEASE,
            mirror=files or mirror(),
            crictl=CRICTL,
            work=work,
            pools=pools,
        )
        super().__init__(text + more)
        self._name = name

    @property
    def controller(self) -> str:
        return f"{self._name}-controller"

    def _state(self) -> str:
        done = self._kubectl("get", "nodes,pods", "--all-namespaces", "--output=wide")
        return done.stdout + done.stderr

    def hosts(self) -> dict[str, str]:
        """The containers of the hosts, by host name."""
        return {name.removeprefix("gpucluster-").rsplit("-", 1)[0]: name for name in container_names(self.home)}

    def on(self, host: str, *command: str, stdin: str | None = None) -> str:
        """What a command prints on a host, as root."""
        return _printed(self._run_on(host, *command, stdin=stdin))

    def _run_on(self, host: str, *command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return _run("podman", "exec", "--interactive", self.hosts()[host], *command, stdin=stdin)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """What kubectl prints on the controller, as its administrator.

        What may be asked twice is asked again where the API server or etcd has given no answer in time.
        """

        def answered() -> subprocess.CompletedProcess[str]:
            done = self._kubectl(*words, stdin=stdin)
            if words[0] in _MAY_BE_ASKED_TWICE and done.returncode != 0:
                assert explained(done.stderr, done.returncode, ADMIN).kind != DEAD, done.stderr
            return done

        return _printed(wait_for(f"Kubernetes answers {words[0]}", answered, interval=0.5, ignore=AssertionError))

    def _kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return self._run_on(self.controller, "kubectl", f"--kubeconfig={ADMIN}", *words, stdin=stdin)

    def get(self, *words: str) -> dict[str, Any]:
        """What the API has."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "--output=json", *words))
        return found

    def nodes(self) -> dict[str, bool]:
        """The nodes that are no control plane, and whether each is ready."""
        return {
            node["metadata"]["name"]: any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in node["status"]["conditions"]
            )
            for node in self.get("nodes")["items"]
            if node["metadata"]["name"] != self.controller
        }

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def __enter__(self) -> KubernetesSite:
        return self

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A namespace to the end of the block."""
        name = f"test-{secrets.token_hex(3)}"
        self.kubectl("create", "namespace", name)
        # The controller manager makes what pods need: some time after it was started, too.
        here = ("serviceaccounts", f"--namespace={name}")
        self.until("the namespace has its account", lambda: any(self.get(*here)["items"]))
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")

    def await_ready(self, namespace: str) -> dict[str, str]:
        """Wait until all pods of a namespace run and are ready. Returns their addresses by name."""
        pods: list[dict[str, Any]] = []

        def ready() -> bool:
            pods[:] = self.get("pods", f"--namespace={namespace}")["items"]
            return bool(pods) and all(
                status["ready"] for pod in pods for status in pod["status"].get("containerStatuses", [{"ready": False}])
            )

        wait_for(
            f"the pods of {namespace} are ready",
            ready,
            interval=0.5,
            state=lambda: self.kubectl("describe", "pods", f"--namespace={namespace}"),
            ignore=AssertionError,
        )
        return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}

    def in_pod(self, namespace: str, pod: str, *command: str) -> str:
        """What a command prints in a pod."""
        return self.kubectl("exec", f"--namespace={namespace}", pod, "--", *command)

    def import_tools(self, hosts: Iterable[str] = (), archive: Path | None = None) -> None:
        """Bring the image TOOLS, or those of another archive, to hosts, by default to all nodes."""
        wanted, found = archive or tools_archive(), self.hosts()

        def bring(host: str) -> None:
            with wanted.open("rb") as stream:
                argv = ["podman", "exec", "--interactive", found[host], "ctr", "--namespace=k8s.io", "images", "import"]
                subprocess.run([*argv, "-"], stdin=stream, check=True, capture_output=True, timeout=2 * PATIENCE_S)

        with ThreadPoolExecutor() as pool:
            list(pool.map(bring, hosts or self.nodes()))


def pod(name: str, namespace: str, node: str, *command: str, **more: Any) -> dict[str, Any]:
    """A pod of the image TOOLS on a node. `more`: its labels, annotations, container, and fields of its spec."""
    container = {"name": "main", "image": TOOLS, "imagePullPolicy": "Never", "command": list(command)}
    metadata = {"name": name, "namespace": namespace, "labels": more.pop("labels", {})}
    metadata["annotations"] = more.pop("annotations", {})
    container |= more.pop("container", {})
    specification = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **more}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**specification, "containers": [container]},
    }


def service(name: str, namespace: str, port: int, **selector: str) -> dict[str, Any]:
    """A service of the pods with these labels."""
    specification = {"selector": selector, "ports": [{"port": port}]}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": specification}


def _run(*argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    # What waits in there has the patience of tests, and shall report what it has seen.
    patience = 2 * PATIENCE_S
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=patience, check=False)


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{' '.join(done.args)}: {done.stdout}{done.stderr}"
    return done.stdout
