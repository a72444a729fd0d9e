"""What preflight asks of the cloud, with the real SDK: shapes, limits, images and networks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster import preflight
from gpucluster.localcloud.state.store import ResourceStore
from gpucluster.preflight.queries import client
from tests.localcloud.api_harness import GPU_SHAPE, Api, running
from tests.localcloud.relay import Answer, relaying
from tests.preflight.test_collect import _cloud, _errors, _findings, _one, _spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("preflight"))) as api:
        yield api


@pytest.fixture(autouse=True)
def _here(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUCLUSTER_HOME", str(api.home))
    monkeypatch.setattr(client, "_PAUSES", (0.05, 0.05))
    yield
    api.faults()
    (api.home / "limits.json").unlink(missing_ok=True)


def test_a_shape_that_is_offered_elsewhere(api: Api, tmp_path: Path) -> None:
    def without(path: str, answer: Answer) -> None:
        if "/shapes?" in path and "AD-1" in path:
            answer.body = json.dumps([one for one in json.loads(answer.body) if one["shape"] != GPU_SHAPE]).encode()

    with relaying(api.endpoint) as relay:
        relay.change = without
        found = _findings(tmp_path, endpoint=relay.endpoint)
    assert "offered in local:LOCAL-1-AD-2" in _one(found, "error", "shapes").action


# --- limits -----


def test_a_limit_that_is_too_small(api: Api, tmp_path: Path) -> None:
    (api.home / "limits.json").write_text('{"limits": {"gpu4-count": 15, "vcn-count": 0}}')
    errors = _errors(_findings(tmp_path))
    assert len(errors) == 2
    assert "leaves 15, and 16 more are needed for pools.gpu" in errors[0]
    assert "one VCN is needed" in errors[1]


def test_a_quota_that_is_too_small_for_the_maximum(api: Api, tmp_path: Path) -> None:
    (api.home / "limits.json").write_text('{"quotas": {"gpu4-count": 16}}')
    found = _findings(tmp_path)
    assert _errors(found) == []
    assert "leaves 16, and 32 more are needed" in _one(found, "warning", "limits").reason


# --- images -----


def test_an_image_that_does_not_fit(tmp_path: Path) -> None:
    image = "image: {name: Oracle-Linux-8.10-2025.08.31-0, login_user: opc}, count: 2"
    found = _findings(tmp_path, ("count: 2", image))
    assert "is not compatible with the shape BM.GPU4.8" in _one(found, "error", "image").reason


def test_an_image_by_its_ocid(api: Api, tmp_path: Path) -> None:
    ubuntu = api.compute.list_images(api.tenancy, operating_system="Canonical Ubuntu", shape=GPU_SHAPE).data[0]
    named = f"image: {{ocid: {ubuntu.id}, login_user: ubuntu}}, count: 2"
    assert _errors(_findings(tmp_path, ("count: 2", named))) == []
    gone = "image: {ocid: ocid1.image.local..aaaaaaaagone, login_user: ubuntu}, count: 2"
    assert "does not exist" in _one(_findings(tmp_path, ("count: 2", gone)), "error", "image").reason


def test_a_marketplace_listing(tmp_path: Path) -> None:
    listing = "listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc"
    found = _findings(tmp_path, ("count: 2", f"image: {{{listing}}}, count: 2"))
    assert _errors(found) == []
    (terms,) = [one for one in found if "accepts the terms" in one.reason]
    assert "GPU-550-CUDA-12.4-2025.07.19" in terms.reason, "the newest of NVIDIA's; AMD's is younger"
    assert "eula" in terms.action
    found = _findings(tmp_path, ("count: 2", f"image: {{{listing}, listing_version: '*-GPU-570-*'}}, count: 2"))
    assert _errors(found) == []
    assert "GPU-570-OPEN" in next(one for one in found if "accepts the terms" in one.reason).reason
    found = _findings(tmp_path, ("count: 2", f"image: {{{listing}, listing_version: '*-ROCM-*'}}, count: 2"))
    assert "has no version *-ROCM-* for NVIDIA GPUs" in _one(found, "error", "image").reason
    assert "AMD-ROCM-632" in _one(found, "error", "image").action
    found = _findings(tmp_path, ("count: 2", "image: {listing: Nothing Such, login_user: opc}, count: 2"))
    assert "no marketplace listing Nothing Such" in _one(found, "error", "image").reason


def test_only_a_platform_image_is_found_by_its_system(api: Api, tmp_path: Path) -> None:
    """A custom image of the compartment, younger and with the same system, is meant by its name only."""
    base = api.compute.list_images(
        api.tenancy, operating_system="Oracle Linux", operating_system_version="9", shape=GPU_SHAPE
    ).data[0]
    subnet = api.subnet(api.vcn("10.99.0.0/16"), "10.99.0.0/24")
    source = oci.core.models.InstanceSourceViaImageDetails(image_id=base.id)
    instance = api.launch(subnet, "base", shape=GPU_SHAPE, source_details=source)
    details = oci.core.models.CreateImageDetails(
        compartment_id=api.tenancy, instance_id=instance.id, display_name="ours"
    )
    custom = api.wait(api.compute.get_image, api.compute.create_image(details).data.id, "AVAILABLE")
    by_system = 'operating_system: Oracle Linux, version: "9"'
    found = _findings(tmp_path, ("count: 2", f"image: {{{by_system}}}, count: 2"))
    assert any(base.display_name in one.reason for one in found)
    assert not any("image ours" in one.reason for one in found)
    found = _findings(tmp_path, ("count: 2", "image: {name: ours, operating_system: Oracle Linux}, count: 2"))
    assert _errors(found) == []
    assert not any(base.display_name in one.reason for one in found)
    api.compute.delete_image(custom.id)
    api.compute.terminate_instance(instance.id)


def test_a_build_that_is_no_longer_listed_is_refused_and_kept_where_it_runs(api: Api, tmp_path: Path) -> None:
    name = "Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0"
    wanted = ("count: 2", f"image: {{name: {name}, operating_system: Oracle Linux}}, rdma: false, count: 2")
    refused = _one(_findings(tmp_path, wanted), "error", "image")
    assert "2025-02-28 is older" in refused.reason
    (old,) = ResourceStore(api.home / "cloud.db").find("image", displayName=name)
    # Terraform keeps the image of a cluster that exists.
    spec = _spec(tmp_path, wanted)
    outputs = {"cluster": {"pools": {"gpu": {"image_id": old.id}}}}
    assert _errors(preflight.examine(spec, _cloud(spec), outputs).findings) == []


# --- existing networks -----


@pytest.fixture
def network(api: Api) -> Iterator[dict[str, Any]]:
    """A VCN with a public and a private subnet, and without gateways."""
    vcn = api.vcn("10.95.0.0/16", "theirs")
    public = api.subnet(vcn, "10.95.0.0/24", dns_label="pub")
    private = api.subnet(vcn, "10.95.1.0/24", dns_label="priv", prohibit_public_ip_on_vnic=True)
    yield {"vcn": vcn, "public": public, "private": private}
    for subnet in (public, private):
        api.network.delete_subnet(subnet.id)
    api.network.delete_vcn(vcn.id)


def _existing(network: dict[str, Any]) -> tuple[str, str]:
    ids = f"vcn_id: {network['vcn'].id}\n  public_subnet_id: {network['public'].id}\n"
    return "  ssh_allowed_cidrs", f"  {ids}  private_subnet_id: {network['private'].id}\n  ssh_allowed_cidrs"


def test_an_existing_network(api: Api, network: dict[str, Any], tmp_path: Path) -> None:
    found = _findings(tmp_path, _existing(network))
    assert [one for one in _errors(found) if "internet gateway" not in one] == []
    assert {"NAT gateway", "service gateway", "allow all traffic"} <= {
        word for word in ("NAT gateway", "service gateway", "allow all traffic") for one in found if word in one.reason
    }
    wrong = _findings(tmp_path, _existing(network), ("10.95.1.0/24", "10.95.3.0/24"))
    assert any("has 10.95.1.0/24" in error for error in _errors(wrong))
    swapped = {**network, "public": network["private"], "private": network["public"]}
    assert any("prohibits public addresses" in error for error in _errors(_findings(tmp_path, _existing(swapped))))


def test_an_existing_network_that_is_not_there(api: Api, network: dict[str, Any], tmp_path: Path) -> None:
    gone = {**network, "vcn": oci.core.models.Vcn(id="ocid1.vcn.local..aaaaaaaagone")}
    errors = _errors(_findings(tmp_path, _existing(gone)))
    assert any("aaaaaaaagone does not exist" in error for error in errors)
