"""Requests to configure new nodes, and a policy for them."""

from __future__ import annotations

from typing import Any

from gpucluster.autoscaler.daemon.join_requests import JoinRequest

POOL = {
    "partition": "compute", "prefix": "compute-e", "names": 10, "max_nodes": 4, "shape": "VM.Standard.E5.Flex",
    "availability_domain": "AD-1", "instance_configuration_id": "ocid1.instanceconfiguration.x",
}  # fmt: skip
RAW = {
    "version": 1, "cluster": "demo", "compartment_id": "ocid1.compartment.x", "region": "local-1",
    "authentication": {"method": "instance_principal"},
    "pools": {"compute": POOL, "my-gpus": {**POOL, "prefix": "my-gpus-e", "baked": True}},
    "times": {"join_deadline": 1000},
}  # fmt: skip

INVENTORY: dict[str, Any] = {
    "all": {
        "vars": {
            "private_subnet_cidr": "10.9.1.0/24",
            "gpucluster_hosts": [{"name": "head", "address": "10.9.1.2"}],
            "slurm_pools": [{"name": "compute", "login_user": "opc"}, {"name": "my-gpus"}],
        },
        "children": {"controller": {"hosts": {"head": {"ansible_user": "ubuntu", "private_ip": "10.9.1.2"}}}},
    }
}
GOOD = JoinRequest("compute-e3", "compute", "ocid1.instance.oc1.eu-x.abcdefghijklmnopqrst", "10.9.1.77")


def request(number: int) -> JoinRequest:
    return JoinRequest(
        f"compute-e{number}", "compute", f"ocid1.instance.oc1.x.abcdefghijklmn{number:02d}", f"10.9.1.{10 + number}"
    )
