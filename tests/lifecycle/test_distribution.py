"""Which hosts must be launched again to get their new image, with the images of the local cloud's real API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.handover.adoption import STANDBY
from gpucluster.lifecycle.distribution import Distributions
from gpucluster.lifecycle.resize import scaling
from gpucluster.spec import ClusterSpec, loads
from gpucluster.terraform.plan import UNKNOWN, ResourceChange, TerraformPlan
from tests.localcloud.api_harness import Api, running
from tests.spec.spec_texts import MINIMAL

pytestmark = pytest.mark.slow

NODE = 'module.pool["cpu"].module.instance["cpu-1"].oci_core_instance.this'
LOGIN = 'module.login["demo-login-1"].oci_core_instance.this'
WHY = "it has Debian, and its new image has Oracle Linux, which OCI puts on a new instance only"
CONTROLLER = "module.controller.oci_core_instance.this"
NETWORK = MINIMAL[MINIMAL.index("network:") : MINIMAL.index("pools:")]
ORACLE = "Oracle-Linux-9.7-2026.06.15-0"
SPEC = """\
version: 1
name: demo
cloud: {{provider: local}}
{network}controller: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, image: {{{controller}}}}}
login: {{count: 1, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, image: {{{image}}}}}
pools:
  cpu: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, count: 1, image: {{{image}}}}}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("distribution") / "cloud") as api:
        yield api


def debian(api: Api, version: str = "12") -> str:
    listed = api.compute.list_images(api.tenancy, operating_system="Debian", operating_system_version=version).data
    return str(listed[0].id)


def spec_with(image: str, *, everywhere: bool = False) -> ClusterSpec:
    controller = image if everywhere else 'operating_system: Debian, version: "13"'
    return loads(SPEC.format(image=f"{image}, login_user: opc", network=NETWORK, controller=controller), "cluster.yml")


def reasons(api: Api, image: str, before: str, *addresses: str, action: str = "update") -> dict[str, str]:
    """Every host has `before`, and gets an image that Terraform has not selected yet."""
    values = {"source_details.source_id": (before, UNKNOWN)}
    changes = tuple(ResourceChange(each, action, changed=tuple(values), values=values) for each in addresses)
    cloud = SimpleNamespace(access=lambda: CloudAccess(api.config, api.endpoint, api.tenancy))
    return Distributions(spec_with(image), cloud).refused(TerraformPlan(changes, Path("plan")))


@pytest.mark.parametrize(
    "image",
    ['operating_system: Oracle Linux, version: "9"', f"name: {ORACLE}", "ocid"],
    ids=["by its distribution", "by its name", "by its OCID"],
)
def test_another_distribution_needs_another_instance(api: Api, image: str) -> None:
    text = f"ocid: {api.named_image(ORACLE).id}" if image == "ocid" else image
    found = reasons(api, text, debian(api), NODE, LOGIN, CONTROLLER, STANDBY)
    assert list(found) == [NODE, LOGIN]  # the controller and its standby get Debian
    assert set(found.values()) == {WHY}


def test_another_version_of_a_distribution_stays_in_its_place(api: Api) -> None:
    assert reasons(api, 'operating_system: Debian, version: "13"', debian(api), NODE, LOGIN, CONTROLLER) == {}


def test_an_image_of_the_marketplace_needs_another_instance(api: Api) -> None:
    found = reasons(api, "listing: OracleLinux-9-NVIDIA", debian(api), NODE)
    assert list(found) == [NODE]
    assert "of the marketplace" in found[NODE]


def test_what_is_not_known_is_left_to_oci(api: Api) -> None:
    gone = "ocid1.image.oc1..gone"
    assert reasons(api, 'operating_system: Oracle Linux, version: "9"', gone, NODE) == {}
    assert reasons(api, f"ocid: {gone}", debian(api), NODE) == {}
    assert reasons(api, "name: No-Such-Image", debian(api), NODE) == {}


def test_a_host_that_is_launched_anyway_costs_no_question() -> None:
    changes = (
        ResourceChange(NODE, "create"),
        ResourceChange(LOGIN, "replace", values={"source_details.source_id": ("a", "b")}),
        ResourceChange(CONTROLLER, "update", values={"shape_config.ocpus": (2, 4)}),
    )
    image = 'operating_system: Oracle Linux, version: "9"'
    cloud: Any = None
    assert Distributions(spec_with(image), cloud).refused(TerraformPlan(changes, Path("plan"))) == {}


def test_who_has_not_allowed_it_keeps_the_node(api: Api, tmp_path: Path) -> None:
    """Terraform calls it "requested", as if the operator had named the host."""
    asked: list[tuple[str, ...]] = []

    def plan(*, recreate: tuple[str, ...], with_values: bool) -> TerraformPlan:
        asked.append(tuple(recreate))
        values = {} if recreate else {"source_details.source_id": (debian(api), UNKNOWN)}
        change = ResourceChange(CONTROLLER, "replace" if recreate else "update", "requested", values=values)
        return TerraformPlan((change,), tmp_path / "plan")

    terraform: Any = SimpleNamespace(plan=plan)
    spec = spec_with('operating_system: Oracle Linux, version: "9"', everywhere=True)
    cloud = SimpleNamespace(access=lambda: CloudAccess(api.config, api.endpoint, api.tenancy))
    made = Distributions(spec, cloud).plan(terraform)
    assert asked == [(), (CONTROLLER,)]
    assert [each.why for each in scaling(made.changes, spec, None, {}).replacements] == [WHY]


def test_a_standby_is_launched_again_as_the_controller(api: Api, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def plan(*, recreate: tuple[str, ...], with_values: bool) -> TerraformPlan:
        asked.append(tuple(recreate))
        values = {"source_details.source_id": (debian(api), UNKNOWN)}
        changes = tuple(ResourceChange(each, "update", values=values) for each in (CONTROLLER, STANDBY))
        return TerraformPlan(changes, tmp_path / "plan")

    terraform: Any = SimpleNamespace(plan=plan)
    spec = spec_with('operating_system: Oracle Linux, version: "9"', everywhere=True)
    cloud = SimpleNamespace(access=lambda: CloudAccess(api.config, api.endpoint, api.tenancy))
    Distributions(spec, cloud).plan(terraform)
    assert asked == [(), (CONTROLLER, STANDBY)]


def test_many_hosts_of_one_image_cost_one_question(api: Api) -> None:
    asked: list[str] = []

    def get_image(ocid: str) -> Any:
        asked.append(ocid)
        return api.compute.get_image(ocid)

    access = SimpleNamespace(client=lambda *_: SimpleNamespace(get_image=get_image))
    cloud: Any = SimpleNamespace(access=lambda: access)
    values = {"source_details.source_id": (debian(api), UNKNOWN)}
    nodes = [NODE.replace("cpu-1", f"cpu-{number}") for number in range(1, 65)]
    plan = TerraformPlan(tuple(ResourceChange(each, "update", values=values) for each in nodes), Path("plan"))
    spec = spec_with('operating_system: Oracle Linux, version: "9"')
    assert list(Distributions(spec, cloud).refused(plan)) == nodes
    assert asked == [debian(api)]
