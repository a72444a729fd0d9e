"""The operator's side of jobs: what is chosen and refused, what an end means, and data sets that are brought.

Data sets come to a real share by the real program, without ssh between them. For jobs there is a double of the
conversation: it proves nothing of Slurm, which is in test_jobs_slurm.py, and whose whole way is in tests/e2e.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpucluster import process
from gpucluster.errors import InputError, Interrupted, ProcessError, ToolError
from gpucluster.events import Event
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import LAST_LINES
from gpucluster.node_agent.checks.model import Status
from gpucluster.operations.container_images import ContainerImages
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.jobs import JobRequest, Jobs, judged
from gpucluster.operations.rpc import RemoteConversation
from gpucluster.spec import ClusterSpec, loads
from tests.agent_program import install

NAME = "mpi_allreduce"
TEXT = """\
version: 1
name: demo
cloud: {provider: local}
network:
  vcn_cidr: 10.90.0.0/16
  public_subnet_cidr: 10.90.0.0/24
  private_subnet_cidr: 10.90.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32}
pools:
  big: {shape: BM.GPU4.8, count: 2, partition: work}
  small: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, count: 1, max_count: 4, partition: work}
  other: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16, count: 3}
users: {people: [{name: alice, generate_key: true}]}
"""
KUBERNETES = TEXT.replace(", max_count: 4", "").replace("alice,", "alice, uid: 12001,") + "scheduler: kubernetes\n"
#: A run of two ranks on two nodes, as the program of the template prints it.
GOOD = """\
gpucluster job: {"nodes": 2}
{"bytes": 8, "seconds": 1e-05, "algbw": 0.001, "busbw": 0.001, "wrong": 0}
{"ranks": 2, "hosts": 2, "wrong": 0}
"""


class JobsConversation:
    """The conversation with a controller on which everything is fine, but for what a test plants."""

    def __init__(self, **planted: Any) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._planted = planted

    def ask(self, operation: str, _on_progress: Any = None, **given: Any) -> Any:
        self.asked.append((operation, given))
        if operation in self._planted:
            answer = self._planted[operation]
            if isinstance(answer, BaseException):
                raise answer
            return answer
        record: dict[str, Any] = next((each["record"] for name, each in self.asked if name == "submit"), {})
        return {
            "check": {
                "nodes": "", "delayed": "",
                "requirements": [{"state": "met", "message": ""} for _ in given.get("requirements", [])],
            },
            "submit": {"id": "7", "folder": "/mnt/home/alice/gpucluster-jobs/x", "user": "alice"},
            "wait": {"id": "7", "state": "COMPLETED", "reason": "", "ended": True},
            "output": {
                "job": {"id": "7", "state": "COMPLETED", "exit_status": 0, "nodes": "big-[1-2]", "folder": "/x"},
                "user": "alice", "record": record, "result": {}, "output": GOOD,
            },
            "result": {"file": "/x/result.json"},
        }[operation]  # fmt: skip

    def of(self, operation: str) -> dict[str, Any]:
        return next(given for name, given in self.asked if name == operation)


def spec(tmp_path: Path, text: str = TEXT) -> ClusterSpec:
    return loads(text, str(tmp_path / "cluster.yml"))


def jobs(of: ClusterSpec, double: Any, events: list[Event] | None = None) -> Jobs:
    @contextmanager
    def opened() -> Iterator[RemoteConversation]:
        yield cast(RemoteConversation, double)

    nobody = cast(ControllerConnection, SimpleNamespace(require_own=lambda: None))
    return Jobs(of, nobody, cast(ContainerImages, None), (events if events is not None else []).append, opened)


def test_a_job_gets_nodes_of_its_pool_alone(tmp_path: Path) -> None:
    double = JobsConversation()
    submitted = jobs(spec(tmp_path), double).submit(JobRequest(NAME, nodes=3, pool="small"))
    assert (submitted.id, submitted.user, submitted.partition) == ("7", "alice", "work")
    given = double.of("submit")
    assert given["words"] == ["--exclude=big-1,big-2"]
    assert "#SBATCH --partition=work" in given["files"][given["script"]]["text"]
    assert given["record"]["output"] == "mpi_allreduce-{job}.out"
    double = JobsConversation()
    jobs(spec(tmp_path), double).submit(JobRequest(NAME, pool="other", user="bob"))
    assert (double.of("submit")["words"], double.of("submit")["user"]) == ([], "bob")


def test_without_a_pool_the_first_with_enough_nodes_is_taken(tmp_path: Path) -> None:
    double = JobsConversation()
    jobs(spec(tmp_path), double).submit(JobRequest(NAME, nodes=4))
    assert double.of("submit")["record"]["pool"] == "small"


@pytest.mark.parametrize(
    ("request_", "text", "said"),
    [
        (JobRequest("mpi_allreduc"), TEXT, "unknown template"),
        (JobRequest("o'brien\n"), TEXT, "unknown template"),
        (JobRequest(NAME, pool="none"), TEXT, "no pool 'none'"),
        (JobRequest(NAME, pool="big", nodes=3), TEXT, "at most 2 nodes, and the job wants 3"),
        (JobRequest(NAME, launcher="ssh"), TEXT, "unknown launcher"),
        (JobRequest(NAME, launcher="pyxis"), TEXT, "needs Enroot and Pyxis"),
        (JobRequest(NAME, settings={"color": "red"}), TEXT, "no option 'color'"),
        (JobRequest(NAME, settings={"job_name": "a;reboot"}), TEXT, "job_name"),
        (JobRequest("nccl_tests", launcher="srun"), TEXT, "can't run on the pool big"),
        (
            JobRequest(NAME),
            TEXT.replace("users: {people: [{name: alice, generate_key: true}]}\n", ""),
            "there is no user",
        ),
        (
            JobRequest(NAME),
            TEXT.replace(", max_count: 4", "").replace("alice,", "alice, uid: 12001,") + "slurm: {enabled: false}\n",
            "job submit needs Slurm, and the scheduler of this cluster is none",
        ),
        (JobRequest(NAME, launcher="srun"), KUBERNETES, "for Slurm, and this cluster has Kubernetes"),
        (JobRequest(NAME, launcher="jobset"), TEXT, "for Kubernetes, and this cluster has Slurm"),
        (JobRequest(NAME, settings={"uid": "0"}), KUBERNETES, "takes uid from the directory"),
        (JobRequest(NAME, settings={"namespace": "kube-system"}), KUBERNETES, "takes namespace from the directory"),
    ],
)
def test_what_can_not_run_is_refused_before_anything_is_asked(
    tmp_path: Path, request_: JobRequest, text: str, said: str
) -> None:
    double = JobsConversation()
    with pytest.raises(InputError, match=said):
        jobs(spec(tmp_path, text), double).submit(request_)
    assert double.asked == []


def test_on_kubernetes_a_job_is_objects_with_a_name_of_their_own(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        double = JobsConversation()
        submitted = jobs(spec(tmp_path, KUBERNETES), double).submit(JobRequest(NAME, settings={"image": "tools:1"}))
        given, checked = double.of("submit"), double.of("check")
        assert (submitted.pool, submitted.partition) == ("big", "")
        assert (checked["pool"], checked["gpus"]) == (submitted.pool, 0)
        assert {each["kind"] for each in given["manifests"]} == {"ConfigMap", "Service", "Job"}
        assert {each["metadata"]["labels"]["gpucluster.io/job"] for each in given["manifests"]} == {given["name"]}
        assert given["record"]["output"] == f"{given['name']}.out"
        assert given["record"]["job"]["values"]["job_name"] == given["name"]
        names.add(given["name"])
    assert len(names) == 2
    double = JobsConversation()
    jobs(spec(tmp_path, KUBERNETES), double).submit(
        JobRequest(NAME, settings={"image": "tools:1", "job_name": "mine"}, launcher="mpijob")
    )
    assert double.of("submit")["name"] == "mine"


def test_an_image_that_is_not_named_is_reported_before_anything_is_made(tmp_path: Path) -> None:
    state = {"state": "not met", "message": "is not named; the nodes have tools:1"}
    met = {"state": "met", "message": ""}
    double = JobsConversation()
    these = jobs(spec(tmp_path, KUBERNETES), double)
    with pytest.raises(InputError, match="no container image is named"):
        these.submit(JobRequest(NAME))
    number = len(double.of("check")["requirements"])
    double = JobsConversation(check={"nodes": "", "delayed": "", "requirements": [state, *[met] * (number - 1)]})
    with pytest.raises(InputError, match="1 requirement is not met") as caught:
        jobs(spec(tmp_path, KUBERNETES), double).submit(JobRequest(NAME))
    (finding,) = caught.value.findings
    assert finding.message == "is not named; the nodes have tools:1"
    assert [name for name, _ in double.asked] == ["check"]


def test_on_kubernetes_an_end_is_judged_as_on_slurm(tmp_path: Path) -> None:
    double = JobsConversation()
    these = jobs(spec(tmp_path, KUBERNETES), double)
    these.submit(JobRequest(NAME, settings={"image": "tools:1"}))
    assert these.wait("mpi-allreduce-1").result.status is Status.PASS
    with pytest.raises(Interrupted, match="job x goes on"):
        jobs(spec(tmp_path, KUBERNETES), JobsConversation(wait=KeyboardInterrupt())).wait("x")
    with pytest.raises(InputError, match="pods see the home of their user alone"):
        these.prepare(JobRequest("pytorch_ddp"))


def test_a_missing_requirement_is_named_with_how_to_get_it_and_nothing_is_submitted(tmp_path: Path) -> None:
    answer = {"nodes": "", "delayed": "", "requirements": [{"state": "not met", "message": "does not exist"}]}
    double = JobsConversation(check=answer)
    with pytest.raises(InputError, match="1 requirement is not met") as caught:
        jobs(spec(tmp_path), double).submit(JobRequest(NAME))
    (finding,) = caught.value.findings
    assert finding.message == "does not exist"
    assert finding.hint.startswith("Install it on the nodes")
    assert [name for name, _ in double.asked] == ["check"]
    nodes = {"nodes": "the partition work has 1 nodes, and the job wants 2", "delayed": "", "requirements": []}
    with pytest.raises(InputError, match="has 1 nodes"):
        jobs(spec(tmp_path), JobsConversation(check=nodes)).submit(JobRequest(NAME))


def test_what_only_a_node_can_know_is_reported_and_not_an_obstacle(tmp_path: Path) -> None:
    events: list[Event] = []
    state = {"state": "at the start", "message": "is checked at the start of the job, on each node"}
    answer = {"nodes": "", "delayed": "only 1 of 2 nodes", "requirements": [state]}
    submitted = jobs(spec(tmp_path), JobsConversation(check=answer), events).submit(JobRequest(NAME))
    assert submitted.at_start == ("program mpicc is checked at the start of the job, on each node",)
    assert [event.status for event in events] == ["info", "warning"]


def test_an_end_is_judged_and_the_result_is_kept_beside_the_job(tmp_path: Path) -> None:
    double = JobsConversation()
    these = jobs(spec(tmp_path), double)
    these.submit(JobRequest(NAME))
    outcome = these.wait("7")
    assert outcome.result.status is Status.PASS, outcome.result
    kept = double.of("result")["result"]
    assert (kept["version"], kept["verdict"], kept["state"]) == (1, "pass", "COMPLETED")
    assert outcome.to_dict()["values"] == {"busbw": 0.001}


@pytest.mark.parametrize("job", [{}, [], None, {"template": "x"}, {"nodes": float("inf"), "template": NAME}, "x"])
def test_a_record_that_its_user_has_changed_shows_no_traceback(tmp_path: Path, job: Any) -> None:
    if isinstance(job, dict) and "nodes" in job:
        job |= {"launcher": "srun", "shape": "", "values": {}, "gpus": 0, "rdma": False}
    seen = {"id": "7", "state": "COMPLETED", "exit_status": 0, "nodes": "a", "folder": "/x"}
    answer = {"job": seen, "user": "alice", "record": {"job": job}, "result": {}, "output": GOOD}
    with pytest.raises(ToolError, match="job 7 can't be judged"):
        jobs(spec(tmp_path), JobsConversation(output=answer)).wait("7")


def test_the_state_of_a_job_has_what_was_reported_of_it_and_done_to_it(tmp_path: Path) -> None:
    seen = {
        "id": "7",
        "state": "CANCELLED",
        "reason": "",
        "ended": True,
        "exit_status": None,
        "nodes": "a",
        "folder": "/x",
    }
    answer = {"job": seen, "user": "alice", "record": {"template": NAME}, "result": {}, "output": ""}
    line = "2026-11-27 21:00:00 UTC job 7 is hung for 4 minutes. It is cancelled (on-hang=cancel)."
    found = jobs(spec(tmp_path), JobsConversation(output={**answer, "told": [line]})).status("7")
    assert (found.told, found.state) == ((line,), "CANCELLED")
    assert jobs(spec(tmp_path), JobsConversation(output=answer)).status("7").told == (), "an earlier agent"


def test_who_stops_waiting_is_told_how_to_look_again(tmp_path: Path) -> None:
    of = spec(tmp_path)
    with pytest.raises(Interrupted, match="job 7 goes on") as stopped:
        jobs(of, JobsConversation(wait=KeyboardInterrupt())).wait("7")
    assert stopped.value.hint == "Look again: gpucluster job wait 7"
    with pytest.raises(Interrupted, match="while the job was submitted") as stopped:
        jobs(of, JobsConversation(submit=KeyboardInterrupt())).submit(JobRequest(NAME))
    assert "squeue --user=alice" in stopped.value.hint
    with pytest.raises(ToolError, match="the connection was lost; job 7 goes on"):
        jobs(of, JobsConversation(wait=ProcessError("ssh ended"))).wait("7")
    late = {"state": "PENDING", "reason": "Resources", "ended": False}
    with pytest.raises(ToolError, match=r"job 7 has not ended within 600 s: PENDING \(Resources\)"):
        jobs(of, JobsConversation(wait=late)).wait("7", timeout=600)


def test_a_full_home_loses_the_result_and_not_the_verdict(tmp_path: Path) -> None:
    events: list[Event] = []
    double = JobsConversation(result=ToolError("No space left on device"))
    these = jobs(spec(tmp_path), double, events)
    these.submit(JobRequest(NAME))
    assert these.wait("7").result.status is Status.PASS
    assert events[-1].message == "the result is not kept: No space left on device"


@pytest.mark.parametrize(
    ("state", "status", "output", "verdict", "said"),
    [
        (
            "FAILED",
            66,
            "mpi_allreduce: the program mpicc is not there. Install it\n\n",
            Status.FAIL,
            "mpicc is not there",
        ),
        (
            "FAILED",
            66,
            "mpi_allreduce: gpu-2: mpicc is not there\nsrun: error: gpu-2: task 1: Exited with exit code 66\n",
            Status.FAIL,
            "gpu-2: mpicc is not there",
        ),
        ("FAILED", 1, GOOD, Status.FAIL, "FAILED with status 1"),
        (
            "FAILED",
            14,
            "PMIx_Init failed\n=======\n\nsrun: error: gpu-2: task 1: Exited with exit code 14\n",
            Status.FAIL,
            "its last line is: PMIx_Init failed",
        ),
        (
            "FAILED",
            1,
            "0: slurmstepd: error: pyxis:     [ERROR] URL https://registry-1.docker.io/v2/nvcr.io/nvidia/pytorch/x "
            "returned error code: 401 Unauthorized\n0: slurmstepd: error: pyxis: couldn't start container\n",
            Status.FAIL,
            "401 Unauthorized (behind the name of a registry an image of Enroot has a #",
        ),
        (
            "FAILED",
            1,
            "0: slurmstepd: error: pyxis:     [ERROR] URL https://quay.io/v2/mine/x returned error code: "
            "403 Forbidden\nslurmstepd: error: Failed to invoke spank plugin stack\n",
            Status.FAIL,
            "403 Forbidden (log in to the registry",
        ),
        (
            "FAILED",
            127,
            "./a.out: error while loading shared libraries: libmpi.so.40: cannot open\nsrun: error: x\n",
            Status.FAIL,
            "its output reports: error while loading shared libraries: libmpi.so.40",
        ),
        (
            "FAILED",
            2,
            "slurmstepd: error: execve(): all_reduce_perf: No such file or directory\nsrun: error: gpu-1: task 0\n",
            Status.FAIL,
            "all_reduce_perf: No such file or directory (the program is not on the node",
        ),
        (
            "FAILED",
            1,
            "[rank218]:[E108 ProcessGroupNCCL.cpp:685] [Rank 13] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=1)\nsomething behind it\n",
            Status.FAIL,
            "its output reports: [Rank 13] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        ),
        (
            "FAILED",
            14,
            "[n2:1327 :0:1327] Caught signal 11 (Segmentation fault: address not mapped to object at address 0xe0)\n"
            " 4  /lib/libmpi.so.40(mca_pml_ob1_recv_frag_callback_match+0xaa) [0x7f06fd7f573a]\n"
            " 5  /lib/libopen-pal.so.80(+0xe3cf8) [0x7f06fcee4cf8]\n"
            "10  /lib/libmpi.so.40(ompi_mpi_init+0x435) [0x7f06fd5ffad5]\n"
            "srun: error: n2: task 1: Segmentation fault\n",
            Status.FAIL,
            "(open-mpi/ompi#12495): submit the job again",
        ),
        (
            "FAILED",
            139,
            "[n3:77] [ 1] /opt/lib/libmpi.so.40(mca_pml_ob1_recv_frag_callback_match+0xb1)[0x7f]\n"
            "[n3:77] [ 2] /opt/lib/libmpi.so.40(MPI_Recv+0x1d)[0x7f]\n"
            "srun: error: n3: task 1: Segmentation fault (in MPI_Recv, after the start)\n",
            Status.FAIL,
            "with status 139; its last line is",
        ),
        ("TIMEOUT", 0, GOOD, Status.FAIL, "TIMEOUT"),
        ("OUT_OF_MEMORY", 0, "", Status.FAIL, "it has printed nothing"),
        ("CANCELLED", 0, GOOD, Status.UNKNOWN, "CANCELLED"),
        ("NODE_FAIL", None, GOOD, Status.UNKNOWN, "NODE_FAIL"),
        ("COMPLETED", 0, "", Status.UNKNOWN, ""),
        ("COMPLETED", 0, "x\x1b[2J" * 1000, Status.UNKNOWN, ""),
    ],
)
def test_a_job_that_did_not_complete_never_passes(
    state: str, status: int | None, output: str, verdict: Status, said: str
) -> None:
    template = registry.template(NAME)
    job = choose.choose(template, registry.launcher(template), {}, nodes=2, shape=None)
    found = judged(job, output, state, status)
    assert found.status is verdict
    assert said in found.findings[0].message
    assert "\x1b" not in str(found.findings)
    if said.startswith("its last line"):
        assert found.findings[0].evidence[LAST_LINES][-1] == "srun: error: gpu-2: task 1: Exited with exit code 14"


# --- data sets, by the real program on a real share -----


class Share:
    """A share of 2 MB, and the program of the controller, which writes there."""

    def __init__(self, folder: Path, tmp_path: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self._argv = [sys.executable, "-I", str(install(tmp_path)), "jobs", "--locks", str(tmp_path / "locks"), "serve"]
        (tmp_path / "mirror").mkdir()
        found = spec(tmp_path, f"{TEXT}software: {{mirror: {tmp_path}/mirror}}\n")
        home = found.storage.home.model_copy(update={"mount_path": str(folder)})
        self.spec = found.model_copy(update={"storage": found.storage.model_copy(update={"home": home})})

    @contextmanager
    def opened(self) -> Iterator[RemoteConversation]:
        with process.ProcessConversation(self._argv, end_s=20) as talk:
            yield RemoteConversation(talk)

    @property
    def jobs(self) -> Jobs:
        nobody = cast(Any, SimpleNamespace(require_own=lambda: None))
        return Jobs(self.spec, nobody, nobody, self.events.append, self.opened)


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Share]:
    from tests.controller.jobs import share_harness

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with share_harness.share("2m") as folder:
        yield Share(folder, tmp_path)


def test_a_file_of_the_operator_becomes_a_data_set_once(share: Share, tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    file.write_bytes(b"not of the catalogue")
    with pytest.raises(InputError, match="this is not mnist") as refused:
        share.jobs.prepare(JobRequest("mnist"), source=file)
    assert "--force" in refused.value.hint
    for changed in (True, False):
        (done,) = share.jobs.prepare(JobRequest("mnist"), source=file, force=True)
        assert (done.changed, done.path) == (changed, f"{share.folder}/.gpucluster/datasets/mnist")
    assert (Path(done.path) / "mine.npz").read_bytes() == file.read_bytes()
    (done,) = share.jobs.prepare(JobRequest("ours"), source=file)
    assert (done.changed, done.path) == (True, f"{share.folder}/.gpucluster/datasets/ours")
    with pytest.raises(InputError, match="can't be the name of a data set"):
        share.jobs.prepare(JobRequest("../ours"), source=file)
    with pytest.raises(InputError, match="there is no such file"):
        share.jobs.prepare(JobRequest("mnist"), source=tmp_path / "none")


def test_a_data_set_comes_from_the_mirror_with_its_checksum(share: Share, tmp_path: Path) -> None:
    content = b"a smaller one"
    (tmp_path / "mirror" / "mnist.npz").write_bytes(content)
    with pytest.raises(InputError, match="has another checksum"):
        share.jobs.prepare(JobRequest("mnist"))
    sums = {"mnist.npz": hashlib.sha256(content).hexdigest()}
    software = share.spec.software.model_copy(update={"checksums": sums})
    share.spec = share.spec.model_copy(update={"software": software})
    (done,) = share.jobs.prepare(JobRequest("mnist"))
    assert (Path(done.path) / "mnist.npz").read_bytes() == content
    with pytest.raises(InputError, match="release file is missing"):
        share.jobs.prepare(JobRequest("cifar10"))


def test_a_share_that_is_too_small_is_reported(share: Share, tmp_path: Path) -> None:
    file = tmp_path / "big.npz"
    file.write_bytes(bytes(3 << 20))
    with pytest.raises(ToolError, match="the share is full"):
        share.jobs.prepare(JobRequest("mnist"), source=file, force=True)


def test_a_template_that_needs_no_data_takes_no_file(share: Share, tmp_path: Path) -> None:
    assert share.jobs.prepare(JobRequest(NAME)) == ()
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="needs no data set"):
        share.jobs.prepare(JobRequest(NAME), source=tmp_path / "x")


def test_the_jobs_of_all_users_are_listed(tmp_path: Path) -> None:
    row = {"id": "8", "user": "bob", "state": "PENDING", "nodes": "", "reason": "Resources", "running": "0:00"}
    (listed,) = jobs(spec(tmp_path), JobsConversation(list={"jobs": [{**row, "name": "x", "more": 1}]})).list()
    assert listed.to_dict() == {**row, "name": "x"}


@pytest.mark.parametrize("follow", [False, True])
def test_an_output_comes_in_parts_until_there_is_no_more(
    tmp_path: Path, follow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        {"text": "one\n", "offset": 4, "ended": False},
        {"text": "", "offset": 4, "ended": False},
        {"text": "two\n", "offset": 8, "ended": True},
        {"text": "", "offset": 8, "ended": True},
    ]
    places: list[int] = []

    class Following(JobsConversation):
        def ask(self, operation: str, _on_progress: Any = None, **given: Any) -> Any:
            places.append(given["offset"])
            return answers[len(places) - 1]

    monkeypatch.setattr("gpucluster.operations.jobs._FOLLOW_S", 0)
    parts = list(jobs(spec(tmp_path), Following()).output("7", follow=follow))
    assert parts == (["one\n", "two\n"] if follow else ["one\n"])
    assert places == ([0, 4, 4, 8] if follow else [0, 4])


def test_only_launchers_of_this_cluster_are_offered(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs Enroot and Pyxis") as caught:
        jobs(spec(tmp_path), JobsConversation()).submit(JobRequest("nccl_tests", launcher="pyxis"))
    offered = caught.value.hint.partition("--launcher ")[2].split(" or ")
    assert offered
    assert not {"pyxis", "sge", "pbs", "lsf", "kubernetes-job", "jobset", "mpijob"} & {*offered}
