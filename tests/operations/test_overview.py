"""How the state of a cluster is collected. The controller is a double that prints what real programs printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpucluster.dashboards.overview import Overview
from gpucluster.dashboards.overview_page import html
from gpucluster.errors import EnvironmentFault, ToolError
from gpucluster.operations.overview import OverviewSources, overview
from gpucluster.process import Completed
from gpucluster.spec import ClusterSpec, loads
from gpucluster.workspace.evidence import SavedEvidence
from gpucluster.workspace.run_history import PastRun
from gpucluster.workspace.saved_state import SavedHost
from tests.dashboards.overview_samples import HOSTILE
from tests.doubles.sources import hanging
from tests.pages.reading import read
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S

# Stands for the separator that is made up for each call.
F = "\x1f"
SINFO = "".join(
    F.join(row) + "\n"
    for row in (
        ("compute-1", "mixed", "compute", "gpu:8(S:0-1)", "none"),
        ("compute-1", "mixed", "all", "gpu:8(S:0-1)", "none"),
        ("compute-2", "drained", "compute", "gpu:a100:8(S:0-1)", f"bad {HOSTILE}"),
        ("other", "idle", "compute", "(null)", "none"),
    )
)
SQUEUE = "".join(
    F.join(row) + "\n"
    for row in (
        ("12", "RUNNING", "anna", "compute", "1", "1:00", "1:00:00", "None", "compute-1", f"{HOSTILE}\n1|2|3\n"),
        ("13_[1-100000]", "PENDING", "anna", "compute", "4", "0:00", "1:00:00", "Resources", "", "sweep"),
        ("14", "RUNNING", "cut off here"),
    )
)
SACCT = (
    F.join(("9", "CANCELLED by 10001", "anna", "compute", "1", "00:01:00", "0:15", "2026-11-22T20:00:00", "x")) + "\n"
)
HEALTH = {
    "version": 1, "slurm": True, "shadow": False, "interval_s": 300,
    "nodes": [
        {"node": "compute-2", "pool": "compute", "age_s": 12.5, "stale": False, "profile": "periodic", "status": "fail",
         "failing": [{"check": "gpus", "message": "7 of 8 GPUs", "drains": True}], "drained": "gpucluster: gpus",
         "warnings": [{"check": "clock", "message": "off by 1 s"}], "person": False}
    ],
    "breakers": [], "suspects": [], "decisions": [], "problems": [],
}  # fmt: skip


def _series(values: list[Any], **labels: str) -> dict[str, Any]:
    return {"labels": labels, "values": values}


QUERY: dict[str, Any] = {
    "prometheus": True,
    "why": "",
    "results": {
        "nodes": [_series([[1000.0, 2.0], [1300.0, float("nan")], [1600.0, 1.0]], state="idle")],
        "rails": [_series([[1600.0, 2.0]])],
        "rail_up": [
            _series([[1600.0, 1.0]], node="compute-1", device="mlx5_0", port="1"),
            _series([[1600.0, 0.0]], node="compute-2", device="mlx5_0", port="1"),
        ],
        "rail_rate": [_series([[1600.0, 12.5e9]], node="compute-1", device="mlx5_0", port="1")],
    },
    "errors": {"jobs": "query timed out"},
}
STATUS: dict[str, Any] = {
    "name": "demo", "state": "present", "resources": {"instance": 3}, "pending": [], "hosts": [{"name": "c"}],
    "slurm": [], "autoscaler": None, "running": None, "last_run": None, "last_change": None,
    "sources": {"cloud": {"time": "2026-11-23T02:03:00+00:00", "error": ""}},
}  # fmt: skip
RESULT = {"name": "GPUs", "status": "fail", "message": "7 of 8", "check": "gpus", "subject": "compute-2", "remedy": "x"}
RDMA = {**RESULT, "check": "rdma_links", "status": "pass", "subject": "compute-1"}
EVIDENCE = SavedEvidence(
    Path("evidence.json"), 1000.0, {"run": "r", "level": "quick", "results": [RDMA, RESULT, {"status": "of later"}]}
)
ANSWERS: Mapping[str, str] = {
    "sinfo": SINFO, "squeue": SQUEUE, "sacct": SACCT, "health status": json.dumps(HEALTH), "monitor": json.dumps(QUERY),
}  # fmt: skip


@dataclass
class PageController:
    """Stands for `ControllerConnection`: answers each command by a word in it."""

    answers: Mapping[str, str | Completed | Exception] = field(default_factory=lambda: dict(ANSWERS))
    there: bool = True
    asked: dict[str, str] = field(default_factory=dict)
    asked_at: dict[str, str | None] = field(default_factory=dict)

    def hosts(self) -> tuple[SavedHost, ...]:
        return (SavedHost("demo-controller", "192.0.2.7", None),) if self.there else ()

    def ask(self, command: str, *, host: str | None = None, text: str = "", timeout: float) -> Completed:
        (word,) = [word for word in ANSWERS if word in command]
        self.asked[word] = text or command
        self.asked_at[word] = host
        mark = next(iter(re.findall("\x1f[0-9a-f]{12}\x1f", command)), F)
        answer = self.answers.get(word, Completed((), 127, "", "bash: command not found"))
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Completed) else Completed((), 0, answer.replace(F, mark), "")


RUN = PastRun("r", "apply", "success", "2026-11-23T01:00:00", elapsed=3.0)
MONITORED = LOCAL + "\nmonitoring:\n  enabled: true\n"


def collect(
    controller: PageController | None = None,
    *,
    text: str = MONITORED,
    status: Callable[[], Mapping[str, Any]] = lambda: STATUS,
    evidence: Callable[[], SavedEvidence | None] = lambda: EVIDENCE,
    runs: Callable[[], tuple[PastRun, ...]] = lambda: (RUN,),
    timeout: float = PATIENCE_S,
) -> Overview:
    sources = OverviewSources(status, controller or PageController(), evidence, runs)  # type: ignore[arg-type]
    return overview(spec(text), sources, version="1", timeout=timeout)


def spec(text: str = MONITORED) -> ClusterSpec:
    return loads(text, "cluster.yml")


def test_nodes_have_what_slurm_the_health_service_and_the_jobs_report() -> None:
    nodes = {node.name: node for node in collect().nodes.value or ()}
    assert list(nodes) == ["compute-1", "compute-2", "other"]
    one, two = nodes["compute-1"], nodes["compute-2"]
    assert (one.pool, one.state, one.gpus, one.jobs, one.reason) == ("compute", "mixed", 8, ("12",), "")
    assert (two.health, two.report_age, two.gpus) == ("fail", 12.5, 8)
    assert (two.failing, two.warnings) == (("gpus: 7 of 8 GPUs",), ("clock: off by 1 s",))
    assert two.reason == f"bad {HOSTILE}"
    assert nodes["other"].pool == ""


def test_jobs_that_run_wait_and_have_ended() -> None:
    found = collect()
    jobs = found.jobs.value or ()
    assert [(job.id, job.where) for job in jobs] == [("12", "compute-1"), ("13_[1-100000]", "Resources")]
    assert HOSTILE in jobs[0].name
    assert [(job.id, job.state, job.exit_code) for job in found.ended.value or ()] == [
        ("9", "CANCELLED by 10001", "0:15")
    ]


def test_a_name_can_not_make_up_a_row() -> None:
    """The separator is another one for each call."""
    first, second = PageController(), PageController()
    collect(first)
    collect(second)
    marks = [re.findall("\x1f[0-9a-f]{12}\x1f", each.asked["squeue"])[0] for each in (first, second)]
    assert marks[0] != marks[1]


def test_the_verdict_is_the_last_one_of_this_machine() -> None:
    verdict = collect().verdict.value
    assert verdict is not None
    assert (verdict.status, verdict.at, verdict.counts) == ("fail", 1000.0, {"fail": 1, "pass": 1})
    assert [line.subject for line in verdict.problems] == ["compute-2"]
    assert [line.check for line in verdict.rails] == ["rdma_links"]
    assert "gpucluster verify" in collect(evidence=lambda: None).verdict.why


def test_ports_are_put_together_from_their_values() -> None:
    rails = collect().rails.value
    assert rails is not None
    assert (rails.number, rails.complete) == (2, True)
    assert [(rail.node, rail.up, rail.rate) for rail in rails.listed] == [
        ("compute-1", True, 12.5e9),
        ("compute-2", False, None),
    ]


def test_history_leaves_out_what_is_not_a_number() -> None:
    found = collect()
    history = found.history.value
    assert history is not None
    assert history.series["nodes"][0].values == ((1000.0, 2.0), (1600.0, 1.0))
    assert history.errors == {"jobs": "query timed out"}
    assert "No answer: query timed out." in html(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_prometheus_is_asked_on_its_own_host() -> None:
    controller = PageController()
    login = "login: {count: 1, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}\n"
    collect(controller, text=f"{LOCAL}\n{login}monitoring: {{enabled: true, host: login-1}}\n")
    assert controller.asked_at.pop("monitor") == "demo-login-1"
    assert set(controller.asked_at.values()) == {None}


def test_without_monitoring_prometheus_is_not_asked() -> None:
    controller = PageController()
    found = collect(controller, text=LOCAL)
    assert "monitor" not in controller.asked
    assert "monitoring.enabled" in found.history.why
    assert "monitoring.enabled" in found.rails.why


def test_a_large_cluster_is_not_asked_for_each_of_its_ports() -> None:
    small, large = PageController(), PageController()
    collect(small)
    collect(large, text=MONITORED.replace("count: 2", "count: 100"))
    names = [
        {query["name"]: query["expr"] for query in json.loads(each.asked["monitor"])["queries"]}
        for each in (small, large)
    ]
    assert names[0]["rail_up"] == "gpucluster_rdma_port_up"
    assert names[1]["rail_up"] == "gpucluster_rdma_port_up == 0"
    assert "by (node)" in names[0]["gpu_by_place"]
    assert "by (pool)" in names[1]["gpu_by_place"]
    assert "rail_rate" not in names[1]


@pytest.mark.parametrize(
    ("word", "section", "answer", "why"),
    [
        ("sinfo", "nodes", Completed((), 124, "", ""), "no answer in time"),
        (
            "sinfo",
            "nodes",
            Completed((), 1, "", "slurm_load_partitions: Unable to contact slurm controller"),
            "Unable to",
        ),
        ("squeue", "jobs", ToolError("the controller can't be reached: timed out"), "can't be reached"),
        ("sacct", "ended", Completed((), 1, "", "sacct: error: Problem talking to the database"), "the database"),
        (
            "health status",
            "health",
            Completed((), 127, "", "sudo: gpucluster-agent: command not found"),
            "gpucluster apply",
        ),
        ("health status", "health", "Traceback", "unknown form"),
        ("health status", "health", "[]", "unknown form"),
        (
            "monitor",
            "history",
            json.dumps({"prometheus": False, "why": "connection refused", "results": {}}),
            "refused",
        ),
        ("monitor", "rails", "{}", "unknown form"),
    ],
)
def test_an_answer_that_fails_is_reported_in_its_place_only(
    word: str, section: str, answer: str | Completed | Exception, why: str
) -> None:
    found = collect(PageController({**ANSWERS, word: answer}))
    part = getattr(found, section)
    assert part.value is None
    assert why in part.why
    assert len([source for source in found.sources if source.error]) == 1
    others = {"nodes", "jobs", "ended", "health", "history", "rails"} - {section}
    others -= {"history", "rails"} if word == "monitor" else set()
    assert all(getattr(found, other).value is not None for other in others)
    assert read(html(found)).faults == []


def test_a_controller_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging(monkeypatch) as hangs:

        class Hangs(PageController):
            def ask(self, command: str, *, host: str | None = None, text: str = "", timeout: float) -> Completed:
                if "squeue" in command:
                    hangs()
                return super().ask(command, host=host, text=text, timeout=timeout)

        found = collect(Hangs())
    assert "no answer in time" in found.jobs.why
    assert found.nodes.value


def test_without_slurm_the_page_reports_it() -> None:
    off = spec().model_copy(update={"slurm": spec().slurm.model_copy(update={"enabled": False})})
    sources = OverviewSources(lambda: STATUS, PageController(), lambda: None, lambda: ())  # type: ignore[arg-type]
    found = overview(off, sources, version="1")
    assert found.nodes.why == found.jobs.why == "Slurm is off in cluster.yml."


def test_without_a_cluster_there_is_no_page() -> None:
    with pytest.raises(ToolError, match="there is no cluster yet"):
        collect(PageController(there=False), status=lambda: {**STATUS, "state": "absent", "hosts": []})


def test_if_nothing_is_known_there_is_no_page() -> None:
    silent = {"cloud": {"time": "", "error": "the cloud can't be reached"}}
    unknown = {**STATUS, "state": "unknown", "hosts": [], "sources": silent}
    with pytest.raises(ToolError, match="the cloud can't be reached"):
        collect(PageController(there=False), status=lambda: unknown, runs=lambda: ())
    # A run in this machine's log is something.
    found = collect(PageController(there=False), status=lambda: unknown)
    assert "there is no controller yet" in found.nodes.why


def test_a_run_log_that_can_not_be_read_is_not_an_obstacle() -> None:
    def broken() -> Any:
        raise EnvironmentFault("can't read")

    found = collect(evidence=broken, runs=broken)
    assert found.runs == ()
    assert "can't read" in found.verdict.why
