"""What is compared, from doubles of the cloud, of Terraform and of hosts. tests/e2e/test_drift.py has the real ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.drift.model import Area, DriftReport
from gpucluster.errors import CloudError
from gpucluster.events import Event
from gpucluster.handover.adoption import Findings
from gpucluster.handover.configuration_diff import NOT_KNOWN, ConfigurationDifference
from gpucluster.lifecycle import drift
from gpucluster.lifecycle.drift import DriftDetection
from gpucluster.lifecycle.field_effects import FieldEffect
from gpucluster.lifecycle.hosts import Deployment
from gpucluster.lifecycle.plan import ClusterPlan
from gpucluster.lifecycle.resize import PoolScaling, Scaling
from gpucluster.paths import ClusterPaths
from gpucluster.spec import load
from gpucluster.spec.updates import UpdatePolicy
from gpucluster.terraform.plan import ResourceChange, ResourceDrift
from gpucluster.verdict.measurements import UNREACHABLE
from gpucluster.workspace.run import Run
from tests.lifecycle.test_verification import CASE, _members

LIST = "module.network.oci_core_security_list.private"
NOTHING = ClusterPlan((), False, Scaling({}), ())


class Site:
    """The demo's cluster without drift. The doubles prove nothing of what Terraform, OCI and hosts answer."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        shutil.copytree(CASE, folder, dirs_exist_ok=True)
        self.spec = load(folder / "cluster.yml")
        outputs = handover.Outputs.parse(json.loads((folder / "outputs.json").read_text()))
        self.deployment = Deployment.of(self.spec, outputs, _members)
        self.paths = ClusterPaths.of(self.spec.file)
        self.paths.create()
        self.events: list[Event] = []
        self.drift: tuple[ResourceDrift, ...] = ()
        self.tagged: tuple[TaggedResource, ...] = ()
        self.survey: Any = Findings({})
        self.plan = NOTHING
        self.requests: Mapping[str, Mapping[str, Any]] = {}
        self.answers: dict[str, dict[str, Any]] = {
            host.name: {"host": {"findings": []}} for host in self.deployment.hosts
        }
        self.answers[self.deployment.controller.name]["cluster"] = {"slurm": {"findings": []}}
        patch.setattr(drift, "ask_hosts", self._ask)

    def _ask(self, _client: Any, sent: tuple[str, str], requests: Any, _seconds: float) -> Any:
        assert sent[0].startswith("sudo -n")
        self.requests = requests
        return self.answers

    def _surveyed(self, _terraform: Any) -> Any:
        if isinstance(self.survey, Exception):
            raise self.survey
        return SimpleNamespace(findings=self.survey)

    def look(self) -> DriftReport:
        terraform = SimpleNamespace(drift=lambda: self.drift)
        detection = DriftDetection(
            spec=self.spec,
            provisioning=SimpleNamespace(prepare=lambda *_, **__: terraform, survey=self._surveyed),  # type: ignore[arg-type]
            planning=SimpleNamespace(of=lambda *_: self.plan),  # type: ignore[arg-type]
            hosts=SimpleNamespace(look=lambda: self.deployment),  # type: ignore[arg-type]
            tagged=lambda: self.tagged,
            ssh_client=lambda: None,  # type: ignore[arg-type, return-value]
            bastion=lambda: SimpleNamespace(renew=lambda: None),  # type: ignore[arg-type, return-value]
            on_event=self.events.append,
        )
        return detection.look(Run("drift", self.paths, self.events.append))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_each_host_is_asked_once_and_the_controller_of_the_cluster(site: Site) -> None:
    report = site.look()
    controller = site.deployment.controller.name
    assert report.clean
    assert set(report.hosts) == {host.name for host in site.deployment.hosts} == set(site.requests)
    assert {name for name, request in site.requests.items() if request["cluster"]} == {controller}
    assert [event.status for event in site.events if event.kind == "task"] == ["ok"] * len(site.requests)


def test_a_host_that_does_not_answer_is_named(site: Site) -> None:
    site.answers["compute-1"] = {UNREACHABLE: "timed out"}
    report = site.look()
    assert (report.findings, report.complete) == ((), False)
    assert [each.where for each in report.unseen] == ["compute-1"]
    assert "compute-1" not in report.hosts


def test_a_permanent_host_that_does_not_run_is_named(site: Site) -> None:
    site.deployment = replace(site.deployment, hosts=site.deployment.hosts[:-1])
    gone = next(name for name in ("compute-1", "compute-2") if name not in {h.name for h in site.deployment.hosts})
    del site.answers[gone]
    report = site.look()
    assert [(each.where, each.reason) for each in report.unseen] == [
        (gone, "the cloud has no host of this name that runs")
    ]


def test_no_answer_of_any_host_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise CloudError("there is no ssh")

    monkeypatch.setattr(drift, "ask_hosts", fails)
    report = site.look()
    assert not report.complete
    assert "no ssh" in report.unseen[0].reason


def test_a_resource_is_named_once_with_its_values(site: Site) -> None:
    values: dict[str, tuple[Any, Any]] = {"ingress_security_rules": ([], [{"source": "0.0.0.0/0"}])}
    site.drift = (ResourceDrift(LIST, gone=False, values=values),)
    site.plan = ClusterPlan(
        (ResourceChange(LIST, "update", changed=("ingress_security_rules",)),), False, Scaling({}), ()
    )
    (found,) = site.look().findings
    assert (found.area, found.where, found.seen) == (Area.CLOUD, LIST, '{"source": "0.0.0.0/0"}')


def test_a_survey_that_fails_hides_no_other_finding(site: Site) -> None:
    site.survey = CloudError("Terraform's state is older than the cluster", hint="Run: gpucluster state recover")
    site.drift = (ResourceDrift(LIST, gone=True),)
    report = site.look()
    assert [each.where for each in report.findings] == [LIST]
    assert "state recover" in report.unseen[0].reason


def test_what_cluster_yml_has_and_the_cluster_has_not(site: Site) -> None:
    pools = {"compute": PoolScaling(added=("compute-3",), removed=("compute-1",))}
    site.plan = ClusterPlan(
        (
            ResourceChange("module.x", "create"),
            ResourceChange("terraform_data.image", "update"),
            ResourceChange("module.adopted", "import", adopts="ocid1.x"),
        ),
        False,
        Scaling(pools, login=PoolScaling(added=("l-1",))),
        (
            ConfigurationDifference("slurm", "change", "max_minutes", 10, 20),
            ConfigurationDifference("users", "add", "carol"),
            ConfigurationDifference("users", "configure", "they are not known: the directory gives no answer"),
            ConfigurationDifference("hosts", "configure", NOT_KNOWN),
        ),
        fields=(FieldEffect("pools.compute.count", 2, 3, UpdatePolicy.LIVE, UpdatePolicy.LIVE),),
    )
    report = site.look()
    assert [(each.area, each.where, each.name, each.expected, each.seen) for each in report.findings] == [
        (Area.FILE, "cluster.yml", "pools.compute.count", "3", "2"),
        (Area.FILE, "compute-1", "compute", "no host", "a host"),
        (Area.FILE, "compute-3", "compute", "a host", "no host"),
        (Area.FILE, "l-1", "", "a host", "no host"),
        (Area.FILE, "module.x", "", "as cluster.yml describes it", "is missing"),
        (Area.FILE, "slurm", "max_minutes", "20", "10"),
        (Area.DIRECTORY, "users", "carol", "is there", "missing"),
    ]
    assert [(each.area, each.reason) for each in report.unseen] == [
        (Area.DIRECTORY, "they are not known: the directory gives no answer"),
        (Area.FILE, NOT_KNOWN),
    ]
