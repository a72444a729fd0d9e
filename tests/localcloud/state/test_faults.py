"""Injected faults, each as the real SDK sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest
from oci.core import models

from gpucluster.localcloud.api.instances import as_of
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.state.faults import Faults
from gpucluster.localcloud.state.store import Resource
from gpucluster.localcloud.state.wire import ApiError
from tests.localcloud.api_harness import GPU_SHAPE, SHAPE, Api, refused, running
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

OUT = "Out of host capacity."


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("faults") / "cloud") as api:
        yield api


@pytest.fixture
def api(shared: Api) -> Iterator[Api]:
    yield shared
    shared.faults()


@pytest.fixture(scope="module")
def subnet(shared: Api) -> Any:
    return shared.subnet(shared.vcn())


def launch(api: Api, subnet: Any, name: str, token: str = "", **more: Any) -> Any:
    extra = {"opc_retry_token": token} if token else {}
    return api.compute.launch_instance(api.launch_details(subnet, name, **more), **extra).data


def names(api: Api, **filters: Any) -> set[str]:
    return {one.display_name for one in api.compute.list_instances(api.tenancy, **filters).data}


# which requests


def test_filters_choose_the_launches_that_fail(api: Api, subnet: Any) -> None:
    second = api.domain.replace("AD-1", "AD-2")
    gpu: dict[str, Any] = {"shape": GPU_SHAPE, "shape_config": None}
    api.faults({"operation": "LaunchInstance", "shape": "BM.GPU*", "availability_domain": api.domain,
                "display_name": "full-*", "message": OUT})  # fmt: skip
    with refused(500, "InternalError") as said:
        launch(api, subnet, "full-1", **gpu)
    assert said == [OUT]
    launch(api, subnet, "full-2")
    launch(api, subnet, "full-3", availability_domain=second, **gpu)
    launch(api, subnet, "roomy-1", **gpu)


def test_a_pattern_means_both_kinds_of_launch_and_a_configuration_can_be_chosen(api: Api, subnet: Any) -> None:
    vnic = models.InstanceConfigurationCreateVnicDetails(subnet_id=subnet.id)
    configuration = api.configuration(create_vnic_details=vnic)
    other = api.configuration(create_vnic_details=vnic)
    nothing = models.ComputeInstanceDetails()
    fault = {"operation": "LaunchInstance*", "status": 400, "code": "LimitExceeded", "message": "The limit is 0."}
    for wanted in (configuration.id, "po*"):
        api.faults({**fault, "instance_configuration": wanted})
        with refused(400, "LimitExceeded"):
            api.management.launch_instance_configuration(configuration.id, nothing)
    api.faults({**fault, "instance_configuration": configuration.id})
    api.management.launch_instance_configuration(other.id, nothing)
    launch(api, subnet, "plain-1")
    api.faults(fault)
    with refused(400, "LimitExceeded"):
        launch(api, subnet, "plain-2")


def test_one_instance_can_be_chosen_for_what_comes_later(api: Api, subnet: Any) -> None:
    one, two = api.launch(subnet, "chosen"), api.launch(subnet, "spared")
    api.faults({"operation": "TerminateInstance", "display_name": "chosen", "status": 409, "code": "IncorrectState",
                "message": "Busy."})  # fmt: skip
    with refused(409, "IncorrectState"):
        api.compute.terminate_instance(one.id)
    api.compute.terminate_instance(two.id)


# how often


def strikes(faults: Faults, count: int, operation: str = "GetVcn") -> list[bool]:
    return [faults.effect_on(operation, dict).error is not None for _ in range(count)]


def faults_of(tmp_path: Path, text: str) -> Faults:
    (tmp_path / "faults.json").write_text(text)
    return Faults(tmp_path)


def test_every_and_times_count(tmp_path: Path) -> None:
    every = faults_of(tmp_path, '[{"operation": "GetVcn", "status": 503, "every": 3, "times": 2}]')
    assert strikes(every, 10) == [False, False, True, False, False, True, False, False, False, False]
    assert strikes(every, 3, "GetSubnet") == [False] * 3


def test_chance_is_the_same_each_time(tmp_path: Path) -> None:
    text = '[{"operation": "*", "status": 503, "probability": 0.3, "seed": 7}]'
    first = strikes(faults_of(tmp_path, text), 200)
    assert first == strikes(faults_of(tmp_path, text), 200)
    assert first != strikes(faults_of(tmp_path, text.replace("7", "8")), 200)
    assert 40 <= sum(first) <= 80


def test_a_fault_that_was_taken_out_starts_again(tmp_path: Path) -> None:
    text = '[{"operation": "GetVcn", "status": 503, "times": 1}]'
    faults = faults_of(tmp_path, text)
    assert strikes(faults, 2) == [True, False]
    (tmp_path / "faults.json").write_text("[]")
    assert strikes(faults, 1) == [False]
    (tmp_path / "faults.json").write_text(text)
    assert strikes(faults, 2) == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "{", '["x"]', '[{"operation": "GetVcn", "statsu": 500}]', '[{"operation": "GetVcn", "status": "500"}]',
        '[{"operation": "GetVcn", "status": 400}]', '[{"status": 500}]', '[{"operation": "x", "hosts": 1}]',
        '[{"operation": "BootInstance", "dead": 1}]', '[{"operation": "GetVcn", "times": true}]',
    ],
)  # fmt: skip
def test_a_typo_fails_every_request(tmp_path: Path, text: str) -> None:
    with pytest.raises(ApiError, match="is not a list of faults"):
        faults_of(tmp_path, text).effect_on("GetSubnet", dict)


def test_a_pattern_never_means_what_comes_after_the_answer(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, '[{"operation": "*", "status": 503}]')
    assert faults.boot({}).error is None
    assert faults.end({}).error is None


# what


def test_a_rate_is_kept(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "faults.json").write_text('[{"operation": "*", "rate": 5}]')
    faults = Faults(tmp_path, lambda: now[0])
    assert strikes(faults, 20) == [False] * 5 + [True] * 15
    accepted = 0
    for _ in range(300):
        now[0] += 1 / 30
        accepted += strikes(faults, 1) == [False]
    assert accepted == pytest.approx(50, abs=1), "five in each of ten seconds"


def test_what_exceeds_a_rate_is_told_so(api: Api) -> None:
    api.faults({"operation": "*", "rate": 0.001})
    api.identity.list_regions()
    with refused(429, "TooManyRequests"):
        api.identity.list_regions()


def test_an_outage_and_a_lost_login(api: Api) -> None:
    api.faults({"operation": "*", "status": 503})
    for ask in (api.identity.list_regions, lambda: api.compute.list_instances(api.tenancy)):
        with refused(503, "ServiceUnavailable"):
            ask()
    api.faults({"operation": "*", "status": 401, "times": 1})
    with refused(401, "NotAuthenticated"):
        api.identity.list_regions()
    api.identity.list_regions()


def test_late_out_of_capacity(api: Api, subnet: Any) -> None:
    api.faults({"operation": "BootInstance", "display_name": "late*", "until_removed": True, "message": OUT})
    reply = api.compute.launch_instance(api.launch_details(subnet, "late"))
    assert api.compute.get_instance(reply.data.id).data.lifecycle_state == "PROVISIONING"
    api.faults()
    api.wait(api.compute.get_instance, reply.data.id, "TERMINATED")
    request = api.work.list_work_requests(api.tenancy, resource_id=reply.data.id).data[-1]
    assert (request.id, request.status) == (reply.headers["opc-work-request-id"], "FAILED")
    error = api.work.list_work_request_errors(request.id).data[0]
    assert (error.code, error.message) == ("InternalError", OUT)
    api.launch(subnet, "in-time")


def test_a_dead_instance_runs_and_nothing_is_there_even_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path / "cloud") as api:
        subnet = api.subnet(api.vcn())
        api.faults({"operation": "BootInstance", "dead": True, "times": 1})
        dead, alive = api.launch(subnet, "dead"), api.launch(subnet, "alive")
        machines = api.home / "null" / "machines"
        assert [path.name for path in machines.iterdir()] == [f"gpucluster-alive-{alive.id[-12:]}"]
        # The next start looks at all instances, and finds that this one is gone.
        lost = api.launch(subnet, "lost")
        api.kill()
        NullEngine(api.home / "null").terminate(f"gpucluster-lost-{lost.id[-12:]}")
        api.start()
        api.wait(api.compute.get_instance, lost.id, "TERMINATED")
        assert api.compute.get_instance(dead.id).data.lifecycle_state == "RUNNING"
        api.compute.terminate_instance(dead.id)
        api.wait(api.compute.get_instance, dead.id, "TERMINATED")


def test_a_slow_boot_delays_no_other(api: Api, subnet: Any) -> None:
    slow, late = {"display_name": "slow-*", "delay": 3600}, {"display_name": "late-*", "delay": 0.1}
    api.faults(*({"operation": "BootInstance", **one} for one in (slow, late)))
    held = [launch(api, subnet, f"slow-{number}") for number in range(8)]
    api.launch(subnet, "quick")
    api.launch(subnet, "late-1")
    assert {api.compute.get_instance(one.id).data.lifecycle_state for one in held} == {"PROVISIONING"}
    for one in held:
        api.compute.terminate_instance(one.id)


def test_a_slow_end_keeps_the_host_name_taken(api: Api, subnet: Any) -> None:
    instance = api.launch(subnet, "ending")
    api.faults({"operation": "EndInstance", "display_name": "ending", "delay": 3600})
    api.compute.terminate_instance(instance.id)
    assert api.compute.get_instance(instance.id).data.lifecycle_state == "TERMINATING"
    with refused(400, "InvalidParameter") as said:
        launch(api, subnet, "ending")
    assert "already in use" in said[0]
    # One that ends a moment later gives its name back.
    api.faults({"operation": "EndInstance", "display_name": "ended", "delay": 0.1})
    instance = api.launch(subnet, "ended")
    api.compute.terminate_instance(instance.id)
    api.wait(api.compute.get_instance, instance.id, "TERMINATED")
    launch(api, subnet, "ended")


def test_a_lost_response_leaves_an_instance_that_the_token_finds(api: Api, subnet: Any) -> None:
    api.faults({"operation": "LaunchInstance*", "lost_response": True, "times": 1})
    with pytest.raises((oci.exceptions.RequestException, oci.exceptions.ConnectTimeout)):
        launch(api, subnet, "lost", "token-lost")
    made = api.compute.list_instances(api.tenancy, display_name="lost").data
    assert len(made) == 1
    # In the meantime no host is free: a repeated launch gets its existing instance.
    api.faults({"operation": "LaunchInstance*", "message": OUT})
    assert launch(api, subnet, "lost", "token-lost").id == made[0].id
    with refused(500, "InternalError"):
        launch(api, subnet, "other", "token-other")


def test_a_stale_listing_has_the_states_of_its_time() -> None:
    def row(number: int, *states: tuple[float, str]) -> Resource:
        body = {"lifecycleState": states[-1][1]}
        return Resource(id=f"instance-{number}", kind="instance", body=body, hidden={"states": [*states]})

    def listed(when: float) -> dict[str, str]:
        old = row(1, (10.0, "PROVISIONING"), (11.0, "RUNNING"), (20.0, "TERMINATING"), (21.0, "TERMINATED"))
        new = row(2, (30.0, "PROVISIONING"))
        return {one.id: one.body["lifecycleState"] for one in as_of([old, new], when)}

    assert listed(9.9) == {}
    assert listed(12.0) == {"instance-1": "RUNNING"}
    assert listed(20.5) == {"instance-1": "TERMINATING"}
    assert listed(29.9) == {"instance-1": "TERMINATED"}
    assert listed(30.0) == {"instance-1": "TERMINATED", "instance-2": "PROVISIONING"}


def test_a_stale_listing(api: Api, subnet: Any) -> None:
    old = api.launch(subnet, "old")
    api.compute.terminate_instance(old.id)
    api.wait(api.compute.get_instance, old.id, "TERMINATED")
    api.launch(subnet, "new")
    assert names(api, display_name="new") == {"new"}
    api.faults({"operation": "ListInstances", "stale_seconds": 3600})
    assert names(api) == set(), "an hour ago there was nothing"
    # A listing that is a moment late has everything, in the end.
    api.faults({"operation": "ListInstances", "stale_seconds": 0.1})
    wait_for("the listing has both", lambda: names(api, lifecycle_state="RUNNING") >= {"new"})
    assert names(api, lifecycle_state="TERMINATED", display_name="old") == {"old"}


def test_hosts_run_out_and_come_back(api: Api, subnet: Any) -> None:
    def report(domain: str) -> tuple[str, int]:
        shape = models.CreateCapacityReportShapeAvailabilityDetails(instance_shape="BM.GPU.H100.8")
        details = models.CreateComputeCapacityReportDetails(
            compartment_id=api.tenancy, availability_domain=domain, shape_availabilities=[shape]
        )
        found = api.compute.create_compute_capacity_report(details).data.shape_availabilities[0]
        return found.availability_status, found.available_count

    gpu: dict[str, Any] = {"shape": "BM.GPU.H100.8", "shape_config": None}
    second = api.domain.replace("AD-1", "AD-2")
    api.faults({"shape": "BM.GPU.H100.8", "availability_domain": api.domain, "hosts": 2})
    assert report(api.domain) == ("AVAILABLE", 2)
    one, _ = api.launch(subnet, "h1", **gpu), api.launch(subnet, "h2", **gpu)
    with refused(500, "InternalError") as said:
        launch(api, subnet, "h3", **gpu)
    assert said == [OUT]
    assert report(api.domain) == ("OUT_OF_HOST_CAPACITY", 0)
    assert report(second)[0] == "AVAILABLE"
    launch(api, subnet, "h4", availability_domain=second, **gpu)
    launch(api, subnet, "small")
    api.compute.terminate_instance(one.id)
    api.wait(api.compute.get_instance, one.id, "TERMINATED")
    launch(api, subnet, "h3", **gpu)
    api.faults({"shape": "BM.GPU.H100.8", "hosts": 3})
    with refused(500, "InternalError"):
        launch(api, subnet, "h5", availability_domain=second, **gpu)


def test_a_slow_answer(api: Api) -> None:
    api.faults({"operation": "ListRegions", "delay": 3600})
    impatient = api.client("identity.IdentityClient", timeout=0.5)
    with pytest.raises(oci.exceptions.RequestException, match="Read timed out"):
        impatient.list_regions()
    assert api.compute.list_shapes(api.tenancy, shape=SHAPE).data, "the others answer at once"
    api.faults({"operation": "ListRegions", "delay": 0.1})
    assert api.identity.list_regions().data
