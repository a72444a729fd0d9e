"""The client of the scheduler, by the policy."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.kubernetes import KubernetesClient, KubernetesUnavailable
from gpucluster.autoscaler.daemon.schedulers import client, templates
from gpucluster.autoscaler.daemon.slurm import SlurmClient
from gpucluster.autoscaler.decide.pods import Pod, Toleration
from tests.autoscaler.policies import KUBERNETES, SLURM


def test_the_policy_decides_whose_client_it_is(tmp_path: Path) -> None:
    made = [client(one, state=tmp_path, may_write=lambda: False, clock=time.time) for one in (SLURM, KUBERNETES)]
    assert [type(each) for each in made] == [SlurmClient, KubernetesClient]


def test_the_client_of_kubernetes_has_the_kubeconfig_of_the_policy(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(' '.join(sys.argv[1:3]))\n")
    program.chmod(0o755)
    assert KUBERNETES.kubernetes is not None
    policy = replace(KUBERNETES, kubernetes=replace(KUBERNETES.kubernetes, kubectl=str(program)))
    made = client(policy, state=tmp_path, may_write=lambda: False, clock=time.time)
    with pytest.raises(KubernetesUnavailable, match=r"--kubeconfig=/etc/gpucluster/autoscaler\.kubeconfig get"):
        made.nodes()


def test_a_new_node_takes_what_the_pool_offers_and_nothing_else() -> None:
    (made,) = templates(KUBERNETES)
    assert (made.names[0], len(made.names), made.max_nodes) == ("gpu-e1", 6, 2)
    tolerated = (Toleration("nvidia.com/gpu", exists=True),)
    selector = {"kubernetes.io/arch": "amd64", "gpucluster.io/pool": "gpu"}
    fitting = Pod("a/b", "a/b", 1, "", True, 0.0, {"nvidia.com/gpu": 8.0}, selector=selector, tolerations=tolerated)
    assert made.takes(fitting)
    assert not made.takes(replace(fitting, tolerations=()))
    assert not made.takes(replace(fitting, selector={"kubernetes.io/arch": "arm64"}))
    assert not made.takes(replace(fitting, needs={"nvidia.com/gpu": 9.0}))
