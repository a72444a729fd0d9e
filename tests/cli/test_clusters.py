"""`list`, and the question of `destroy`, with the API of a local cloud that launches no containers."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import oci
import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cli.base import Context
from gpucluster.cluster import Cluster
from gpucluster.lifecycle.result import RunResult as ClusterResult
from gpucluster.workspace.run_log import RunStatus
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

# These folders have no state of the clusters: a test that uses them states it.
ID = "0123456789abcdef"
KNOWINGLY = ("--cluster-id", ID)


def _build(api: Api, name: str, instances: int) -> None:
    """What a cluster with this name would have in the cloud: a network, a file system, instances."""
    core, storage = oci.core.models, oci.file_storage.models
    own_tags = {"gpucluster": name, "gpucluster-id": ID}
    common: dict[str, Any] = {"compartment_id": api.tenancy, "freeform_tags": own_tags}
    vcn = api.network.create_vcn(core.CreateVcnDetails(cidr_blocks=["10.66.0.0/16"], **common)).data
    subnet = api.network.create_subnet(
        core.CreateSubnetDetails(vcn_id=vcn.id, cidr_block="10.66.0.0/24", **common)
    ).data
    placed = {"availability_domain": api.domain, **common}
    api.files.create_file_system(storage.CreateFileSystemDetails(**placed))
    source = core.InstanceSourceViaImageDetails(image_id=api.compute.list_images(api.tenancy).data[0].id)
    launched = []
    for _ in range(instances):
        vnic = core.CreateVnicDetails(subnet_id=subnet.id)
        details = core.LaunchInstanceDetails(
            shape="BM.GPU4.8", source_details=source, create_vnic_details=vnic, **placed
        )
        launched.append(api.compute.launch_instance(details).data.id)
    for ocid in launched:
        api.wait(api.compute.get_instance, ocid, "RUNNING")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("home") / "cloud") as api:
        _build(api, "demo", 3)
        _build(api, "other", 0)
        yield api


@pytest.fixture
def folder(cloud: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCLUSTER_HOME", str(cloud.home))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def destroyed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A demo whose destroy is only noted, and a user at the terminal."""
    CliRunner().invoke(cli, ["init", "--name", "demo"])
    calls: list[bool] = []

    def destroy(_self: Cluster, *, delete_data: bool = False) -> ClusterResult:
        calls.append(delete_data)
        return ClusterResult("destroy", RunStatus.SUCCESS, 0.0, {})

    monkeypatch.setattr(Cluster, "destroy", destroy)
    monkeypatch.setattr(Context, "can_ask", property(lambda self: self.interactive))
    return calls


def _run(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(words), input=answer)


def test_the_clusters_of_the_compartment_are_listed_with_or_without_a_file(folder: Path) -> None:
    without = _run("list")
    assert [line.split() for line in without.stdout.splitlines()[1:3]] == [
        ["demo", ID, "3", "running", "1", "1"],
        ["other", ID, "none", "1", "1"],
    ]
    _run("init", "--name", "third")
    data = json.loads(_run("-o", "json", "list").stdout.splitlines()[-1])["data"]
    assert [(each["name"], each["instances"]) for each in data["clusters"]] == [("demo", {"RUNNING": 3}), ("other", {})]


def test_destroy_shows_what_it_removes_and_wants_the_name(destroyed: list[bool]) -> None:
    for answer in ("\n", "y\n", "other\n"):
        refused = _run("destroy", *KNOWINGLY, answer=answer)
        assert refused.exit_code == 2
        assert "nothing was removed" in refused.stderr
    assert _run("destroy", *KNOWINGLY, answer="").exit_code == 130
    assert destroyed == []
    done = _run("destroy", "--delete-data", *KNOWINGLY, answer="demo\n")
    assert (done.exit_code, destroyed) == (0, [True])
    for words in (
        "the cluster demo of cluster.yml",
        "the local cloud of this machine",
        "3 running",
        "all files of users",
    ):
        assert words in done.stderr


@pytest.mark.parametrize("words", [["destroy", "--yes"], ["destroy", "-y"], ["--non-interactive", "destroy"]])
def test_destroy_can_be_told_not_to_ask(words: list[str], destroyed: list[bool]) -> None:
    done = _run(*words)
    assert (done.exit_code, destroyed, done.stderr) == (0, [False], "")


def test_without_anything_to_remove_there_is_nothing_to_ask(destroyed: list[bool]) -> None:
    _run("init", "--force", "--name", "nothing")
    assert (_run("destroy").exit_code, destroyed) == (0, [False])


def _rest_of(terminal: int) -> str:
    """What was written to a terminal whose other side is closed: then reading fails at the end."""
    said = b""
    with suppress(OSError):
        while chunk := os.read(terminal, 4096):
            said += chunk
    os.close(terminal)
    return said.decode()


def test_the_question_is_asked_on_a_terminal_only(folder: Path) -> None:
    CliRunner().invoke(cli, ["init", "--name", "demo"])
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "gpucluster", "destroy", *KNOWINGLY]
    asked = subprocess.Popen(argv, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    os.write(ours, b"prod\n")
    assert asked.wait(PATIENCE_S) == 2
    said = _rest_of(ours)
    assert "type its name (demo)" in said
    assert "nothing was removed" in said


@pytest.mark.parametrize("terminal", ["stdin", "stderr"])
def test_one_of_the_two_alone_is_not_a_terminal(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal == "stdin", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal == "stderr", raising=False)
    assert not Context(None, "auto").can_ask
