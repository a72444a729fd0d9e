"""What `Cluster` and its phases do with elastic nodes. Cloud, Terraform and ssh are doubles here; the real ones are met
in tests/terraform/test_tf_elastic.py and in tests/e2e."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.cloud.elastic_instances import ElasticInstance
from gpucluster.cloud.providers import open_cloud
from gpucluster.errors import InputError, ProcessError
from gpucluster.events import Event, ignore
from gpucluster.lifecycle.downloads import Downloads
from gpucluster.lifecycle.elastic_teardown import ElasticTeardown
from gpucluster.operations.controller import ControllerConnection
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.spec import ClusterSpec, load
from gpucluster.terraform.plan import ResourceChange, TerraformPlan
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedState
from tests.spec.spec_texts import KEY, LOCAL, OCI
from tests.workspace.known_hosts import save_controller


class ElasticDouble:
    """Stands for `ElasticInstances`: a list of instances. Proves nothing about the cloud."""

    def __init__(self, *instances: ElasticInstance) -> None:
        self.present = list(instances)

    def instances(self) -> tuple[ElasticInstance, ...]:
        return tuple(self.present)

    def remove(self, wanted: Callable[[ElasticInstance], bool] = lambda _: True) -> int:
        gone = [one for one in self.present if wanted(one)]
        self.present = [one for one in self.present if one not in gone]
        return len(gone)


def _node(node: str, pool: str) -> ElasticInstance:
    return ElasticInstance(f"ocid1.instance..{node}", node, pool, "RUNNING")


@pytest.fixture
def events() -> list[Event]:
    """What was announced."""
    return []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a cluster with a fixed pool `compute` and an elastic one, `cpu`; a run has saved its hosts."""
    save_controller(tmp_path, "demo-controller")
    (tmp_path / "cluster.yml").write_text(LOCAL)
    return tmp_path / "cluster.yml"


@dataclass
class Site:
    """One cluster as its phases see it, with doubles where the cloud would be."""

    spec: ClusterSpec
    paths: ClusterPaths
    events: list[Event]
    elastic: ElasticDouble

    @property
    def teardown(self) -> ElasticTeardown:
        saved = SavedState(self.paths)
        controller = ControllerConnection(
            spec=self.spec,
            paths=self.paths,
            locate=lambda **_: saved.hosts(),
            bastion=lambda: pytest.fail("no bastion"),
            on_event=self.events.append,
        )
        return ElasticTeardown(self.spec, lambda: self.elastic, controller)  # type: ignore[arg-type, return-value]

    def run(self) -> Run:
        return Run("destroy", self.paths, ignore)


@pytest.fixture
def site(file: Path, events: list[Event]) -> Site:
    """Without any elastic node yet."""
    spec = load(file)
    made = Site(spec, ClusterPaths.of(spec.file), events, ElasticDouble())
    made.paths.create()
    return made


def _ssh(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Sequence[str]], Completed]) -> list[str]:
    said: list[str] = []

    def run(argv: Sequence[str], **_: Any) -> Completed:
        said.append(argv[-1])
        return answer(argv)

    monkeypatch.setattr(process, "run", run)
    return said


def test_jobs_on_nodes_that_go_are_told(site: Site, monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> None:
    double = site.elastic = ElasticDouble(_node("cpu-e1", "cpu"), _node("cpu-e2", "cpu"))
    said = _ssh(monkeypatch, lambda argv: Completed(tuple(argv), 0, "7\n9\n", ""))
    site.teardown.remove_all(site.run())
    assert double.present == []
    (command,) = said
    # A plan must not report that such a controller is configured.
    assert command.startswith("sudo rm -f /var/lib/gpucluster/configuration.json; sudo systemctl stop ")
    assert " stop gpucluster-autoscaler.service gpucluster-join.service && " in command
    assert "--nodelist=cpu-e1,cpu-e2" in command
    assert [event.message for event in events] == [
        "jobs run on nodes that are removed now; their owners were notified: 7, 9"
    ]


def _times_out(_argv: Sequence[str]) -> Completed:
    raise ProcessError("ssh did not end within 60 s")


@pytest.mark.parametrize(
    ("answer", "warnings"),
    [
        (_times_out, ["the autoscaler could not be stopped on the controller: ssh did not end within 60 s"]),
        (
            lambda argv: Completed(tuple(argv), 255, "", "ssh: No route to host\n"),
            ["the autoscaler could not be stopped on the controller: ssh: No route to host"],
        ),
        (lambda argv: Completed(tuple(argv), 5, "", "Unit gpucluster-join.service not loaded.\n"), []),
    ],
)
def test_a_dead_controller_does_not_hinder(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    events: list[Event],
    answer: Callable[[Sequence[str]], Completed],
    warnings: list[str],
) -> None:
    double = site.elastic = ElasticDouble(_node("cpu-e1", "cpu"))
    _ssh(monkeypatch, answer)
    site.teardown.remove_all(site.run())
    assert double.present == []
    assert [event.message for event in events] == warnings


def _lost(pool: str, kind: str) -> TerraformPlan:
    return TerraformPlan((ResourceChange(f'module.pool["{pool}"].{kind}.this[0]', "replace"),), Path("none"))


@pytest.mark.parametrize(
    ("plan", "left"),
    [
        (TerraformPlan((), Path("none")), ["cpu-e1"]),
        (_lost("cpu", "oci_core_instance_configuration"), ["cpu-e1"]),
        (_lost("cpu", "oci_core_compute_cluster"), []),
        (_lost("compute", "oci_core_compute_cluster"), ["cpu-e1"]),
        (TerraformPlan((ResourceChange("module.network.oci_core_subnet.private", "replace"),), Path("none")), []),
    ],
)
def test_only_elastic_nodes_in_the_way_are_withdrawn(
    site: Site, monkeypatch: pytest.MonkeyPatch, plan: TerraformPlan, left: list[str]
) -> None:
    # `compute` is not elastic any more, and `gone` is not a pool of the file.
    double = site.elastic = ElasticDouble(
        _node("compute-e1", "compute"), _node("cpu-e1", "cpu"), _node("gone-e1", "gone")
    )
    _ssh(monkeypatch, lambda argv: Completed(tuple(argv), 0, "", ""))
    site.teardown.remove_obstacles(plan)
    assert [one.node for one in double.present] == left


def test_with_nothing_in_the_way_no_node_is_disturbed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.elastic = ElasticDouble(_node("cpu-e1", "cpu"))
    _ssh(monkeypatch, lambda _argv: pytest.fail("the autoscaler was stopped"))
    site.teardown.remove_obstacles(TerraformPlan((), Path("none")))


def test_a_controller_whose_python_is_unknown_is_refused_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = "{ocid: ocid1.image.oc1..x, login_user: debian}"
    known = '{operating_system: Canonical Ubuntu, version: "24.04"}'
    (tmp_path / "cluster.yml").write_text(
        OCI.replace(f"controller:\n  image: {known}", f"controller:\n  image: {image}")
    )
    (tmp_path / "operator.pub").write_text(KEY + "\n")
    profile = tmp_path / "config"
    profile.write_text("[DEFAULT]\ntenancy=t\nuser=u\nfingerprint=f\nkey_file=k\nregion=us-ashburn-1\n")
    monkeypatch.setenv("OCI_CONFIG_FILE", str(profile))
    spec = load(tmp_path / "cluster.yml")
    with pytest.raises(InputError) as caught:
        Downloads(spec, open_cloud(spec, ClusterPaths.of(spec.file), ignore), "0", ignore).wheels()
    (found,) = caught.value.findings
    assert (found.line, found.path) == (15, "controller.image")
    assert 'Add `controller_python: "3.12"` under `software:`' in found.hint
