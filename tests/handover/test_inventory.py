"""What holds for the whole site in the inventory: certificates, proxy, logins, the host of Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpucluster import handover
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.handover.inventory import inventory
from gpucluster.spec import ClusterSpec, load

GOLDEN = Path(__file__).parents[1] / "golden" / "oci_private"


def _inventory(spec: ClusterSpec, outputs: handover.Outputs) -> dict[str, Any]:
    """The group of all hosts, without nodes and without keys."""
    everything = inventory(
        spec,
        outputs,
        {},
        autoscaling=None,
        operator_keys=(),
        person_keys={person.name: () for person in spec.users.people},
        hardware_emulated=False,
        software=ReleaseSet(None, ()),
    )
    found: dict[str, Any] = everything["all"]
    return found


def test_the_clusters_own_hosts_and_networks_are_reached_without_the_proxy() -> None:
    spec = load(GOLDEN / "cluster.yml")
    outputs = handover.Outputs.parse(json.loads((GOLDEN / "outputs.json").read_text()))
    software = spec.software.model_copy(
        update={"proxy": "http://proxy.example:3128", "no_proxy": (".corp.example", "localhost")}
    )
    spec = spec.model_copy(update={"software": software})
    given = _inventory(spec, outputs)["vars"]["base_proxy"]
    assert given["url"] == "http://proxy.example:3128"
    hosts = (outputs.controller, *outputs.login)
    assert given["hosts"] == [text for host in hosts for text in (host.name, host.private_ip)]
    direct = ["localhost", "127.0.0.1", "169.254.169.254", spec.network.vcn_cidr]
    direct += [f".{outputs.private_subnet_domain_name}"] if outputs.private_subnet_domain_name else []
    assert given["direct"] == [*direct, ".corp.example"]


def test_what_opens_a_cluster_for_its_users_reaches_the_roles() -> None:
    """And the fingerprint of baked images: an image has these settings in it."""
    outputs = handover.Outputs.parse(json.loads((GOLDEN / "outputs.json").read_text()))

    def seen(spec: ClusterSpec) -> tuple[bool, bool]:
        given = _inventory(spec, outputs)["vars"]
        return given["slurm_login_needs_job"], given["base_hide_processes"]

    careful = load(GOLDEN / "cluster.yml")
    opened = careful.model_copy(
        update={
            "slurm": careful.slurm.model_copy(update={"login_needs_job": False}),
            "users": careful.users.model_copy(update={"hide_processes": False}),
        }
    )
    assert (seen(careful), seen(opened)) == ((True, True), (False, False))
    pool = next(iter(careful.pools))
    prints = {handover.node_fingerprint(spec, outputs, pool) for spec in (careful, opened)}
    assert len(prints) == 2


def test_exporters_answer_the_login_node_that_has_prometheus() -> None:
    """And images that were baked for another host of Prometheus are not used any more."""
    outputs = handover.Outputs.parse(json.loads((GOLDEN / "outputs.json").read_text()))
    usual = load(GOLDEN / "cluster.yml")

    def seen(host: str) -> tuple[tuple[str, str], str]:
        monitoring = usual.monitoring.model_copy(update={"enabled": True, "host": host})
        spec = usual.model_copy(update={"monitoring": monitoring})
        given = _inventory(spec, outputs)["vars"]
        found = given["monitoring_host"], given["monitoring_host_address"]
        return found, handover.node_fingerprint(spec, outputs, next(iter(spec.pools)))

    hosts = {"controller": outputs.controller, "login-1": outputs.login[0], "login-2": outputs.login[1]}
    found = {name: seen(name) for name in hosts}
    for name, host in hosts.items():
        assert found[name][0] == (host.name, host.private_ip)
    assert len({fingerprint for _, fingerprint in found.values()}) == len(hosts)


def test_with_a_standby_all_hosts_find_the_controller_at_the_address_that_moves() -> None:
    """And baked images stay valid after a failover, which changes the instance and nothing else."""
    spec = load(GOLDEN / "cluster.yml")
    raw = json.loads((GOLDEN / "outputs.json").read_text())
    raw["cluster"]["standby"] = {**raw["cluster"]["controller"], "id": "two", "name": "x-standby"}

    def seen(**service: str) -> tuple[dict[str, str], str, str, tuple[str, ...]]:
        outputs = handover.Outputs.parse({**raw, "service": {"address": "10.9.9.9", **service}})
        made = _inventory(spec, outputs)
        (controller,) = made["children"]["controller"]["hosts"].values()
        names = {host["name"]: host["address"] for host in made["vars"]["gpucluster_hosts"]}
        pools = tuple(handover.node_fingerprint(spec, outputs, pool) for pool in spec.pools)
        return names, controller["private_ip"], made["vars"]["monitoring_host_address"], pools

    first, after = seen(), seen(host="standby")
    assert first == after
    name = raw["cluster"]["controller"]["name"]
    assert (first[0][name], first[1]) == ("10.9.9.9", "10.9.9.9")
    assert "x-standby" not in first[0]
