"""Tokens of an instance for Kubernetes Engine: made by openssl, checked by the local cloud as its API servers do it.

The metadata service and the federation are those of the local cloud (a double of OCI's).
"""

from __future__ import annotations

import itertools
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.localcloud.kubernetes import tokens
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes import instance_token
from tests.localcloud.api.test_container_engine import cluster
from tests.localcloud.metadata.test_service import Site, site_in

pytestmark = pytest.mark.slow

_number = itertools.count()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture(scope="module")
def control_plane(site: Site) -> str:
    subnet = site.api.subnet(site.api.vcn("10.91.0.0/16", "oke"), "10.91.0.0/24", prohibit_public_ip_on_vnic=True)
    return str(cluster(site.api, subnet).id)


def permit(site: Site, instance: Any, permissions: str, control_plane: str) -> None:
    models, name = oci.identity.models, f"rule{next(_number)}"
    group = models.CreateDynamicGroupDetails(
        compartment_id=site.api.tenancy, name=name, description=name, matching_rule=f"instance.id = '{instance.id}'"
    )
    site.api.identity.create_dynamic_group(group)
    rule = f"Allow dynamic-group {name} to {{{permissions}}} in tenancy where target.cluster.id = '{control_plane}'"
    policy = models.CreatePolicyDetails(
        compartment_id=site.api.tenancy, name=name, description=name, statements=[rule]
    )  # fmt: skip
    site.api.identity.create_policy(policy)


def reviewed(site: Site, control_plane: str, token: str) -> dict[str, Any]:
    row = site.cloud.store.get("cluster", control_plane)
    assert row is not None
    return dict(tokens.review(site.cloud, row, token))


def made(site: Site, who: str, control_plane: str, cache: Path) -> dict[str, Any]:
    with site.served_to(who) as metadata:
        federation = f"{site.api.endpoint}/v1/x509"
        return instance_token.credential(control_plane, cache, metadata, federation)


def test_the_cloud_takes_a_token_as_that_instances(site: Site, control_plane: str, tmp_path: Path) -> None:
    permit(site, site.one, "CLUSTER_USE, CLUSTER_MANAGE", control_plane)
    given = made(site, "one", control_plane, tmp_path / "token.json")
    assert (given["kind"], given["apiVersion"]) == ("ExecCredential", "client.authentication.k8s.io/v1beta1")
    found = reviewed(site, control_plane, given["status"]["token"])
    assert found["user"] == {"username": site.one.id, "uid": site.one.id, "groups": ["system:masters"]}


def test_a_node_is_the_one_that_it_becomes(site: Site, control_plane: str, tmp_path: Path) -> None:
    token = made(site, "two", control_plane, tmp_path / "token.json")["status"]["token"]
    assert not reviewed(site, control_plane, token)["authenticated"], "no policy permits anything"
    permit(site, site.two, "CLUSTER_JOIN", control_plane)
    user = reviewed(site, control_plane, token)["user"]
    assert (user["username"], user["groups"]) == (f"system:node:{site.addresses['two']}", ["system:nodes"])


def test_a_recent_token_is_taken_again_by_its_owner_alone(site: Site, control_plane: str, tmp_path: Path) -> None:
    cache = tmp_path / "run" / "token.json"
    first = made(site, "one", control_plane, cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert instance_token.credential(control_plane, cache, "http://127.0.0.1:9/none") == first
    other = control_plane[:-1] + ("a" if control_plane[-1] != "a" else "b")
    for change in ("another cluster", "too old", "readable by others", "no JSON"):
        kept, asked = json.loads(cache.read_text()), other if change == "another cluster" else control_plane
        if change == "too old":
            cache.write_text(json.dumps({**kept, "until": time.time() + 30}))
        elif change == "readable by others":
            cache.chmod(0o644)
        elif change == "no JSON":
            cache.write_text("{")
        with pytest.raises(Failed, match="gives no answer"):
            instance_token.credential(asked, cache, "http://127.0.0.1:9/none")
        cache.write_text(json.dumps(kept))
        cache.chmod(0o600)
    assert instance_token.credential(control_plane, cache, "http://127.0.0.1:9/none") == first


def test_what_refuses_is_named(site: Site, control_plane: str, tmp_path: Path) -> None:
    with site.served_to("one") as metadata, pytest.raises(Failed, match="/nowhere refuses this instance: 401"):
        instance_token.credential(control_plane, tmp_path / "a", metadata, f"{site.api.endpoint}/nowhere")
    with pytest.raises(Refused, match="not the OCID of a cluster"):
        instance_token.credential("../x", tmp_path / "b")
