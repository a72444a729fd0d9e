"""Requests to configure new nodes: what root accepts, and the inventory that is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.join_inventory import check, new_hosts, parse_results
from gpucluster.autoscaler.daemon.join_requests import JoinResult
from gpucluster.autoscaler.policy import Policy
from gpucluster.controller import join_files
from gpucluster.errors import InputError
from tests.autoscaler.daemon.join_samples import GOOD, INVENTORY, RAW
from tests.autoscaler.test_policy import on_kubernetes

pytestmark = pytest.mark.slow


POLICY = Policy.parse(RAW)


def test_a_request_of_the_daemon_is_believed() -> None:
    check(GOOD, POLICY, INVENTORY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pool": "other"}, "not a pool"),
        ({"pool": "my-gpus", "node": "my-gpus-e1"}, "not a pool whose nodes are configured after boot"),
        ({"node": "head"}, "not a node name of pool"),
        ({"node": "compute-e11"}, "not a node name of pool"),
        ({"node": "compute-e3;reboot"}, "not a node name of pool"),
        ({"node": "../compute-e3"}, "not a node name of pool"),
        ({"instance_id": "ocid1.instance.x {{ lookup('pipe','id') }}"}, "not the id of an instance"),
        ({"instance_id": "../../etc/passwd"}, "not the id of an instance"),
        ({"address": "192.168.1.1"}, "not in the private network"),
        ({"address": "10.9.1.2"}, "permanent host"),
        ({"address": "{{ 7*7 }}"}, "not an address"),
        ({"address": "10.9.1.77 -o ProxyCommand=x"}, "not an address"),
        ({"address": "::1"}, "not an address"),
    ],
)
def test_anything_else_is_refused_with_words(change: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check(replace(GOOD, **change), POLICY, INVENTORY)


def test_a_node_of_kubernetes_registers_with_the_labels_of_the_policy() -> None:
    policy = Policy.parse(on_kubernetes())
    request = replace(GOOD, node="gpu-e1", pool="gpu")
    made = new_hosts([request], policy, INVENTORY, key=Path("/k/id"), known_hosts=Path("/k/hosts"))
    (host,) = made["all"]["children"]["joining"]["hosts"].values()
    assert host["kubernetes_node_labels"] == {"gpucluster.io/pool": "gpu"}
    slurm = new_hosts([GOOD], POLICY, INVENTORY, key=Path("/k/id"), known_hosts=Path("/k/hosts"))
    assert "kubernetes_node_labels" not in slurm["all"]["children"]["joining"]["hosts"]["compute-e3"]


def test_the_second_inventory() -> None:
    other = replace(GOOD, node="my-gpus-e1", pool="my-gpus", instance_id=GOOD.instance_id + "zz", address="10.9.1.78")
    made = new_hosts([GOOD, other], POLICY, INVENTORY, key=Path("/k/id"), known_hosts=Path("/k/hosts"))
    found = made["all"]["children"]
    assert found["controller"] == {"hosts": {"head": {"ansible_connection": "local"}}}
    one = found["joining"]["hosts"]["compute-e3"]
    assert (one["ansible_host"], one["private_ip"], one["ansible_user"]) == ("10.9.1.77", "10.9.1.77", "opc")
    assert "UserKnownHostsFile=/k/hosts/ijklmnopqrst" in one["ansible_ssh_common_args"]
    assert "accept-new" in one["ansible_ssh_common_args"]
    assert one["ansible_ssh_private_key_file"] == "/k/id"
    assert found["joining"]["hosts"]["my-gpus-e1"]["ansible_user"] == "ubuntu"  # the controller's, for want of its own
    assert found["pool_compute"] == {"hosts": {"compute-e3": {}}}
    assert found["pool_my_gpus"] == {"hosts": {"my-gpus-e1": {}}}


def test_an_instance_of_before_a_rotation_is_reached_by_the_former_key(tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"

    def options() -> str:
        made = new_hosts([GOOD], POLICY, INVENTORY, key=key, known_hosts=tmp_path)
        return str(made["all"]["children"]["joining"]["hosts"][GOOD.node]["ansible_ssh_common_args"])

    assert "IdentityFile" not in options()
    join_files.former(key).write_text("key")
    assert f"-o IdentityFile={key}.former -o IdentitiesOnly=yes" in options()


def test_each_host_is_judged_by_the_recap_and_by_its_own_words() -> None:
    said = """
TASK [base : Look] *************************************************************
fatal: [a]: FAILED! => {"changed": false, "msg": "no  space\\nleft"}
fatal: [b -> head(10.0.0.2)]: UNREACHABLE! => {"changed": false, "msg": "timed out", "unreachable": true}
TASK [ldap : Secret] ***********************************************************
fatal: [c]: FAILED! => {"censored": "the output has been hidden", "changed": false}
fatal: [e]: FAILED! => {"changed": true, "msg": "non-zero return code", "rc": 1, "stdout": "no such shell"}
PLAY RECAP *********************************************************************
a                          : ok=3    changed=1    unreachable=0    failed=1    skipped=0    rescued=0    ignored=0
b                          : ok=0    changed=0    unreachable=1    failed=0    skipped=0    rescued=0    ignored=0
c                          : ok=9    changed=1    unreachable=0    failed=1    skipped=0    rescued=0    ignored=0
d                          : ok=9    changed=7    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
"""
    found = parse_results(said, 2, ["a", "b", "c", "d", "e"])
    assert found["a"] == JoinResult(False, "base : Look: no space left")
    assert found["b"] == JoinResult(False, "base : Look: timed out")
    assert found["c"].message == "ldap : Secret: the details are hidden because they may hold secrets"
    assert found["d"] == JoinResult(True, "configured")
    assert found["e"] == JoinResult(False, "ldap : Secret: no such shell")
    assert (
        "ended with 124: ERROR! the playbook"
        in parse_results("ERROR! the playbook\nis broken", 124, ["x"])["x"].message
    )
