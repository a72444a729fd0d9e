"""What `status` reports, by what its sources answer. The sources are doubles: functions that answer, fail or hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpucluster.cli.summaries import status_text
from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.errors import CloudError, ToolError
from gpucluster.operations.kubernetes import ControlPlaneCertificate
from gpucluster.operations.status import StatusFindings, StatusSources, status
from gpucluster.rollout.record import begin, with_request
from gpucluster.spec import loads
from gpucluster.terraform.addresses import human_name
from gpucluster.terraform.state import StateContents, StateEntry
from gpucluster.workspace.run_log import Runs
from gpucluster.workspace.saved_state import SavedHost
from tests.doubles.sources import hanging
from tests.spec.spec_texts import LOCAL, MINIMAL
from tests.waiting import PATIENCE_S

NODE = {"node": "compute-1", "state": "idle", "partition": "compute"}
VCN = TaggedResource("vcn", "v", "demo", "AVAILABLE")
CONTROLLER = TaggedResource("instance", "c", "demo-controller", "RUNNING")
NETWORK = TaggedResource("cluster_network", "cn", "demo-compute", "RUNNING", {"pool": "compute"})
MEMBER = TaggedResource("instance", "m", "compute-1", "RUNNING", {"pool": "compute"}, launched_by_others=True)
BUILT = (VCN, CONTROLLER, NETWORK, MEMBER)
OUTPUTS = {"cluster": {"controller": {"id": "c", "name": "demo-controller"}, "pools": {"compute": {"instances": []}}}}
STATE = StateContents(OUTPUTS, tuple(StateEntry(f"oci.{ocid}", ocid) for ocid in ("v", "c", "cn")))
EMPTY = StateContents({})
HOSTS = (SavedHost("demo-controller", "10.0.0.2", "c"), SavedHost("compute-1", "10.0.1.2", "m"))
COMPLETE = {"complete": True, "time": "2026-01-01T12:00:00+00:00", "hosts": {"demo-controller": "c", "compute-1": "m"}}
NO_RUNS = Runs(None, None, None)
APPLY = {
    "run": "1",
    "command": "apply",
    "status": "success",
    "started": "2026-01-01T11:00:00+00:00",
    "phase": "ansible",
}


WINDOW = {
    "host": "compute-1", "start": 1.8e9, "end": 1.8e9 + 3600, "action": "STOP", "state": "SCHEDULED", "jobs": ["7"],
    "reservation": "gpucluster-maintenance-1", "problem": "", "early": "",
}  # fmt: skip
MAINTENANCE = {"events": [WINDOW, {**WINDOW, "state": "CANCELED"}], "remarks": ["a word"], "problem": ""}


@dataclass
class SchedulerSource:
    """Stands for `ControllerConnection`: Slurm answers, the autoscaler does not."""

    error: str = ""
    asked: list[str] = field(default_factory=list)

    def slurm_nodes(self, *, timeout: float) -> list[dict[str, str]]:
        self.asked.append("slurm")
        if self.error:
            raise ToolError(self.error)
        return [NODE]

    def autoscaler_status(self, *, timeout: float) -> dict[str, Any]:
        raise ToolError("the autoscaler gives no answer", hint="See its log")

    def maintenance(self, *, timeout: float) -> dict[str, Any]:
        return MAINTENANCE


CERTIFICATES = (
    ControlPlaneCertificate("a.crt", "2026-12-23T00:00:00Z", 30, authority=False),
    ControlPlaneCertificate("ca.crt", "2036-11-20T00:00:00Z", 3649, authority=True),
)
KUBERNETES_NODE = {"node": "compute-1", "state": "Ready", "pool": "compute", "version": "v1.36.4"}


@dataclass
class RecordDouble:
    """Stands for `ConfigurationRecord`."""

    answer: Callable[[], Any] = lambda: COMPLETE

    def read(self, *, timeout: float) -> Any:
        return self.answer()


def _fails(text: str) -> Callable[[], Any]:
    def fail() -> Any:
        raise CloudError(text)

    return fail


def _sources(**changes: Any) -> StatusSources:
    built = StatusSources(
        resources=lambda: BUILT,
        contents=lambda: STATE,
        hosts=lambda: HOSTS,
        hosts_saved_at=lambda: 0.0,
        controller=SchedulerSource(),  # type: ignore[arg-type]
        kubernetes_nodes=lambda: [KUBERNETES_NODE],
        certificates=lambda: CERTIFICATES,
        record=RecordDouble(),  # type: ignore[arg-type]
        runs=NO_RUNS,
    )
    return replace(built, **changes)


def _status(sources: StatusSources) -> dict[str, Any]:
    return status(loads(LOCAL, "cluster.yml"), sources, PATIENCE_S).to_dict()


def _found(**changes: Any) -> StatusFindings:
    built = StatusFindings(BUILT, STATE, HOSTS, COMPLETE, controller_answers=True, runs=NO_RUNS)
    return replace(built, **changes)


def test_a_cluster_that_is_built() -> None:
    found = _status(_sources())
    assert (found["state"], found["pending"], found["slurm"]) == ("present", [], [NODE])
    assert found["resources"] == {"vcn": 1, "instance": 2, "cluster_network": 1}
    assert found["hosts"] == [
        {"name": "demo-controller", "address": "10.0.0.2", "instance": "RUNNING"},
        {"name": "compute-1", "address": "10.0.1.2", "instance": "RUNNING"},
    ]
    assert [name for name, source in found["sources"].items() if source["error"]] == ["autoscaler"]


def test_before_the_first_apply_the_controller_is_not_asked() -> None:
    controller = SchedulerSource()
    nothing = _sources(resources=tuple, contents=lambda: EMPTY, hosts=tuple, controller=controller)
    found = _status(nothing)
    assert (found["state"], found["hosts"], found["slurm"], found["autoscaler"]) == ("absent", [], [], None)
    assert controller.asked == []


def test_an_autoscaler_without_an_answer_does_not_hide_the_rest() -> None:
    found = _status(_sources())
    assert (found["state"], found["slurm"]) == ("present", [NODE])
    assert found["autoscaler"] == {"error": "the autoscaler gives no answer"}


def test_a_source_that_hangs_is_given_up_and_the_others_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging(monkeypatch) as hangs:
        found = _status(_sources(resources=hangs, record=RecordDouble(hangs)))
    assert found["sources"]["cloud"]["error"] == found["sources"]["configuration"]["error"] == "no answer in time"
    assert (found["slurm"], found["state"]) == ([NODE], "unknown")


def test_a_dead_controller_is_an_error_of_its_sources_and_not_of_status() -> None:
    dead = "the controller can't be reached: No route to host"
    found = _status(_sources(controller=SchedulerSource(dead), record=RecordDouble(_fails(dead))))
    assert found["state"] == "present"
    assert found["sources"]["slurm"]["error"] == found["sources"]["configuration"]["error"] == dead


def test_an_unexpected_error_shows_no_traceback() -> None:
    def broken() -> Any:
        raise KeyError("left")

    assert _status(_sources(contents=broken))["sources"]["state"]["error"] == "KeyError: 'left'"


# --- what exists -----


@pytest.mark.parametrize("resource", [VCN, CONTROLLER, NETWORK], ids=lambda resource: resource.kind)
def test_what_the_cloud_bills_is_never_absent(resource: TaggedResource) -> None:
    """Neither a state, nor a host, nor a run is known: as after Ctrl-C, in a new folder, on another machine."""
    found = _found(resources=(resource,), contents=EMPTY, hosts=(), record=None, controller_answers=False)
    assert found.state == "partial"
    (pending,) = found.pending
    assert f"{resource.kind.replace('_', ' ')} {resource.name}" in pending
    assert ("gpucluster state recover" in pending) is (resource.kind == "instance")


def test_certificates_of_the_control_plane_are_shown_and_those_that_end_soon_are_named() -> None:
    spec = loads(MINIMAL + "scheduler: kubernetes\n", "cluster.yml")
    found = status(spec, _sources(), 60.0).to_dict()
    assert found["certificates"]["first"]["file"] == "a.crt"
    assert found["certificates"]["ending"] == []
    text = status_text(found)
    assert "certificates of the control plane: the first, a.crt ends in 30 days (2026-12-23T00:00:00Z)" in text
    late = (*CERTIFICATES, ControlPlaneCertificate("b.crt", "2026-12-22T00:00:00Z", 29, authority=False))
    text = status_text(status(spec, _sources(certificates=lambda: late), 60.0).to_dict())
    assert "! b.crt ends in 29 days (2026-12-22T00:00:00Z)\n  Run: gpucluster kubernetes certificates --renew" in text
    assert "a.crt" not in text
    # kubeadm renews no CA.
    authority = (ControlPlaneCertificate("ca.crt", "2026-12-22T00:00:00Z", 29, authority=True),)
    assert "--renew" not in status_text(status(spec, _sources(certificates=lambda: authority), 60.0).to_dict())
    silent = status(spec, _sources(certificates=_fails("the controller has no answer")), 60.0).to_dict()
    assert silent["certificates"] is None
    assert "! the control plane's certificates: the controller has no answer" in status_text(silent)
    assert status(loads(MINIMAL, "cluster.yml"), _sources(), 60.0).certificates is None


def test_nodes_of_kubernetes_are_listed_and_slurm_is_not_asked() -> None:
    controller = SchedulerSource()
    spec = loads(MINIMAL + "scheduler: kubernetes\n", "cluster.yml")
    found = status(spec, _sources(controller=controller), 60.0).to_dict()
    assert (found["kubernetes"], found["slurm"], controller.asked) == ([KUBERNETES_NODE], [], [])
    assert "compute-1  Ready  compute  v1.36.4" in status_text(found)
    silent = status(spec, _sources(kubernetes_nodes=_fails("the API server gives no answer")), 60.0).to_dict()
    assert (silent["kubernetes"], silent["state"]) == ([], found["state"])
    assert "! Kubernetes: the API server gives no answer" in status_text(silent)


def test_a_lost_state_is_told_with_the_way_back() -> None:
    found = _status(_sources(contents=lambda: EMPTY))
    assert found["state"] == "partial"
    text = status_text(found)
    assert "Terraform's state is empty, and the cloud has vcn demo" in text
    assert "gpucluster state recover" in text
    assert "gpucluster apply" not in text


def test_a_cluster_that_was_destroyed_elsewhere_is_absent_whatever_this_machine_has_saved() -> None:
    found = _found(resources=(), contents=EMPTY, controller_answers=False, record=None, runs=Runs(None, APPLY, APPLY))
    assert (found.state, found.host_rows) == ("absent", [])


def test_without_the_cloud_only_an_answer_of_the_controller_tells_that_there_is_a_cluster() -> None:
    assert _found(resources=None).state == "present"
    assert _found(resources=None, controller_answers=False).state == "unknown"


def test_a_state_without_resources_in_the_cloud_is_not_absent() -> None:
    found = _found(resources=())
    assert found.state == "partial"
    assert "nothing of it is in the cloud" in found.pending[0]


def test_hosts_that_only_the_cloud_knows_are_shown_and_elastic_nodes_are_left_to_slurm() -> None:
    elastic = TaggedResource("instance", "e", "compute-e1", "RUNNING", {"pool": "compute", "node": "compute-e1"})
    found = _found(resources=(*BUILT, elastic), hosts=HOSTS[:1])
    assert [row["name"] for row in found.host_rows] == ["demo-controller", "compute-1"]
    assert found.host_rows[1] == {"name": "compute-1", "address": "", "instance": "RUNNING"}


# --- what is pending -----


@pytest.mark.parametrize(
    ("ended", "word"), [("killed", "killed"), ("interrupted", "interrupted"), ("failed", "not successful")]
)
def test_an_interrupted_run_is_pending_with_its_phase(ended: str, word: str) -> None:
    run = {**APPLY, "status": ended}
    found = _found(runs=Runs(None, run, run), record=None)
    assert found.state == "partial"
    assert found.pending == (f"the last apply, started {APPLY['started']}, was {word} in the phase ansible",)


def test_a_run_that_another_machine_has_completed_is_not_pending() -> None:
    run = {**APPLY, "status": "killed"}
    assert _found(runs=Runs(None, run, run)).pending == ()
    later = {**run, "started": "2026-01-01T13:00:00+00:00"}
    assert _found(runs=Runs(None, later, later)).state == "partial"


def test_a_run_that_is_working_makes_the_cluster_partial_and_leaves_nothing_pending() -> None:
    run = {**APPLY, "status": "running"}
    found = _found(runs=Runs({"pid": 1}, run, run))
    assert (found.state, found.pending) == ("partial", ())


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"complete": False, "machine": "M", "time": "T"}, "the hosts are not configured completely: M began it T"),
        ({**COMPLETE, "hosts": {"demo-controller": "c", "compute-1": "older"}}, "not configured yet: compute-1"),
    ],
    ids=["incomplete", "a host that was exchanged"],
)
def test_hosts_that_ansible_has_not_configured_are_pending(record: Mapping[str, Any], text: str) -> None:
    assert _found(record=record).pending == (text,)


def test_hosts_that_an_earlier_version_configured_have_no_record_and_nothing_is_pending() -> None:
    assert (_found(record=None).state, _found(record=None).pending) == ("present", ())


def test_any_resource_of_the_state_that_is_gone_is_named() -> None:
    file_system = TaggedResource("file_system", "fs", "demo-home", "ACTIVE")
    export = 'module.storage["a.b"].oci_file_storage_export.this[0]'
    addresses = {
        "module.network.oci_core_subnet.private": "s", "oci_identity_policy.compartment": "p",
        "module.bastion.oci_bastion_bastion.this": "b", "module.storage.oci_file_storage_file_system.this": "fs",
        export: "e",
    }  # fmt: skip
    entries = tuple(StateEntry(address, ocid) for address, ocid in addresses.items())
    state = StateContents(OUTPUTS, (*STATE.entries, *entries))
    said = "in Terraform's state, but not in the cloud: "
    # Policies and bastions may be what this operator is not allowed to list.
    assert _found(resources=BUILT, contents=state).pending == (f"{said}the subnet private",)
    # Who sees the file system may list exports.
    assert _found(resources=(*BUILT, file_system), contents=state).pending == (
        f"{said}{human_name(export)}, the subnet private",
    )
    assert "export" in human_name(export)


def test_an_instance_of_the_state_that_is_gone_is_pending() -> None:
    left: Sequence[TaggedResource] = [each for each in BUILT if each is not CONTROLLER]
    assert _found(resources=left).pending == ("in Terraform's state, but not in the cloud: demo-controller",)


def test_a_rollout_that_is_not_complete_is_pending() -> None:
    record = with_request(begin({"cpu-1": "old", "cpu-2": "old"}, "new"), {"cpu-1": "new"})
    outputs = {**STATE.outputs, "rollouts": {"cpu": record.to_json(), "gpu": "damaged"}}
    (text,) = _found(contents=replace(STATE, outputs=outputs)).pending
    assert text == (
        "the rollout of pool cpu is not complete: 0 of 2 nodes have the new image; in work: cpu-1. "
        "gpucluster rollout goes on"
    )


PAIR = {"id": "s", "name": "demo-standby", "private_ip": "10.0.0.3", "public_ip": None}


def _pair(record: dict[str, str]) -> StatusFindings:
    """A cluster with a standby, and what the state has of its service."""
    outputs = {**STATE.outputs, "cluster": {**STATE.outputs["cluster"], "name": "demo", "standby": PAIR}}
    other = TaggedResource("instance", "s", "demo-standby", "STOPPED", {"role": "standby"})
    entries = (*STATE.entries, StateEntry("oci.s", "s"))
    contents = replace(STATE, outputs={**outputs, "service": record}, entries=entries)
    return _found(resources=[*BUILT, other], contents=contents)


def test_the_status_names_the_host_in_service_and_what_the_standby_lacks() -> None:
    assert _found().service is None
    ready = _pair({"address": "10.0.0.9", "current": "yes"})
    assert ready.pending == ()
    assert ready.service == {
        "in_service": "demo-controller", "standby": "demo-standby", "current": True, "begun": False,
    }  # fmt: skip
    assert "the standby is behind" in _pair({"address": "10.0.0.9"}).pending[0]


def test_a_controller_that_is_stopped_is_named_with_the_host_that_may_have_gone_on() -> None:
    found = _pair({"host": "standby", "address": "10.0.0.9", "current": "yes"})
    assert found.pending == (
        "demo-standby is STOPPED: demo-controller may have gone on in its place. gpucluster apply follows it",
    )


def test_after_a_failover_hosts_have_the_names_of_what_they_are() -> None:
    found = _pair({"host": "standby", "address": "10.0.0.9", "current": "yes"})
    assert found.service is not None
    assert found.service["in_service"] == "demo-standby"
    states = {row["name"]: row["instance"] for row in found.host_rows}
    # The instance that the cloud calls demo-standby is stopped in this example, and is the controller.
    assert (states["demo-controller"], states["demo-standby"]) == ("STOPPED", "RUNNING")
    begun = _pair({"host": "standby", "begun": "yes", "current": "yes"})
    assert begun.pending == (
        "a failover to demo-standby has begun and not ended. gpucluster controller failover goes on",
    )


def test_members_of_a_cluster_network_and_elastic_nodes_are_not_terraforms() -> None:
    tags = {"pool": "cpu", "node": "cpu-e1"}
    elastic = TaggedResource("instance", "e", "cpu-e1", "RUNNING", tags, launched_by_others=True)
    forgotten = TaggedResource("instance", "f", "cpu-1", "RUNNING", {"pool": "cpu"})
    assert _found(resources=[*BUILT, elastic]).pending == ()
    left = "in the cloud, but not in Terraform's state: instance cpu-1"
    assert _found(resources=[*BUILT, elastic, forgotten]).pending[0] == left


def test_windows_of_maintenance_are_shown() -> None:
    found = _status(_sources())
    assert found["maintenance"] == MAINTENANCE
    lines = status_text(found).splitlines()
    (window,) = [line for line in lines if line.startswith("! maintenance of compute-1: 2027-01-15 08:00:00 UTC")]
    assert "it would end job 7" in window
    assert "! a word" in lines
    # Where nobody reads them, nobody is asked.
    still = loads(LOCAL.replace("    max_count: 4\n", "    count: 1\n"), "cluster.yml")
    content = status(still, _sources(), PATIENCE_S).to_dict()
    assert content["maintenance"] is None
    assert "maintenance" not in content["sources"]
