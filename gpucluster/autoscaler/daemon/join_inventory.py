"""What root checks in a request to configure a new instance, and what it gives to Ansible and reads from it.

Root trusts nothing in a request that the policy and the inventory do not allow, and gives nothing else of it to
Ansible.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.daemon.join_requests import JoinRequest, JoinResult, tail
from gpucluster.autoscaler.policy import Policy
from gpucluster.controller import join_files
from gpucluster.errors import InputError

_OCID = re.compile(r"ocid1\.instance\.[a-z0-9-]*\.[a-z0-9-]*\.[a-z0-9.]{6,200}")


def check(request: JoinRequest, policy: Policy, inventory: Mapping[str, Any]) -> None:
    """Refuse what the policy and the inventory do not allow.

    Raises:
        InputError: names the value that is not allowed.
    """
    pool = policy.pools.get(request.pool)
    if pool is None or pool.baked:
        raise InputError(f"{request.pool!r} is not a pool whose nodes are configured after boot")
    if not pool.owns(request.node):
        raise InputError(f"{request.node!r} is not a node name of pool {pool.name}")
    if not _OCID.fullmatch(request.instance_id):
        raise InputError(f"{request.instance_id!r} is not the id of an instance")
    variables = _variables(inventory)
    try:
        address = ipaddress.IPv4Address(request.address)
        networks = [ipaddress.IPv4Network(str(network)) for network in _networks(variables)]
    except ValueError as error:
        raise InputError(f"not an address: {error}") from error
    if not any(address in network for network in networks):
        raise InputError(f"{address} is not in the private network of the cluster")
    if str(address) in {str(host.get("address")) for host in variables.get("gpucluster_hosts") or ()}:
        raise InputError(f"{address} belongs to a permanent host of the cluster")


def _variables(inventory: Mapping[str, Any]) -> Mapping[str, Any]:
    variables: Mapping[str, Any] = (inventory.get("all") or {}).get("vars") or {}
    return variables


def _networks(variables: Mapping[str, Any]) -> Sequence[str]:
    """The networks of new nodes: the private subnet if the inventory names it, else the trusted networks."""
    own = variables.get("private_subnet_cidr")
    return [own] if own else variables.get("base_trusted_networks") or ()


def pool_group(pool: str) -> str:
    """The Ansible group of a pool, as the operator's inventory names it."""
    return "pool_" + pool.replace("-", "_")


def new_hosts(
    requests: Sequence[JoinRequest], policy: Policy, inventory: Mapping[str, Any], *, key: Path, known_hosts: Path
) -> dict[str, Any]:
    """The second inventory: the new hosts in the groups `joining` and pool_<pool>, and the controller as local host.

    An instance that was launched before the key was rotated has the former one, while there is one.

    With Kubernetes each has the labels that the policy promises: those of its pool's group are of permanent nodes.
    """
    children = (inventory.get("all") or {}).get("children") or {}
    controllers = (children.get("controller") or {}).get("hosts") or {}
    users = {str(host["ansible_user"]) for host in controllers.values() if host and host.get("ansible_user")}
    pools = {str(pool.get("name")): pool for pool in _variables(inventory).get("slurm_pools") or ()}
    groups: dict[str, Any] = {
        "controller": {"hosts": {name: {"ansible_connection": "local"} for name in controllers}},
        "joining": {"hosts": {}},
    }
    before = join_files.former(key)
    more = f" -o IdentityFile={before}" if before.exists() else ""
    for request in requests:
        user = (pools.get(request.pool) or {}).get("login_user") or next(iter(sorted(users)), "")
        options = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={known_hosts / tail(request.instance_id)}"
        groups["joining"]["hosts"][request.node] = {
            "ansible_host": request.address,
            "private_ip": request.address,
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": f"{options}{more} -o IdentitiesOnly=yes -o ConnectTimeout=10",
            "instance_id": request.instance_id,
            **_labels(policy, request.pool),
            **({"ansible_user": user} if user else {}),
        }
        groups.setdefault(pool_group(request.pool), {"hosts": {}})["hosts"][request.node] = {}
    return {"all": {"children": groups}}


def _labels(policy: Policy, pool: str) -> dict[str, Any]:
    pool_policy = policy.pools.get(pool)
    return {"kubernetes_node_labels": dict(pool_policy.node.labels)} if pool_policy and pool_policy.node else {}


_RECAP = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=\d+\s+unreachable=(\d+)\s+failed=(\d+)")
_FATAL = re.compile(r"^fatal: \[([^\]\s]+)[^\]]*\]: \S+ => (.*)$")
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*)\] \**$")


def parse_results(output: str, returncode: int, nodes: Sequence[str]) -> dict[str, JoinResult]:
    """By node, the result from ansible-playbook's output. A node that the recap does not name has failed."""
    fatal: dict[str, str] = {}
    recap: dict[str, bool] = {}
    task = ""
    for line in output.splitlines():
        if match := _TASK.match(line):
            task = match.group(1)
        elif match := _FATAL.match(line):
            fatal.setdefault(match.group(1), f"{task}: {_reason(match.group(2))}")
        elif match := _RECAP.match(line):
            recap[match.group(1)] = match.group(2) == match.group(3) == "0"
    last = " ".join(output.split())[-300:]
    results = {}
    for node in nodes:
        words = fatal.get(node) or next(iter(fatal.values()), "") or f"ansible-playbook ended with {returncode}: {last}"
        results[node] = JoinResult(True, "configured") if recap.get(node) else JoinResult(False, words)
    return results


def _reason(raw: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        fields = json.loads(raw)
        if "censored" in fields:
            return "the details are hidden because they may hold secrets"
        # Ansible's own message about a program that failed has less information than the program's own output.
        generic = str(fields.get("msg") or "").lower().startswith(("non-zero return code", "module failure"))
        first = ("stderr", "module_stderr", "stdout") if generic else ("stderr",)
        for key in (*first, "msg", "module_stderr", "stdout"):
            if fields.get(key):
                return " ".join(str(fields[key]).split())[:400]
    return " ".join(raw.split())[:400]
