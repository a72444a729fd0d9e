"""The tag that tells Oracle of a bad host, against the API of the local cloud, with an engine that starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from oci.core import models

from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.host_reports import HostReports
from gpucluster.oci.tags import HOST_ACTIONS, HOST_STATUS, UNHEALTHY
from tests.localcloud.api_harness import Api, make_host_namespace, running

pytestmark = pytest.mark.slow

FINANCE = {"Finance": {"CostCenter": "gpu"}}
BAD = {HOST_ACTIONS: {HOST_STATUS: UNHEALTHY}}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("reports") / "cloud") as api:
        yield api


@pytest.fixture
def api(shared: Api) -> Iterator[Api]:
    yield shared
    shared.faults()
    for namespace in shared.identity.list_tag_namespaces(shared.tenancy).data:
        shared.identity.delete_tag_namespace(namespace.id)


@pytest.fixture(scope="module")
def subnet(shared: Api) -> Any:
    return shared.subnet(shared.vcn())


@pytest.fixture
def node(api: Api, subnet: Any) -> Iterator[str]:
    """The OCID of an instance that has a defined tag of its cluster."""
    made = api.launch(subnet, "n1", defined_tags=FINANCE).id
    yield str(made)
    if api.compute.get_instance(made).data.lifecycle_state != "TERMINATED":
        api.compute.terminate_instance(made)
    # Until then its host name is in use, and the next test needs it.
    api.wait(api.compute.get_instance, made, "TERMINATED")


@pytest.fixture
def reports(api: Api) -> HostReports:
    return HostReports(CloudAccess(api.config, api.endpoint, api.tenancy))


def test_a_host_is_reported_once_and_the_other_tags_stay(api: Api, node: str, reports: HostReports) -> None:
    make_host_namespace(api)
    first = reports.report(node, "n1")
    assert (first.reported, first.before, first.why) == (True, False, "")
    instance = api.compute.get_instance(node)
    assert instance.data.defined_tags == {**FINANCE, **BAD}
    assert first.instance is not None
    assert first.instance["id"] == node
    assert first.instance["availability_domain"] == instance.data.availability_domain
    again = reports.report(node, "n1")
    assert (again.reported, again.before) == (True, True)
    assert api.compute.get_instance(node).headers["etag"] == instance.headers["etag"], "nothing was changed"


def test_without_the_namespace_it_is_told_who_makes_it(api: Api, node: str, reports: HostReports) -> None:
    result = reports.report(node, "n1")
    assert not result.reported
    assert "TagNamespace ComputeInstanceHostActions does not exists" in result.why
    assert "administrator" in result.next
    assert result.instance, "the evidence names the instance nevertheless"
    assert api.compute.get_instance(node).data.defined_tags == FINANCE


@pytest.mark.parametrize(
    ("fault", "why", "advice"),
    [
        ({"status": 404}, "404 NotAuthorizedOrNotFound", "gpucluster policies"),
        ({"status": 400, "code": "InvalidParameter", "message": "no"}, "400 InvalidParameter: no", ""),
    ],
)
def test_a_refusal_is_no_error(
    api: Api, node: str, reports: HostReports, fault: dict[str, Any], why: str, advice: str
) -> None:
    make_host_namespace(api)
    api.faults({"operation": "UpdateInstance", **fault})
    result = reports.report(node, "n1")
    assert not result.reported
    assert why in result.why
    assert advice in result.next


def test_a_change_of_others_meanwhile_is_not_lost(
    api: Api, node: str, reports: HostReports, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host_namespace(api)
    client = reports._client()
    update = client.update_instance
    others = [{"Ops": {"Owner": "ann"}}]

    def late(ocid: str, details: Any, **more: Any) -> Any:
        if others:
            change = models.UpdateInstanceDetails(defined_tags={**FINANCE, **others.pop()})
            api.compute.update_instance(ocid, change)
        return update(ocid, details, **more)

    monkeypatch.setattr(client, "update_instance", late)
    monkeypatch.setattr(reports, "_client", lambda: client)
    assert reports.report(node, "n1").reported
    assert api.compute.get_instance(node).data.defined_tags == {**FINANCE, "Ops": {"Owner": "ann"}, **BAD}


def test_what_is_gone_can_not_be_reported(api: Api, node: str, reports: HostReports) -> None:
    api.compute.terminate_instance(node)
    api.wait(api.compute.get_instance, node, "TERMINATED")
    assert reports.report(node, "n1").why == "its instance is gone already"
    assert "gone" in reports.report("ocid1.instance.local..none", "n1").why
