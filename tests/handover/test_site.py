"""Certificates and proxy of the site in the inventory."""

from __future__ import annotations

import json
from pathlib import Path

from gpucluster import handover
from gpucluster.artifacts.releases import ReleaseSet
from gpucluster.handover.inventory import inventory
from gpucluster.spec import ClusterSpec, load

GOLDEN = Path(__file__).parents[1] / "golden" / "oci_private"


def test_the_clusters_own_hosts_and_networks_are_reached_without_the_proxy() -> None:
    spec = load(GOLDEN / "cluster.yml")
    outputs = handover.Outputs.parse(json.loads((GOLDEN / "outputs.json").read_text()))
    software = spec.software.model_copy(
        update={"proxy": "http://proxy.example:3128", "no_proxy": (".corp.example", "localhost")}
    )
    spec = spec.model_copy(update={"software": software})
    people = {person.name: () for person in spec.users.people}
    given = inventory(
        spec, outputs, {}, autoscaling=None, person_keys=people, hardware_emulated=False, software=ReleaseSet(None, ())
    )["all"]["vars"]["base_proxy"]
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
        people = {person.name: () for person in spec.users.people}
        given = inventory(
            spec,
            outputs,
            {},
            autoscaling=None,
            person_keys=people,
            hardware_emulated=False,
            software=ReleaseSet(None, ()),
        )["all"]["vars"]
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
