"""The addresses of a local cluster must be free on this machine, but for its own network, which is known by its tag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oci
import pytest

from gpucluster.cloud.providers.local import LocalCloudProvider, free_range
from gpucluster.errors import InputError, ProcessError
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths
from gpucluster.spec import load, template
from tests.localcloud.api_harness import Api, running

pytestmark = pytest.mark.slow


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path / "cloud") as api:
        yield api


def _cloud(api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCloudProvider:
    """On a machine whose only route is to the network of the cluster, as a cluster's own bridge makes it."""
    (folder / "cluster.yml").write_text(template(name="demo", provider="local"))
    spec = load(folder / "cluster.yml")
    monkeypatch.setattr("gpucluster.cloud.providers.local._host_routes", lambda: (spec.network.vcn_cidr,))
    monkeypatch.setattr("gpucluster.localcloud.engine.containers.network_ranges", list)
    cloud = LocalCloudProvider(spec, ClusterPaths(folder / ".gpucluster"), ignore)
    cloud.home = api.home
    return cloud


def test_a_network_of_another_owner_is_in_use_by_right(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = _cloud(api, tmp_path, monkeypatch)
    network = cloud._spec.network.model_copy(update={"vcn_id": "ocid1.vcn.local..theirs"})
    cloud._spec = cloud._spec.model_copy(update={"network": network})
    cloud.check_network()


@pytest.mark.parametrize("owner", ["demo", "other", ""])
def test_only_the_network_with_its_tag_is_its_own(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """Nothing is known from `.gpucluster/`: it may have been deleted."""
    cloud = _cloud(api, tmp_path, monkeypatch)
    if owner:
        details = oci.core.models.CreateVcnDetails(
            compartment_id=api.tenancy, cidr_blocks=["10.66.0.0/16"], freeform_tags={"gpucluster": owner}
        )
        api.network.create_vcn(details)
    if owner == "demo":
        cloud.check_network()
        return
    monkeypatch.setattr(cloud, "stop_if_empty", lambda: None)
    with pytest.raises(InputError, match=r"in use on this machine(.|\n)*vcn_cidr(.|\n)*overlaps"):
        cloud.check_network()


def test_a_refusal_names_each_range_once_and_a_free_one(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = _cloud(api, tmp_path, monkeypatch)
    monkeypatch.setattr(cloud, "stop_if_empty", lambda: None)
    # A network of Podman's is a route as well.
    monkeypatch.setattr("gpucluster.localcloud.engine.containers.network_ranges", lambda: ["10.77.0.0/16"])
    with pytest.raises(InputError) as refused:
        cloud.check_network()
    (found,) = refused.value.findings
    assert found.message == "10.77.0.0/16 overlaps 10.77.0.0/16"
    assert found.hint == "10.78.0.0/16 is free: write it there, and subnets in it"


def test_a_new_file_has_a_range_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "cloud"))
    monkeypatch.setattr("gpucluster.cloud.providers.local._host_routes", lambda: ("10.77.0.0/24", "default"))
    monkeypatch.setattr("gpucluster.localcloud.engine.containers.network_ranges", lambda: ["10.78.4.0/24"])
    assert free_range() == "10.79.0.0/16"

    def absent() -> list[str]:
        raise ProcessError("there is no podman")

    monkeypatch.setattr("gpucluster.localcloud.engine.containers.network_ranges", absent)
    assert free_range() == "10.78.0.0/16"
