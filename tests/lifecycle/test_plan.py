"""A plan tells everything that apply would do, and "no changes" only if that is nothing. Terraform, the controller and
the directory are doubles; the real ones are met in tests/e2e."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpucluster import handover
from gpucluster.cli.plan_report import plan_text
from gpucluster.errors import InputError, ToolError
from gpucluster.events import Event, ignore
from gpucluster.handover.configuration_diff import NOT_KNOWN
from gpucluster.lifecycle import plan as plans
from gpucluster.lifecycle.plan import ClusterPlan, Planning, refuse_what_stays
from gpucluster.lifecycle.resize import PoolScaling, Replacement, Scaling
from gpucluster.operations.configuration_record import ConfigurationRecord
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.drain import SlurmJob
from gpucluster.operations.users import UserPreview
from gpucluster.paths import ClusterPaths
from gpucluster.prices import PriceList, shipped
from gpucluster.spec import ClusterSpec, loads, updates
from gpucluster.terraform.plan import ResourceChange
from gpucluster.terraform.plan import TerraformPlan as TerraformPlan
from gpucluster.terraform.state import StateContents
from gpucluster.workspace.run import Run
from gpucluster.workspace.run_history import PastRun
from tests.spec.spec_texts import LOCAL, MINIMAL

OUTPUTS = json.loads((Path(__file__).parents[1] / "golden" / "local_demo" / "outputs.json").read_text())
STAYING = {"demo-controller": "ocid1.c", "compute-1": "ocid1.a"}
SETTINGS = {"format": 1, "gpucluster": "0.1", "content": "abc", "settings": {"timezone": "UTC"}, "hosts": STAYING}
NOBODY = UserPreview((), (), ())
ADOPTED = ResourceChange("module.network.oci_core_vcn.this[0]", "import", adopts="ocid1.vcn.x")
SELECTED = ResourceChange('terraform_data.image["controller"]', "update")
SURPLUS = ResourceChange("cluster network demo-gpu (ocid1.clusternetwork.x)", "delete", "duplicate")
CONTROLLER = ResourceChange("module.controller.oci_core_instance.this", "update", values={"shape_config.ocpus": (4, 8)})
HOME = ResourceChange(
    "module.home[0].oci_file_storage_file_system.this", "replace", "cannot_update", ("availability_domain",)
)


@dataclass
class Double:
    """Stands for everything that a plan asks: `Provisioning`, `Configuration`, the record and the directory."""

    spec: ClusterSpec
    changes: tuple[ResourceChange, ...] = ()
    changes_outputs: bool = False
    hosts: Scaling = field(default_factory=lambda: Scaling({}, staying=STAYING))
    record: Mapping[str, Any] | Exception | None = field(default_factory=lambda: {**SETTINGS, "complete": True})
    users: UserPreview | Exception = NOBODY
    outputs: Mapping[str, Any] = field(default_factory=lambda: OUTPUTS)
    missing_keys: tuple[str, ...] = ()
    running: tuple[SlurmJob, ...] | Exception = ()
    asked_for_jobs: int = 0
    past_runs: tuple[PastRun, ...] = ()

    variables: Mapping[str, Any] = field(default_factory=dict)

    def contents(self) -> StateContents:
        return StateContents(self.outputs, version="lineage 7")

    def all_jobs(self, *, timeout: float) -> tuple[SlurmJob, ...]:
        assert timeout <= 10
        self.asked_for_jobs += 1
        if isinstance(self.running, Exception):
            raise self.running
        return self.running

    def prepare(self, _run: Run, *, preflight: bool, only_look: bool) -> Double:
        assert preflight
        assert only_look
        return self

    def plan(self, _terraform: Double) -> tuple[TerraformPlan, Scaling]:
        return TerraformPlan(self.changes, Path("/nowhere"), changes_outputs=self.changes_outputs), self.hosts

    def settings(self, _outputs: handover.Outputs, hosts: Mapping[str, str]) -> dict[str, Any]:
        return {**SETTINGS, "hosts": dict(hosts)}

    def people(self, _recorded: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"name": "alice"}]

    def new_key_pairs(self) -> tuple[str, ...]:
        return self.missing_keys

    def read(self) -> Mapping[str, Any] | None:
        if isinstance(self.record, Exception):
            raise self.record
        return self.record

    def preview(self, people: Sequence[Mapping[str, Any]]) -> UserPreview:
        assert people == self.people({})
        if isinstance(self.users, Exception):
            raise self.users
        return self.users


def _plan(
    tmp_path: Path, events: list[Event] | None = None, *, text: str = LOCAL, asked: int | None = None, **answers: Any
) -> ClusterPlan:
    spec = loads(text, "cluster.yml")
    double: Any = Double(spec, **answers)
    paths = ClusterPaths(tmp_path)
    paths.create()
    on_event = ignore if events is None else events.append
    planning = Planning(
        spec=spec, provisioning=double, configuration=double, record=double, directory=double, draining=double,
        past_runs=lambda: double.past_runs, prices=lambda: PriceList.parse(shipped()), version="0.1",
        outputs=lambda: double.outputs, on_event=on_event,
    )  # fmt: skip
    plan = planning.plan(Run("plan", paths, ignore), preflight=True)
    assert asked in (None, double.asked_for_jobs)
    return plan


def test_a_cluster_that_matches_the_file_has_no_changes(tmp_path: Path) -> None:
    plan = _plan(tmp_path, asked=0)
    assert plan.empty
    assert plan_text(plan) == "no changes"
    assert plan.to_dict()["changes"] == []


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"changes": (CONTROLLER,)}, "shape_config.ocpus: 4 -> 8"),
        ({"changes": (ADOPTED,)}, "= the VCN: import"),
        ({"changes": (ADOPTED,)}, "adopts ocid1.vcn.x, which exists and is in no state"),
        ({"changes": (SURPLUS,)}, "- cluster network demo-gpu (ocid1.clusternetwork.x): delete  (duplicate)"),
        ({"changes_outputs": True}, "notes in Terraform's state"),
        ({"changes": (SELECTED,)}, "notes in Terraform's state, no resources"),
        ({"changes": (SELECTED, ADOPTED)}, "1 change of resources"),
        ({"hosts": Scaling({"compute": PoolScaling(("compute-3",), ("compute-1",))}, staying={})}, "compute-3 to add"),
        ({"hosts": Scaling({}, "rebooted", staying=STAYING)}, "the controller: rebooted"),
        ({"hosts": Scaling({}, staying={**STAYING, "compute-1": "ocid1.other"})}, "hosts: configure compute-1"),
        ({"record": None}, NOT_KNOWN),
        ({"record": {**SETTINGS, "complete": False}}, NOT_KNOWN),
        ({"record": {**SETTINGS, "complete": True, "settings": {}}}, "software: timezone = UTC"),
        ({"record": ToolError("the controller can't be reached: gone")}, "the controller can't be reached: gone"),
        ({"outputs": {}}, "all of them are configured once they exist"),
        ({"users": UserPreview(("vision",), ("bob",), ("alice",))}, "users: add bob"),
        ({"users": InputError("alice has uid 1")}, "apply would be refused: alice has uid 1"),
        ({"users": ToolError("slapd is down")}, "they are not known: slapd is down"),
        ({"missing_keys": ("alice",)}, "generate a key pair for alice"),
    ],
)  # fmt: skip
def test_no_changes_is_only_reported_when_apply_would_change_nothing(
    tmp_path: Path, answers: dict[str, Any], says: str
) -> None:
    plan = _plan(tmp_path, **answers)
    assert not plan.empty
    assert says in plan_text(plan)


def test_a_node_that_is_removed_is_named_once(tmp_path: Path) -> None:
    scaling = Scaling({"compute": PoolScaling(removed=("compute-1",))}, staying={"demo-controller": "ocid1.c"})
    plan = _plan(tmp_path, hosts=scaling)
    assert plan.configuration == ()
    end = "resources stay as they are. Next: gpucluster apply"
    text = plan_text(plan)
    assert text.startswith("nodes\n  pool compute: compute-1 to remove\n\n")
    assert text.count("compute-1") == 1
    assert "time: not known (no comparable runs of this cluster on this machine)" in text
    assert text.endswith(f"\n\n{end}")


def test_a_plan_ends_with_a_sum_and_the_next_command(tmp_path: Path) -> None:
    made = ResourceChange("module.network.oci_core_vcn.this[0]", "create")
    plan = _plan(tmp_path, changes=(HOME, made, replace(made, address="module.network.oci_core_subnet.private[0]")))
    assert plan_text(plan, "gpucluster -f a.yml apply").splitlines()[-1] == (
        f"2 to create, 1 to {HOME.action}. Next: gpucluster -f a.yml apply"
    )


def test_what_apply_would_refuse_is_a_warning_with_the_option(tmp_path: Path) -> None:
    events: list[Event] = []
    lost = Scaling({}, staying=STAYING, replacements=(Replacement("node compute-1", ("compute-1",), "another shape"),))
    plan = _plan(tmp_path, events, hosts=lost, changes=(HOME,))
    assert [event.message for event in events if event.status == "warning"] == list(plan.warnings)
    assert "--replace-nodes: node compute-1: another shape" in plan.warnings[0]
    assert "--delete-data" in plan.warnings[1]


def test_a_plan_shows_values_and_what_forces_a_replacement(tmp_path: Path) -> None:
    values = {"availability_domain": ("AD-1", "AD-2"), "long": ("x" * 100, ["y"])}
    forced = ResourceChange(HOME.address, "replace", "cannot_update", ("availability_domain",), values=values)
    created = ResourceChange("module.network.oci_core_vcn.this", "create", values={"cidr": (None, "10.0.0.0/16")})
    lines = plan_text(_plan(tmp_path, changes=(forced, created))).splitlines()
    assert lines[0] == "2 changes of resources"
    assert lines[1].startswith("  ± the file system: replace")
    assert "      availability_domain: AD-1 -> AD-2  # forces the replacement" in lines
    assert f'      long: "{"x" * 100}" -> ["y"]' in lines
    made = lines.index("  + the VCN: create")
    assert lines[made : made + 3] == ["  + the VCN: create", "      module.network.oci_core_vcn.this", ""]


@pytest.mark.parametrize(("action", "known", "words"), [
    ("create", True, "gpucluster restore FILE"), ("create", False, ""), ("update", True, ""),
])  # fmt: skip
def test_a_plan_shows_what_is_lost_with_a_controller(tmp_path: Path, action: str, known: bool, words: str) -> None:
    change = ResourceChange("module.controller.oci_core_instance.this", action)
    answers: dict[str, Any] = {} if known else {"outputs": {}}
    plan = _plan(tmp_path, changes=(change,), **answers)
    assert [words in each for each in plan.warnings] == ([True] if words else [])


REMOVED = Scaling({"compute": PoolScaling(removed=("compute-2",))}, staying=STAYING)
JOBS = (SlurmJob("7", "alice", "1:00:00", "compute-[1-2]"), SlurmJob("8", "bob", "5:00", "compute-1"))


def test_the_jobs_on_nodes_that_leave_are_named_with_user_node_and_time(tmp_path: Path) -> None:
    plan = _plan(tmp_path, hosts=REMOVED, running=JOBS, asked=1)
    assert "  job 7 of alice on compute-2 (1:00:00 left)" in plan_text(plan).splitlines()
    assert "bob" not in plan_text(plan)
    data = plan.to_dict()
    assert json.loads(json.dumps(data["jobs"])) == [
        {"id": "7", "user": "alice", "left": "1:00:00", "left_s": 3600, "nodes": ["compute-2"]}
    ]
    assert data["jobs_error"] == ""


def test_many_jobs_are_shortened_to_those_that_run_longest(tmp_path: Path) -> None:
    many = tuple(SlurmJob(str(number), f"u{number}", f"{number}:00", "compute-2") for number in range(1, 12))
    lines = plan_text(_plan(tmp_path, hosts=REMOVED, running=many)).splitlines()
    assert "  job 11 of u11 on compute-2 (11:00 left)" in lines
    assert "  and 4 jobs of u1, u2, u3, u4" in lines


def test_a_plan_goes_on_without_an_answer_of_slurm_and_reports_it(tmp_path: Path) -> None:
    plan = _plan(tmp_path, hosts=REMOVED, running=ToolError("slurmctld is down"))
    assert plan.jobs is None
    assert "jobs on these nodes\n  not known: slurmctld is down" in plan_text(plan)
    assert (plan.to_dict()["jobs"], plan.to_dict()["jobs_error"]) == (None, "slurmctld is down")


@pytest.mark.parametrize(("scheduler", "jobs", "why"), [("none", (), ""), ("kubernetes", None, "pods are not listed")])
def test_another_scheduler_has_no_jobs_of_slurm(tmp_path: Path, scheduler: str, jobs: Any, why: str) -> None:
    plan = _plan(tmp_path, text=f"{MINIMAL}scheduler: {scheduler}\n", hosts=REMOVED, running=JOBS, asked=0)
    assert plan.jobs == jobs
    assert why in plan.jobs_error


def test_the_time_is_that_of_comparable_runs_of_this_cluster(tmp_path: Path) -> None:
    past = tuple(
        PastRun("x", "apply", "success", "", elapsed=took, work={"kind": "hosts", "hosts": 1})
        for took in (90.0, 60.0, 75.0)
    )
    plan = _plan(tmp_path, hosts=REMOVED, past_runs=past)
    lines = plan_text(plan).splitlines()
    assert "time: 1 min 15 s, in 9 of 10 runs at most 1 min 30 s" in lines
    assert "  from 3 runs, hosts: runs of this cluster on this machine" in lines
    assert plan.to_dict()["duration"] == {
        "work": "hosts",
        "runs": 3,
        "median_s": 75.0,
        "p90_s": 90.0,
        "source": "runs of this cluster on this machine",
    }
    assert _plan(tmp_path).to_dict()["duration"] is None
    first = _plan(tmp_path, outputs={}, changes=(ADOPTED,))
    assert first.duration is not None
    assert first.duration.work == "first apply"


def test_the_price_of_an_hour_is_that_of_the_last_apply_and_of_now(tmp_path: Path) -> None:
    h100 = LOCAL.replace("BM.GPU4.8", "BM.GPU.H100.8")
    record = _recorded(h100.replace("count: 2", "count: 3"))
    plan = _plan(tmp_path, text=h100, hosts=REMOVED, record=record)
    assert plan.price is not None
    assert plan.price.before == pytest.approx(plan.price.after + 80)
    (line,) = [line for line in plan_text(plan).splitlines() if line.startswith("price of an hour: ")]
    assert f"{plan.price.before:.2f} -> {plan.price.after:.2f} USD, {plan.price.at_limits:.2f} with all elastic" in line
    data = json.loads(json.dumps(plan.to_dict()))["price"]
    assert list(data) == ["before", "after", "at_limits", "unknown", "currency", "source"]
    assert _plan(tmp_path).to_dict()["price"] is None
    # The list has no price of BM.GPU4.8.
    assert "  without BM.GPU4.8: the price is not known" in plan_text(_plan(tmp_path, hosts=REMOVED)).splitlines()
    first = _plan(tmp_path, outputs={}, changes=(ADOPTED,)).price
    assert first is not None
    assert first.before == 0


def _recorded(text: str) -> dict[str, Any]:
    return {**SETTINGS, "complete": True, "fields": updates.recorded(loads(text, "cluster.yml"))}


def test_a_plan_names_the_changed_keys_with_the_effect_of_each(tmp_path: Path) -> None:
    removed = Scaling({"compute": PoolScaling(removed=("compute-3",))}, staying=STAYING)
    record = _recorded(LOCAL.replace("count: 2", "count: 3").replace("max_count: 4", "max_count: 5"))
    plan = _plan(tmp_path, hosts=removed, record=record)
    assert plan_text(plan).splitlines()[:4] == [
        "cluster.yml",
        "  drains  pools.compute.count: 3 -> 2",
        "          (More nodes are live; of fewer the last ones are removed.)",
        "  live    pools.cpu.max_count: 5 -> 4",
    ]
    assert json.loads(json.dumps(plan.to_dict()))["fields"][0] == {
        "path": "pools.compute.count",
        "before": 3,
        "after": 2,
        "policy": "drains",
        "effect": "drains",
        "note": "More nodes are live; of fewer the last ones are removed.",
    }


def test_a_key_that_changes_nothing_on_the_cluster_is_named_beside_no_changes(tmp_path: Path) -> None:
    plan = _plan(tmp_path, record=_recorded(LOCAL + "verify: {mpi: pmix}\n"))
    assert plan.empty
    assert plan_text(plan).splitlines() == ["cluster.yml", '  live  verify.mpi: "pmix" -> ""', "", "no changes"]


@pytest.mark.parametrize("record", [None, {**SETTINGS, "complete": True}])
def test_without_a_record_no_key_is_named(tmp_path: Path, record: Any) -> None:
    plan = _plan(tmp_path, record=record)
    assert plan.fields is None
    assert plan.to_dict()["fields"] is None


def test_the_keys_of_a_plan_are_those_of_the_page(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "status-and-plan.md"
    _, _, table = page.read_text().partition("The keys of `data` in the last line of `gpucluster --output json plan`")
    rows = [line.split("|")[1] for line in table.splitlines()[3:] if line.startswith("|")]
    named = {name for row in rows[: rows.index(" `warnings` ") + 1] for name in re.findall(r"`(\w+)`", row)}
    data = _plan(tmp_path, changes=(CONTROLLER,), hosts=REMOVED, running=JOBS).to_dict()
    assert named == set(data)
    for key, parts in (
        ("jobs", "{id, user, left, left_s, nodes}"),
        ("price", "{before, after, at_limits, unknown, currency, source}"),
        ("duration", "{work, runs, median_s, p90_s, source}"),
        ("changes", "{address, action, reason, forced_by, changed, values, adopts}"),
        ("configuration", "{subject, action, what, before, after, text}"),
    ):
        value = data[key][0] if isinstance(data[key], list) and data[key] else data[key]
        assert parts in table
        if value:
            assert f"{{{', '.join(value)}}}" == parts


def test_a_plan_is_json(tmp_path: Path) -> None:
    plan = _plan(tmp_path, changes=(CONTROLLER,), users=UserPreview((), ("bob",), ()))
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["changes"][0]["values"] == {"shape_config.ocpus": [4, 8]}
    assert data["configuration"][0]["text"] == "users: add bob"


@pytest.mark.parametrize(
    ("settings", "scheduler", "refused"),
    [
        ({"scheduler": "slurm"}, "kubernetes", "was slurm and would be kubernetes"),
        ({"scheduler": "kubernetes"}, "none", "was kubernetes and would be none"),
        ({"scheduler": "kubernetes"}, "kubernetes", ""),
        ({"scheduler": "slurm"}, "slurm", ""),
        # A cluster without a scheduler may get one.
        ({"scheduler": "none"}, "kubernetes", ""),
        ({"scheduler": "none"}, "slurm", ""),
        ({}, "kubernetes", ""),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_cluster_keeps_its_scheduler(
    settings: dict[str, Any], scheduler: str, refused: str, *, complete: bool
) -> None:
    spec = loads(f"{MINIMAL}scheduler: {scheduler}\n")
    record = cast(ConfigurationRecord, SimpleNamespace(read=lambda: {"complete": complete, "settings": settings}))
    with pytest.raises(InputError, match=refused) if refused else nullcontext():
        refuse_what_stays(spec, cast(ControllerConnection, SimpleNamespace(hosts=lambda: ("c",))), record)
    # Before the first apply there is nothing to ask.
    refuse_what_stays(spec, cast(ControllerConnection, SimpleNamespace(hosts=lambda: ())), record)


@pytest.mark.parametrize(
    ("settings", "complete", "refused"),
    [
        ({"kubernetes_pod_cidr": "10.200.0.0/16"}, True, "pod_cidr was 10.200.0.0/16 and would be 10.244.0.0/16"),
        ({"kubernetes_network": "routes"}, True, "network was routes and would be calico"),
        # The control plane was never made: what kept it from that may be corrected.
        ({"kubernetes_network": "routes"}, False, ""),
        ({"kubernetes_network": "calico", "kubernetes_release": "1.35.0"}, True, ""),
    ],
)
def test_kubernetes_keeps_its_networks(settings: dict[str, Any], complete: bool, refused: str) -> None:
    found = {"complete": complete, "settings": {"scheduler": "kubernetes", **settings}}
    record = cast(ConfigurationRecord, SimpleNamespace(read=lambda: found))
    controller = cast(ControllerConnection, SimpleNamespace(hosts=lambda: ("c",)))
    with pytest.raises(InputError, match=refused) if refused else nullcontext():
        refuse_what_stays(loads(f"{MINIMAL}scheduler: kubernetes\n"), controller, record)


def test_a_plan_tells_that_apply_would_refuse_another_scheduler(tmp_path: Path) -> None:
    record = {**SETTINGS, "complete": True, "settings": {"scheduler": "kubernetes"}}
    (warning,) = _plan(tmp_path, record=record).warnings
    assert "was kubernetes and would be slurm" in warning


@pytest.mark.parametrize(
    ("record", "warned"),
    [
        ({"complete": True, "settings": {"slurm_release": "distribution"}}, True),
        # Of a version of gpucluster that knew no releases.
        ({"complete": True, "settings": {}}, False),
        ({"complete": True, "settings": {"slurm_cluster_name": "demo"}}, True),
        ({"complete": True, "settings": {"slurm_release": "26.05"}}, False),
        # What apply wanted; it may have been refused.
        ({"complete": False, "settings": {"slurm_release": "distribution"}}, False),
        (None, False),
    ],
)
def test_another_release_of_slurm_is_what_apply_would_refuse(record: dict[str, Any] | None, warned: bool) -> None:
    spec = loads(LOCAL.replace("  accounting: true\n", '  accounting: true\n  release: "26.05"\n'))
    said = list(plans._other_release(plans._OnController(record), spec))
    assert [("slurm upgrade" in each) for each in said] == [True] * warned


@pytest.mark.parametrize(
    ("record", "warned"),
    [
        ({"complete": True, "settings": {"scheduler": "kubernetes", "kubernetes_release": "1.33.1"}}, True),
        ({"complete": True, "settings": {"scheduler": "kubernetes", "kubernetes_release": "1.34.2"}}, False),
        ({"complete": False, "settings": {"scheduler": "kubernetes", "kubernetes_release": "1.33.1"}}, False),
        # Without Kubernetes the record has what it would be.
        ({"complete": True, "settings": {"scheduler": "none", "kubernetes_release": "1.33.1"}}, False),
    ],
)
def test_another_release_of_kubernetes_is_what_apply_would_refuse(record: dict[str, Any], warned: bool) -> None:
    spec = loads(MINIMAL + 'scheduler: kubernetes\nkubernetes: {release: "1.34.2"}\n')
    said = list(plans._other_release(plans._OnController(record), spec))
    assert [("kubernetes upgrade" in each) for each in said] == [True] * warned
