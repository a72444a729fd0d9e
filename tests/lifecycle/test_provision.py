"""What is checked before Terraform runs, and what a plan must not lose. The cloud and Terraform are doubles."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.errors import DataGuardError
from gpucluster.events import ignore
from gpucluster.handover.adoption import Findings
from gpucluster.lifecycle.adoption import AdoptionSurvey
from gpucluster.lifecycle.provision import Consent, Provisioning
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState
from tests.doubles.terraform import TerraformDouble
from tests.spec.spec_texts import LOCAL


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path)
    made.create()
    return made


def _provisioning(paths: ClusterPaths, cloud: Any) -> Provisioning:
    unused: Any = None
    spec = loads(LOCAL, "cluster.yml")
    empty: Any = SimpleNamespace(state_is_damaged=False, addresses=tuple)
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
        resizing=resizing,
        tagged=unused,
        adoption=adoption,
        login_keys=unused,
        ownership=SimpleNamespace(is_visible=True, require_name=lambda: None, require=lambda **_: None),  # type: ignore[arg-type]
        on_event=ignore,
    )


def test_a_plan_that_loses_the_homes_is_refused_and_reports_what_to_do(paths: ClusterPaths) -> None:
    lost = TerraformPlan(
        (ResourceChange("module.home[0].oci_file_storage_file_system.this[0]", "delete"),), paths.root / "plan"
    )
    terraform: Any = SimpleNamespace(plan=lambda **_options: lost)
    with pytest.raises(DataGuardError, match="would delete the file system with the users' homes") as caught:
        _provisioning(paths, None).apply(terraform, Run("apply", paths, ignore), Consent())
    assert "Undo the change in cluster.yml" in caught.value.hint
    assert "pass --delete-data" in caught.value.hint


RECORDED = {"host_keys": {"ocid1.c": "k1", "ocid1.n": "k2"}, "secrets": {}}


def test_a_host_that_gets_another_disk_loses_its_host_key_in_the_state_with_the_same_apply(paths: ClusterPaths) -> None:
    terraform: Any = TerraformDouble(RECORDED, {"recorded": RECORDED})
    before: Any = "this plan"
    provisioning: Any = _provisioning(paths, None)
    assert provisioning._without_keys_of_new_disks(terraform, before) == "another plan"
    assert terraform.variables["recorded"] == {"host_keys": {"ocid1.n": "k2"}, "secrets": {}}
    terraform.identity["host_keys"] = {"ocid1.n": "k2"}
    assert provisioning._without_keys_of_new_disks(terraform, before) == "this plan"


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
