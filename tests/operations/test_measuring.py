"""The operator's side of measuring: which pools are measured, what is kept, and a connection that ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from gpucluster import process
from gpucluster.errors import LockedError, ProcessError, ToolError
from gpucluster.events import Event
from gpucluster.measuring import checks
from gpucluster.node_agent.checks.model import Finding, Missing, Status
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.measuring import Measuring, MeasuringSession, RemoteSession
from gpucluster.spec import ClusterSpec, loads
from tests.fabric.simulator import Network
from tests.measuring.nccl_double import Session as Double
from tests.spec.spec_texts import KEY, LOCAL, OCI

NODES = ("h100-1", "h100-2")


def measuring(spec: ClusterSpec, session: Double | None, events: list[Event] | None = None) -> Measuring:
    @contextmanager
    def opened() -> Iterator[MeasuringSession]:
        assert session is not None, "nothing should be asked"
        yield session

    nobody = cast(ControllerConnection, None)
    return Measuring(spec, nobody, (events if events is not None else []).append, opened)


def double() -> Double:
    return Double(Network((NODES,), noise=0.0, rails=16))


def oci(tmp_path: Any, text: str = OCI) -> ClusterSpec:
    (tmp_path / "operator.pub").write_text(f"{KEY}\n")
    return loads(text, str(tmp_path / "cluster.yml"))


def statuses(findings: tuple[Finding, ...]) -> set[Status]:
    return {finding.status for finding in findings}


def test_a_pool_is_measured_and_its_outputs_are_kept(tmp_path: Any) -> None:
    session, events, kept = double(), list[Event](), dict[str, str]()
    findings = measuring(oci(tmp_path), session, events).run({"h100": NODES}, "full", keep=kept.__setitem__)
    assert statuses(findings) == {Status.PASS}
    assert {finding.check for finding in findings} == {check.name for check in checks.CHECKS}
    assert len(kept) == len(session.jobs)
    assert all(job["partition"] == "h100" for job in session.jobs)
    assert any("# Out of bounds values" in text for text in kept.values())
    assert events[0].message == "pool h100: NCCL on each node (2 measurements)"


def test_nothing_is_asked_at_another_level_or_of_emulated_hardware(tmp_path: Any) -> None:
    assert measuring(oci(tmp_path), None).run({"h100": NODES}, "quick") == ()
    local = loads(LOCAL)
    pool = next(iter(local.pools))
    assert statuses(measuring(local, None).run({pool: ["a-1", "a-2"]}, "full")) == {Status.SKIP}


def on_kubernetes(tmp_path: Any, image: str) -> ClusterSpec:
    spec = oci(tmp_path)
    verify = spec.verify.model_copy(update={"nccl_image": image})
    return spec.model_copy(update={"scheduler": "kubernetes", "verify": verify})


def test_with_kubernetes_each_node_is_measured_alone(tmp_path: Any) -> None:
    session = double()
    findings = measuring(on_kubernetes(tmp_path, "registry.example/nccl:1"), session).run({"h100": NODES}, "full")
    by_check = {check.name: {each.status for each in findings if each.check == check.name} for check in checks.CHECKS}
    assert by_check.pop("nccl_node") == {Status.PASS}
    assert set(map(frozenset, by_check.values())) == {frozenset({Status.SKIP})}
    assert all("gpucluster job submit nccl_tests" in each.message for each in findings if each.status is Status.SKIP)
    assert [job["nodes"] for job in session.jobs] == [["h100-1"], ["h100-2"]]
    # One process with all GPUs: a pod has no MPI.
    assert {(job["resource"], job["image"]) for job in session.jobs} == {("nvidia.com/gpu", "registry.example/nccl:1")}
    assert all(job["arguments"][-2:] == ["-g", "8"] for job in session.jobs)


def test_with_kubernetes_and_no_image_it_is_skipped_and_reports_what_is_missing(tmp_path: Any) -> None:
    findings = measuring(on_kubernetes(tmp_path, ""), None).run({"h100": NODES}, "full")
    assert statuses(findings) == {Status.SKIP}
    assert any("verify.nccl_image" in finding.message for finding in findings if finding.check == "nccl_node")


def test_without_a_user_it_is_unknown(tmp_path: Any) -> None:
    spec = oci(tmp_path)
    nobody = spec.model_copy(update={"users": spec.users.model_copy(update={"people": ()})})
    findings = measuring(nobody, None).run({"h100": NODES}, "full")
    assert statuses(findings) == {Status.UNKNOWN}
    assert {finding.message for finding in findings} == {"users.people has no user whose jobs could measure"}


def test_a_baseline_is_recorded_when_it_is_asked_for_and_not_before(tmp_path: Any) -> None:
    session = double()
    measuring(oci(tmp_path), session).run({"h100": NODES}, "full")
    assert session.before == {}
    measuring(oci(tmp_path), session).run({"h100": NODES}, "full", record_baseline=True)
    assert set(session.before) == {f"BM.GPU.H100.8/{each}" for each in ("1/default", "2/default", "2/ring")}


# --- the conversation -----

_SERVER = """
import json, sys
for line in sys.stdin:
    operation = json.loads(line)["operation"]
    answer = ANSWERS[operation]
    if answer is None:
        sys.exit("ssh: connection reset")
    print(json.dumps({"progress": {}}), flush=True)
    print(answer if isinstance(answer, str) else json.dumps(answer), flush=True)
"""
BEGUN: dict[str, Any] = {"begin": {"result": {"cancelled": []}}}


@contextmanager
def remote(answers: dict[str, Any], events: list[Event]) -> Iterator[RemoteSession]:
    argv = [sys.executable, "-c", f"ANSWERS = {answers!r}\n{_SERVER}"]
    with process.ProcessConversation(argv, end_s=10) as talk:
        session = RemoteSession(talk, events.append)
        session.begin("alice")
        yield session


def test_a_connection_that_is_lost_gives_no_answers_and_reports_it_once() -> None:
    events: list[Event] = []
    job = {"id": "7", "nodes": ["a"]}
    with remote({**BEGUN, "run": None}, events) as session:
        first, second = session.run([job]), session.run([job])
    assert isinstance(first["7"], Missing)
    assert first == second
    assert "connection reset" in first["7"].reason
    assert len(events) == 1


def test_a_job_without_an_answer_is_missing() -> None:
    answer = {"id": "1", "outcome": "ended", "why": "", "status": 0, "output": ""}
    with remote({**BEGUN, "run": {"result": [answer]}}, []) as session:
        found = session.run([{"id": "1"}, {"id": "2"}])
    assert isinstance(found["2"], Missing)
    assert not isinstance(found["1"], Missing)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ({"error": {"message": "measured already, by x", "hint": "Wait", "locked": True}}, LockedError, "by x"),
        ({"error": {"message": "there is no user", "hint": "", "locked": False}}, ToolError, "no user"),
        ("not JSON", ToolError, "can't be read"),
        (None, ToolError, "does not measure"),
    ],
)
def test_why_it_does_not_begin(answer: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words), remote({"begin": answer}, []):
        pass


def test_a_program_that_does_not_end_is_killed() -> None:
    script = "import sys, time; sys.stdin.readline(); print('hello', flush=True); time.sleep(600)"
    with process.ProcessConversation([sys.executable, "-c", script], end_s=0.2) as talk:
        talk.ask("x", lambda line: line == "hello\n")


def test_a_program_that_has_ended_reports_why() -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no such command')"]
    said = pytest.raises(ProcessError, match="no such command")
    with process.ProcessConversation(argv, end_s=10) as talk, said as error:
        talk.ask("x" * 1_000_000, lambda _line: True)
    assert error.value.returncode == 1
