"""What is checked before Terraform runs, and what a plan must not lose. The cloud and Terraform are doubles."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.cloud.service_move import ServiceMove
from gpucluster.errors import DataGuardError, InputError, ToolError
from gpucluster.events import ignore
from gpucluster.handover.adoption import CONTROLLER, Findings
from gpucluster.lifecycle import provision
from gpucluster.lifecycle.adoption import AdoptionSurvey
from gpucluster.lifecycle.host_reports import HostFault
from gpucluster.lifecycle.provision import Consent, Provisioning
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState
from tests.doubles.terraform import TerraformDouble
from tests.lifecycle.test_automatic_failover import TEXT as WITH_AUTOMATIC_FAILOVER
from tests.lifecycle.test_failover import ONE, TWO, Model
from tests.spec.spec_texts import LOCAL


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path)
    made.create()
    return made


def _provisioning(paths: ClusterPaths, cloud: Any, text: str = LOCAL) -> Provisioning:
    unused: Any = None
    spec = loads(text, "cluster.yml")
    empty: Any = SimpleNamespace(state_is_damaged=False, restore_state=lambda: True, addresses=tuple)
    nothing = Findings({})
    adoption: Any = SimpleNamespace(
        survey=lambda _terraform: AdoptionSurvey(nothing, {}),
        nodes_to_remove=lambda _survey: [],
        remove=lambda _survey: 0,
        adopting=lambda *_: contextlib.nullcontext(),
    )
    resizing: Any = SimpleNamespace(drain=lambda *_: None, new_disks=lambda *_: {"ocid1.c"})
    return Provisioning(
        spec=spec,
        cloud=cloud,
        saved=SavedState(paths),
        terraform=lambda env=None: empty,
        downloads=unused,
        baking=unused,
        elastic_teardown=unused,
        reporting=unused,
        resizing=resizing,
        tagged=unused,
        adoption=adoption,
        login_keys=unused,
        ownership=SimpleNamespace(is_visible=True, require_name=lambda: None, require=lambda **_: None),  # type: ignore[arg-type]
        on_event=ignore,
    )


@pytest.mark.parametrize("module", ["module.home[0]", 'module.share["data"]'])
def test_a_plan_that_loses_files_is_refused_and_reports_what_to_do(paths: ClusterPaths, module: str) -> None:
    change = ResourceChange(f"{module}.oci_file_storage_file_system.this[0]", "delete")
    lost = TerraformPlan((change,), paths.root / "plan")
    terraform: Any = SimpleNamespace(plan=lambda **_options: lost)
    with pytest.raises(DataGuardError, match="would delete file systems with users' files") as caught:
        _provisioning(paths, None).apply(terraform, Run("apply", paths, ignore), Consent())
    assert "Undo the change in cluster.yml" in caught.value.hint
    assert "pass --delete-data" in caught.value.hint


def test_a_plan_that_loses_the_controllers_state_is_refused(paths: ClusterPaths) -> None:
    change = ResourceChange("module.state_volume[0].oci_core_volume.this", "delete")
    terraform: Any = SimpleNamespace(plan=lambda **_: TerraformPlan((change,), paths.root / "plan"), outputs=dict)
    with pytest.raises(DataGuardError, match="volume with the controller's state") as caught:
        _provisioning(paths, None).apply(terraform, Run("apply", paths, ignore), Consent())
    assert "docs/how-to/controller.md" in caught.value.hint


@pytest.mark.parametrize(("holder", "refused"), [(TWO, True), (ONE, False), ("", False)])
def test_a_plan_of_a_state_that_does_not_know_of_a_failover_is_refused(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, holder: str, refused: bool
) -> None:
    """It would move the volume back from the host that has gone on by itself."""
    monkeypatch.setattr(ServiceMove, "holder", lambda _self, volume: {"volume": holder}[volume])
    monkeypatch.setattr(ServiceMove, "__init__", lambda *_, **__: None)
    cloud: Any = SimpleNamespace(access=lambda: None)
    terraform: Any = SimpleNamespace(outputs=lambda: Model().values, set_variables=lambda _values: None)
    provisioning = _provisioning(paths, cloud, WITH_AUTOMATIC_FAILOVER)
    if refused:
        with pytest.raises(ToolError, match="demo-standby has gone on by itself") as caught:
            provisioning.survey(terraform)
        assert "gpucluster controller failover" in caught.value.hint
    else:
        provisioning.survey(terraform)


def test_other_host_keys_take_the_place_of_those_before(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    terraform: Any = TerraformDouble({"id": "ab12", "host_keys": {"ocid1.a": "ssh-ed25519 O", "ocid1.b": "ssh-rsa B"}})
    set_: list[Any] = []
    monkeypatch.setattr(terraform, "set_variables", set_.append, raising=False)
    provisioning = _provisioning(paths, None)
    monkeypatch.setattr(provisioning, "_variables", lambda _terraform: {"recorded": "now"})
    provisioning.note_host_keys(terraform, {"ocid1.a": "ssh-ed25519 N"})
    assert terraform.identity["host_keys"] == {"ocid1.a": "ssh-ed25519 N", "ocid1.b": "ssh-rsa B"}
    provisioning.note_authority(terraform, "ssh", "ssh-ed25519 CA\n")
    assert terraform.identity["certificates"]["ssh"] == "ssh-ed25519 CA\n"
    assert set_ == [{"recorded": "now"}] * 2


@pytest.mark.parametrize("known", [True, False], ids=["host is known", "host is not known"])
def test_a_bad_host_is_remembered_before_the_plan_and_reported_when_its_node_is_empty(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """A plan does not survive a change of the state, and a host is reported before its instance is terminated."""
    told: list[Any] = []
    terraform: Any = TerraformDouble({"id": "ab12", "physical_hosts": {"ocid1.one": "host-1"} if known else {}})

    def plan(**_options: Any) -> TerraformPlan:
        told.append(("plan", dict(terraform.identity.get("reported_hosts") or {})))
        return TerraformPlan((), paths.root / "plan")

    def drain(_terraform: Any, made: TerraformPlan, *, emptied: Any, **_options: Any) -> TerraformPlan:
        told.append("drained")
        emptied()
        told.append("detached")
        return made

    reporting: Any = SimpleNamespace(
        remember=lambda faults, instances, physical: {physical[ocid]: "{}" for ocid in instances.values() if physical},
        report=lambda faults, instances, physical: told.append(
            ("reported", [*faults], dict(instances), dict(physical))
        ),
    )
    provisioning = _provisioning(paths, None)
    monkeypatch.setattr(terraform, "plan", plan, raising=False)
    monkeypatch.setattr(terraform, "set_variables", lambda _variables: told.append("variables"), raising=False)
    monkeypatch.setattr(provisioning, "_variables", lambda _terraform: {})
    monkeypatch.setattr(provisioning, "_reporting", reporting)
    resizing: Any = SimpleNamespace(
        instances=lambda *_: {"compute-1": "ocid1.one"}, drain_and_detach=drain, new_disks=lambda *_: set()
    )
    monkeypatch.setattr(provisioning, "_resizing", resizing)
    monkeypatch.setattr(provisioning, "_elastic_teardown", SimpleNamespace(remove_obstacles=lambda _plan: None))
    monkeypatch.setattr(provisioning, "_without_keys_of_new_disks", lambda _terraform, made, _recreated: made)
    provisioning._change(terraform, Consent(recreate=("compute-1",), faults={"compute-1": HostFault("gpu_ecc: 3")}))
    physical = {"ocid1.one": "host-1"} if known else {}
    reported = ("reported", ["compute-1"], {"compute-1": "ocid1.one"}, physical)
    assert told == [
        *(["variables"] if known else []),
        ("plan", {"host-1": "{}"} if known else {}),
        "drained",
        reported,
        "detached",
    ]
    told.clear()
    provisioning._change(terraform, Consent(recreate=("compute-1",)))
    assert reported not in told, "a healthy node that is replaced by its name"


def test_who_replaces_the_controller_changes_no_other_host(paths: ClusterPaths) -> None:
    node = 'module.pool["cpu"].module.instance["cpu-1"].oci_core_instance.this'
    asked: list[Any] = []

    def plan(**options: Any) -> TerraformPlan:
        asked.append(options["recreate"])
        return TerraformPlan((ResourceChange(CONTROLLER, "replace"), ResourceChange(node, "create")), paths.root)

    terraform: Any = SimpleNamespace(plan=plan, outputs=dict)
    with pytest.raises(InputError, match="nothing was replaced") as caught:
        _provisioning(paths, None).apply(terraform, Run("apply", paths, ignore), Consent(replace_controller=True))
    assert node in caught.value.what
    assert CONTROLLER not in caught.value.what
    assert asked == [(CONTROLLER,)]


@pytest.mark.parametrize(
    ("action", "stops"), [("replace", True), ("delete", True), ("create", False), ("update", False)]
)
def test_a_controller_is_stopped_before_its_volume_goes_to_another(
    paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch, action: str, stops: bool
) -> None:
    stopped: list[str] = []
    power = SimpleNamespace(stop=lambda ocid, _name: stopped.append(ocid))
    monkeypatch.setattr(provision, "InstancePower", lambda *_: power)
    controller = SimpleNamespace(id="ocid1.old", name="demo-controller", private_ip="10.0.0.9")
    monkeypatch.setattr(handover.Outputs, "parse", lambda _values: SimpleNamespace(controller=controller))
    provisioning = _provisioning(paths, SimpleNamespace(access=lambda: None))
    section = provisioning._spec.controller.model_copy(update={"state_volume_gb": 50})
    plan = TerraformPlan((ResourceChange(CONTROLLER, action),), paths.root)
    terraform: Any = SimpleNamespace(outputs=lambda: {"cluster": {"name": "demo"}})
    provisioning._stop_controller(terraform, plan)
    assert stopped == []  # the state is on the boot disk: there is no volume that two could write to
    provisioning._spec = provisioning._spec.model_copy(update={"controller": section})
    provisioning._stop_controller(terraform, plan)
    assert stopped == (["ocid1.old"] if stops else [])


RECORDED = {"host_keys": {"ocid1.c": "k1", "ocid1.n": "k2"}, "secrets": {}}


def test_a_host_that_gets_another_disk_loses_its_host_key_in_the_state_with_the_same_apply(paths: ClusterPaths) -> None:
    terraform: Any = TerraformDouble(RECORDED, {"recorded": RECORDED})
    before = TerraformPlan((), Path("this plan"))
    provisioning: Any = _provisioning(paths, None)
    assert provisioning._without_keys_of_new_disks(terraform, before) == TerraformPlan((), Path("another plan"))
    assert terraform.variables["recorded"] == {"host_keys": {"ocid1.n": "k2"}, "secrets": {}}
    terraform.identity["host_keys"] = {"ocid1.n": "k2"}
    assert provisioning._without_keys_of_new_disks(terraform, before) == before


def test_what_the_hosts_report_is_written_once_and_another_secret_is_reported(paths: ClusterPaths) -> None:
    terraform: Any = TerraformDouble(RECORDED, {"recorded": RECORDED})
    said: list[str] = []
    provisioning = _provisioning(paths, None)
    provisioning._on_event = lambda event: said.append(event.message)
    keys = {"ocid1.c": "k1", "ocid1.n": "k2"}
    provisioning.record(terraform, host_keys=keys)
    assert terraform.written == []
    provisioning.record(terraform, certificates={"directory": "PEM"}, secrets={"munge": "1"})
    provisioning.record(terraform, certificates={"directory": "PEM"}, secrets={"munge": "1"})
    assert len(terraform.written) == 1
    assert said == []
    provisioning.record(terraform, certificates={"directory": "PEM"}, secrets={"munge": "2"})
    assert said == ["the controller has other secrets than at the last apply: munge"]
    assert terraform.identity["host_keys"] == keys
