"""The pods of `verify --level full` on a whole cluster: they reach one another, measure, and are gone afterwards."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process, shapes
from gpucluster.measuring.plan import MeasuredPool, Tools
from gpucluster.measuring.survey import Survey
from gpucluster.node_agent.checks.model import Status
from gpucluster.operations.measuring import RemoteSession
from tests import image_archive
from tests.e2e.kubernetes_site import KubernetesSite
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.image_archive import Image
from tests.measuring.nccl_double import output
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

SPACE = "gpucluster-system"
PROGRAM = ("/usr/local/bin/gpucluster-agent", "kubernetes", "pods")
GPU = "nvidia.com/gpu"
OURS = ("pods", f"--namespace={SPACE}", "--selector=gpucluster.io/verify")


#: What nccl-tests print on eight A100, as a program of a container: no GPU is here. 225 GB/s are good, 100 are not.
NCCL = "gpucluster.test/nccl:1"
_PROGRAM = """\
#!/bin/sh
[ "$NCCL_DEBUG" = INFO ] && [ "$*" = "-b 1G -e 8G -f 8 -c 1 -g 8" ] || { echo "called otherwise: $*"; exit 1; }
while read -r line; do printf '%s\\n' "$line"; done <<'END'
OUTPUTEND
"""


def _pools(kubernetes: KubernetesSite) -> str:
    return json.dumps([{"pool": "work", "nodes": {name: name for name in kubernetes.nodes()}, "rdma": {}}])


def _found(kubernetes: KubernetesSite) -> dict[str, Any]:
    said = json.loads(kubernetes.on(kubernetes.controller, *PROGRAM, stdin=_pools(kubernetes)))
    assert "kubernetes_pods_error" not in said, said
    found: dict[str, Any] = said["kubernetes_pods"]
    return found


def test_pods_of_verify_reach_one_another_and_are_removed(kubernetes: KubernetesSite) -> None:
    found = _found(kubernetes)
    assert {each["state"] for each in found["nodes"].values()} == {"ready"}, found
    assert [(pair["interface"], pair["error"]) for pair in found["pairs"]] == [("eth0", "")] * 2
    kubernetes.until("no pod of verify is left", lambda: kubernetes.get(*OURS)["items"] == [])


def test_a_cordoned_node_is_not_judged(kubernetes: KubernetesSite) -> None:
    first, second = kubernetes.nodes()
    kubernetes.kubectl("cordon", first)
    try:
        found = _found(kubernetes)
    finally:
        kubernetes.kubectl("uncordon", first)
    assert (found["nodes"][first]["state"], found["nodes"][second]["state"]) == ("not judged", "ready")
    assert "unschedulable" in found["nodes"][first]["why"]


def test_verify_at_level_full_reports_it(kubernetes: KubernetesSite) -> None:
    _status, said = kubernetes.run("verify", "--level", "full")
    of_pods = [each for each in said[-1]["data"]["checks"] if each["check"] == "kubernetes_pod_network"]
    assert [each["status"] for each in of_pods] == ["pass", "pass"], of_pods


def test_an_interrupted_run_leaves_no_pods(kubernetes: KubernetesSite) -> None:
    node, controller = next(iter(kubernetes.nodes())), kubernetes.hosts()[kubernetes.controller]
    write = f"echo $$ > /run/verify-test.pid; exec {' '.join(PROGRAM)}"
    # Its pod waits for as long as the node is cordoned, so the signal comes in the middle.
    kubernetes.kubectl("cordon", node)
    try:
        argv = ["podman", "exec", "--interactive", controller, "sh", "-c", write]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdin
            running.stdin.write(_pools(kubernetes))
            running.stdin.close()
            kubernetes.until("two pods of verify are there", lambda: len(kubernetes.get(*OURS)["items"]) == 2)
            kubernetes.on(kubernetes.controller, "sh", "-c", "kill -TERM $(cat /run/verify-test.pid)")
            running.wait(timeout=PATIENCE_S)
    finally:
        kubernetes.kubectl("uncordon", node)
    kubernetes.until("no pod of verify is left", lambda: kubernetes.get(*OURS)["items"] == [])


def _image(kubernetes: KubernetesSite, folder: Path, by_node: dict[str, float]) -> None:
    for node, busbw in by_node.items():
        program, archive = folder / f"program-{node}", folder / f"{node}.tar"
        program.write_text(_PROGRAM.replace("OUTPUT", output(busbw, [node])))
        image_archive.write(
            archive, {NCCL: Image({"/bin/sh": Path("/bin/dash").resolve(), "/usr/bin/all_reduce_perf": program})}
        )
        kubernetes.import_tools([node], archive)


def _offer_gpus(kubernetes: KubernetesSite, node: str, number: int) -> None:
    """As the program on the controller does it for emulated devices: again, if kubelet has changed it meanwhile."""

    def taken() -> bool:
        found = kubernetes.get("node", node)
        for each in ("capacity", "allocatable"):
            found["status"][each].pop(GPU, None)
            found["status"][each] |= {GPU: str(number)} if number else {}
        kubernetes.kubectl("replace", f"--raw=/api/v1/nodes/{node}/status", "--filename=-", stdin=json.dumps(found))
        return True

    kubernetes.until(f"{node} offers {number} GPUs", taken)


def test_nccl_is_measured_on_each_node_by_a_pod_and_the_slow_one_is_found(
    kubernetes: KubernetesSite, tmp_path: Path
) -> None:
    """Real: the pods, the agent's program, the verdict. A double: the program that measures."""
    good, slow = kubernetes.nodes()
    _image(kubernetes, tmp_path, {good: 225.0, slow: 100.0})
    pool = MeasuredPool("work", "work", shapes.get("BM.GPU4.8"), rdma=True, resource=GPU)
    argv = ["podman", "exec", "--interactive", kubernetes.hosts()[kubernetes.controller], PROGRAM[0], "measure"]
    kept: list[str] = []
    try:
        for node in (good, slow):
            _offer_gpus(kubernetes, node, 8)
        with process.ProcessConversation([*argv, "--scheduler=kubernetes", "serve"], end_s=PATIENCE_S) as talk:
            session = RemoteSession(talk, lambda event: kept.append(event.message))
            session.begin("", start_s=PATIENCE_S)
            states = session.nodes()
            assert {name: states[name] for name in (good, slow)} == {good: "idle", slow: "idle"}
            tools = Tools(image=NCCL)
            survey = Survey(pool, [good, slow], tools, states, {}, lambda _what, jobs: session.run(jobs))
            survey.measure()
    finally:
        for node in (good, slow):
            _offer_gpus(kubernetes, node, 0)
    found = {each.subject: each for each in survey.findings() if each.check == "nccl_node"}
    assert (found[good].status, found[slow].status) == (Status.PASS, Status.FAIL), (found, kept)
    assert "100.00 GB/s" in found[slow].message
    others = {each.status for each in survey.findings() if each.check != "nccl_node"}
    assert others == {Status.SKIP}
    measured = ("pods", f"--namespace={SPACE}", "--selector=gpucluster.io/measure")
    kubernetes.until("no pod of a measurement is left", lambda: kubernetes.get(*measured)["items"] == [])
