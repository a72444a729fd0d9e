"""The policy file: what is read, and the message for a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.autoscaler.policy import Policy, PolicyLimits, Times
from gpucluster.errors import InputError
from tests.autoscaler.builders import policy, pool


def written() -> dict[str, Any]:
    return {
        "version": 1,
        "cluster": "lab",
        "compartment_id": "ocid1.compartment.oc1..lab",
        "region": "eu-frankfurt-1",
        "authentication": {"method": "instance_principal"},
        "pools": {
            "gpu": {
                "partition": "gpu",
                "prefix": "gpu-e",
                "names": 6,
                "max_nodes": 2,
                "shape": "BM.GPU4.8",
                "availability_domain": "AD-1",
                "instance_configuration_id": "ocid1.instanceconfiguration.oc1..gpu",
                "compute_cluster_id": None,
                "baked": True,
            }
        },
        "limits": {"max_nodes": 2, "max_launches_per_hour": 500, "max_cost_per_hour": None},
        "prices": {"BM.GPU4.8": 24.4},
        "times": {"tick": 5},
    }


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "autoscaler.json"
    file.write_text(json.dumps(written()))
    read = Policy.load(file)
    assert read.pools["gpu"].name == "gpu"
    assert read.pools["gpu"].baked
    assert read.limits == PolicyLimits(max_nodes=2, max_launches_per_hour=500)
    assert read.times == Times(tick=5.0)
    assert read.prices == {"BM.GPU4.8": 24.4}


def on_kubernetes() -> dict[str, Any]:
    raw = written() | {"scheduler": "kubernetes"}
    raw["kubernetes"] = {"kubectl": "/usr/local/bin/kubectl", "kubeconfig": "/etc/gpucluster/autoscaler.kubeconfig"}
    raw["pools"]["gpu"]["node"] = {
        "capacity": {"cpu": 127.5, "nvidia.com/gpu": 8},
        "labels": {"gpucluster.io/pool": "gpu"},
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        "architecture": "amd64",
        "idle_seconds": 600,
    }
    return raw


def test_a_file_for_kubernetes_states_what_new_nodes_will_be() -> None:
    read = Policy.parse(on_kubernetes())
    assert (read.scheduler, Policy.parse(written()).scheduler) == ("kubernetes", "slurm")
    node = read.pools["gpu"].node
    assert node is not None
    assert (node.capacity["nvidia.com/gpu"], node.taints[0]["effect"], node.idle_seconds) == (8.0, "NoSchedule", 600.0)
    assert read.kubernetes is not None
    assert read.kubernetes.kubeconfig.startswith("/etc/")
    assert Policy.parse(written()).pools["gpu"].node is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda raw: raw.pop("kubernetes"), "kubernetes"),
        (lambda raw: raw["pools"]["gpu"].pop("node"), "node"),
        (lambda raw: raw["pools"]["gpu"]["node"].update(cores=1), "pools.gpu.node.cores"),
        (lambda raw: raw["pools"]["gpu"]["node"].pop("taints"), "taints"),
        (lambda raw: raw.update(scheduler="pbs"), "pbs"),
    ],
)
def test_what_kubernetes_needs_is_not_left_out(change: Callable[[dict[str, Any]], object], named: str) -> None:
    raw = on_kubernetes()
    change(raw)
    with pytest.raises(InputError, match=named):
        Policy.parse(raw)


def test_limits_prices_and_times_may_be_left_out() -> None:
    raw = written()
    for key in ("limits", "prices", "times"):
        del raw[key]
    read = Policy.parse(raw)
    assert read.limits == PolicyLimits()
    assert read.times == Times()


@pytest.mark.parametrize("key", ["version", "cluster", "compartment_id", "region", "authentication", "pools"])
def test_a_key_that_is_missing_is_named(key: str) -> None:
    raw = written()
    del raw[key]
    with pytest.raises(InputError, match=key):
        Policy.parse(raw, where="autoscaler.json")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("times", "tock", 1),
        ("times", "tick", "soon"),
        ("limits", "max_node", 1),
        ("authentication", "password", "no"),
        ("limits", "x", None),
    ],
)
def test_a_key_or_value_that_is_wrong_is_an_error_of_input(section: str, key: str, value: object) -> None:
    raw = written()
    raw[section][key] = value
    with pytest.raises(InputError):
        Policy.parse(raw)


@pytest.mark.parametrize("value", ["6", -1, 2.0, True, None])
def test_a_number_of_nodes_that_is_none_is_named(value: object) -> None:
    raw = written()
    raw["pools"]["gpu"]["names"] = value
    with pytest.raises(InputError, match=r"pools\.gpu\.names"):
        Policy.parse(raw)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"version": 2}', '{"version": 1, "pools": 3}', '"x"'])
def test_a_file_that_is_not_a_policy_is_an_error_of_input(tmp_path: Path, content: str) -> None:
    file = tmp_path / "autoscaler.json"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        Policy.load(file)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't read"):
        Policy.load(tmp_path / "none.json")


@given(st.integers(min_value=-3, max_value=60))
def test_a_pool_owns_the_names_that_slurm_was_told_and_no_other(number: int) -> None:
    one = pool(names=40)
    assert one.owns(f"gpu-e{number}") == (1 <= number <= 40)


@pytest.mark.parametrize("name", ["gpu-1", "gpu-e", "gpu-e01", "gpu-e1x", "gpu-e٣", "xgpu-e1", "gpu-e1\n", ""])
def test_names_that_only_look_like_a_pools_are_not_its(name: str) -> None:
    assert not pool(names=40).owns(name)


def test_the_pool_of_a_name_is_found_where_one_prefix_begins_another() -> None:
    known = policy(pool("gpu"), pool("gpu-e1", prefix="gpu-e1-e"))
    assert known.pool_of("gpu-e1") == "gpu"
    assert known.pool_of("gpu-e1-e1") == "gpu-e1"
    assert known.pool_of("other-e1") == ""
