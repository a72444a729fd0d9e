"""How the stand-in creates, waits and deletes, against a scripted API: the paths that a healthy cloud never takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpucluster.localcloud.provider import installation
from gpucluster.localcloud.provider.operations import ResourceOperator, TaintedCreate, describe
from gpucluster.localcloud.provider.rest import RestClient, RestReply, ServiceError
from gpucluster.localcloud.provider.schema import catalogue, known
from tests.localcloud.provider.instance_values import INSTANCE as VALUES
from tests.localcloud.provider.instance_values import KINDS, planned

VCN = catalogue().resources["oci_core_vcn"]
INSTANCE = catalogue().resources["oci_core_instance"]
GONE = ServiceError(404, "NotAuthorizedOrNotFound", "not found")


class Script(RestClient):
    """Answers `METHOD path` with the next of its replies; the last one repeats. An exception is raised."""

    def __init__(self, **replies: list[Any]) -> None:
        self.endpoint = "scripted"
        self.replies = {call.replace("_", " ", 1): list(answers) for call, answers in replies.items()}
        self.calls: list[tuple[str, Any, str]] = []

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        retry_token: str = "",
    ) -> RestReply:
        name = f"{method} {path.rpartition('/')[2]}"
        self.calls.append((name, body, retry_token))
        answers = self.replies[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        headers = {"opc-work-request-id": "wr"} if method == "POST" else {}
        return RestReply(answer, headers)

    def items(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        return iter(self.call("GET", path, query=query).body)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


def _vcn(state: str) -> dict[str, Any]:
    return {"id": "vcn", "displayName": "demo", "lifecycleState": state}


def test_a_create_waits_for_its_state_and_forgives_a_stale_get() -> None:
    script = Script(POST_vcns=[_vcn("PROVISIONING")], GET_vcn=[GONE, _vcn("PROVISIONING"), _vcn("AVAILABLE")])
    assert ResourceOperator(script).create(VCN, {"display_name": "demo"})["state"] == "AVAILABLE"


def test_another_run_does_not_find_what_an_equal_request_made() -> None:
    """As with the real provider: a resource that no state knows is not found by its retry token."""
    script = Script(POST_vcns=[_vcn("AVAILABLE")], GET_vcn=[_vcn("AVAILABLE")])
    for _ in range(2):
        ResourceOperator(script).create(VCN, {"display_name": "demo"})
    first, second = [token for name, _, token in script.calls if name == "POST vcns"]
    assert first != second
    assert all(0 < len(token) <= 64 for token in (first, second))


def test_a_create_that_fails_late_tells_why_and_leaves_its_trace() -> None:
    body = {"id": "i", "compartmentId": "c", "lifecycleState": "PROVISIONING"}
    script = Script(
        POST_instances=[body],
        GET_i=[body, {**body, "lifecycleState": "TERMINATED"}],
        GET_errors=[[{"code": "x", "message": "Out of host capacity."}]],
    )
    with pytest.raises(TaintedCreate) as caught:
        ResourceOperator(script).create(INSTANCE, {"compartment_id": "c"})
    assert caught.value.state["id"] == "i"
    assert (
        "work request did not succeed, workId: wr, entity: instance, action: CREATED. Message: Out of host capacity."
        in str(caught.value)
    )
    assert str(caught.value).startswith("Work Request error \n")


RACK = catalogue().resources["oci_core_compute_gpu_memory_cluster"]


def _rack(size: int) -> dict[str, Any]:
    return {"id": "rack", "lifecycleState": "ACTIVE", "size": size}


def test_the_work_request_of_a_gpu_memory_cluster_is_waited_for() -> None:
    script = Script(
        POST_computeGpuMemoryClusters=[_rack(2)],
        GET_wr=[{"status": "ACCEPTED"}, {"status": "IN_PROGRESS"}, {"status": "SUCCEEDED"}],
        GET_rack=[_rack(2)],
    )
    made = ResourceOperator(script).create(RACK, {"size": "2"})
    assert made["size"] == "2"
    assert [name for name, *_ in script.calls].count("GET wr") == 3
    assert script.calls[0][1] == {"size": 2}


def test_a_gpu_memory_cluster_that_lacks_instances_is_an_error_though_it_is_active() -> None:
    script = Script(
        POST_computeGpuMemoryClusters=[_rack(2)],
        GET_wr=[{"status": "FAILED"}],
        GET_errors=[[{"message": "Out of host capacity."}]],
        GET_rack=[_rack(1)],
    )
    with pytest.raises(TaintedCreate, match=r"entity: computegpumemorycluster, .*Message: Out of host capacity\."):
        ResourceOperator(script).create(RACK, {"size": "2"})


def test_a_work_request_that_does_not_end_is_given_up() -> None:
    script = Script(POST_computeGpuMemoryClusters=[_rack(2)], GET_wr=[{"status": "IN_PROGRESS"}])
    with pytest.raises(TaintedCreate, match=r"timeout while waiting for the work request .*'IN_PROGRESS'"):
        ResourceOperator(script).create(RACK, {"timeouts": {"create": "0.05s"}})


def test_without_a_work_request_the_unexpected_state_is_told() -> None:
    script = Script(POST_vcns=[_vcn("PROVISIONING")], GET_vcn=[_vcn("FAILED")], GET_errors=[[]])
    with pytest.raises(
        TaintedCreate, match=r"reach state\(s\): AVAILABLE, but the service reported unexpected state: FAILED"
    ):
        ResourceOperator(script).create(VCN, {})


def test_patience_ends_with_the_timeouts_block() -> None:
    script = Script(POST_vcns=[_vcn("PROVISIONING")], GET_vcn=[_vcn("PROVISIONING")])
    with pytest.raises(TaintedCreate, match=r"timeout while waiting .*last state: 'PROVISIONING', timeout: 0s"):
        ResourceOperator(script).create(VCN, {"timeouts": {"create": "0.05s"}})


def test_a_delete_waits_while_something_that_goes_away_uses_it() -> None:
    busy = ServiceError(409, "Conflict", "in use")
    script = Script(DELETE_vcn=[busy, busy, None], GET_vcn=[_vcn("TERMINATING"), GONE])
    ResourceOperator(script).delete(VCN, {"id": "vcn"})
    assert [name for name, _, _ in script.calls] == ["DELETE vcn"] * 3 + ["GET vcn"] * 2


def test_what_is_gone_already_is_deleted() -> None:
    ResourceOperator(Script(DELETE_vcn=[GONE])).delete(VCN, {"id": "vcn"})


@pytest.mark.parametrize("answer", [GONE, _vcn("TERMINATED")])
def test_what_is_gone_is_read_as_nothing(answer: Any) -> None:
    assert ResourceOperator(Script(GET_vcn=[answer])).read(VCN, {"id": "vcn"}) is None


def test_an_update_sends_what_differs() -> None:
    script = Script(PUT_vcn=[_vcn("AVAILABLE")], GET_vcn=[_vcn("AVAILABLE")])
    before = {"id": "vcn", "display_name": "old", "freeform_tags": {"a": "b"}, "compartment_id": "c"}
    ResourceOperator(script).update(VCN, before, {**before, "display_name": "demo"})
    assert script.calls[0] == ("PUT vcn", {"displayName": "demo"}, "")


def test_a_cluster_network_is_resized_by_the_id_of_its_pool_and_not_waited_for() -> None:
    kind = catalogue().resources["oci_core_cluster_network"]
    shown = {"id": "cn", "lifecycleState": "SCALING"}
    script = Script(PUT_cn=[shown], GET_cn=[shown])
    pool = {"id": "pool", "instance_configuration_id": "ic", "size": 2}
    before = {"id": "cn", "instance_pools": [pool]}
    ResourceOperator(script).update(kind, before, {"id": "cn", "instance_pools": [{**pool, "size": 3}]})
    sent = {"instancePools": [{"id": "pool", "instanceConfigurationId": "ic", "size": 3}]}
    assert script.calls == [("PUT cn", sent, ""), ("GET cn", None, "")]


def test_what_is_changed_in_place_on_oci_and_not_here_is_refused() -> None:
    before = known(planned("oci_core_instance", id="i", **VALUES))
    client: Any = None
    with pytest.raises(ServiceError, match="OCI changes compartment_id of Instance in place"):
        ResourceOperator(client).update(KINDS["oci_core_instance"], before, {**before, "compartment_id": "d"})


def test_an_error_reads_like_the_real_providers() -> None:
    error = ServiceError(409, "IncorrectState", "Still in use.", target="DELETE /20160918/vcns/x", request_id="r-1")
    assert describe(error, "Core Vcn", "DeleteVcn").splitlines() == [
        "409-IncorrectState, Still in use.",
        "Suggestion: Please update the parameter(s) in the Terraform config as per error message Still in use.",
        "Request Target: DELETE /20160918/vcns/x",
        f"Provider version: {installation.VERSION}, stand-in for the local cloud",
        "Service: Core Vcn",
        "Operation Name: DeleteVcn",
        "OPC request ID: r-1",
    ]
