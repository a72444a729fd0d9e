"""`kubernetes.gpus: dra-driver`: where pods can't claim GPUs, or two programs would give away the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.handover.kubernetes import operator_charts
from gpucluster.spec import loads
from tests.spec.faults import findings
from tests.spec.spec_texts import KEY, OCI

KUBERNETES = (
    "scheduler: kubernetes\nkubernetes: {gpus: dra-driver}\n"
    + OCI.replace("    max_count: 8\n", "").replace("- name: alice", "- name: alice\n      uid: 12001")
)  # fmt: skip
OKE = KUBERNETES.replace("{gpus: dra-driver}", "{gpus: dra-driver, control_plane: oke}")
PARTS = '    gpus: {mig: [{mig_devices: {"1g.10gb": 7}}]}\n'


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "operator.pub").write_text(KEY)
    monkeypatch.chdir(tmp_path)


def test_pods_claim_gpus_by_a_driver_that_an_administrator_installs() -> None:
    for text in (KUBERNETES, OKE):
        spec = loads(text)
        assert spec.claiming_pools
        (chart,) = operator_charts(spec)
        assert chart.name == "dra-driver"
        assert "--version=0.4.0" in chart.command
    amd = loads(KUBERNETES.replace("BM.GPU.H100.8", "BM.GPU.MI300X.8"))
    assert not amd.claiming_pools
    assert operator_charts(amd) == []


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        (KUBERNETES.replace("driver}", "driver, release: 1.33.5}"), "kubernetes.gpus",
         "needs the API resource.k8s.io/v1, which is there from 1.34 on; release is 1.33.5"),
        (KUBERNETES.replace("    count: 2\n", "    count: 2\n    max_count: 4\n"), "pools.h100.max_count",
         "reads no claims"),
        (OKE.replace("    count: 2\n", "    count: 2\n    managed: true\n").replace("BM.GPU.H100.8", "VM.GPU.A10.1"),
         "pools.h100.managed", "OKE runs a device plugin there, and both would give away the same GPUs"),
        (KUBERNETES.replace("    count: 2\n", f"    count: 2\n{PARTS}"), "pools.h100.gpus.mig", "GPU is divided"),
        (KUBERNETES.replace("driver}", "driver, rdma: device}"), "kubernetes.rdma", "get no files of RDMA devices"),
        (KUBERNETES.replace("driver}", "both}"), "kubernetes.gpus", "must be device-plugin or operator or dra-driver"),
    ],
)  # fmt: skip
def test_where_pods_can_not_claim_gpus_it_is_refused_with_the_reason(text: str, path: str, says: str) -> None:
    found = [each for each in findings(text) if each[2] == path]
    assert len(found) == 1, findings(text)
    assert says in found[0][3]


def test_emulated_gpus_can_not_be_claimed() -> None:
    from tests.spec.spec_texts import MINIMAL

    text = f"scheduler: kubernetes\nkubernetes: {{gpus: dra-driver}}\n{MINIMAL}"
    (found,) = findings(text)
    assert (found[2], "emulated GPUs are only numbers" in found[3]) == ("kubernetes.gpus", True)
