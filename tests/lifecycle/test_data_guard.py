"""What the guard of users' files decides, and how it asks the hosts. The cloud and ssh are doubles.

That no file is ever lost, whatever is missing or killed, is in test_teardown.py; the real API is met in
tests/cloud/test_file_systems.py, the real share in tests/e2e/test_main_path.py.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest

from gpucluster import process
from gpucluster.cloud.file_systems import FileSystem, FileSystems
from gpucluster.errors import CloudError, DataGuardError, ProcessError
from gpucluster.events import ignore
from gpucluster.lifecycle.data_guard import DataGuard, ShareLook, UserFiles, known_to_be_empty
from gpucluster.oci.tags import UsersFiles
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.ssh import SshClient
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedHost

SHARE = ("10.77.1.2:/mnt/home",)
HOME = FileSystem("ocid1.filesystem.test..a", "demo-home", SHARE, True, UsersFiles.IN_USE, (), has_homes=True)
NOBODY = UserFiles({})


class FileSystemsDouble:
    """Stands for `FileSystems`: one file system, and the requests. Proves nothing about the cloud."""

    def __init__(self, *present: FileSystem) -> None:
        self.present = {each.id: each for each in present}
        self.asked: list[tuple[str, str]] = []

    def find(self, _known: Sequence[str] = ()) -> tuple[FileSystem, ...]:
        return tuple(self.present.values())

    def note(self, ocid: str, files: UsersFiles) -> None:
        self.asked.append(("note", files))
        self.present[ocid] = replace(self.present[ocid], files=files)

    def seal(self, ocid: str) -> None:
        self.asked.append(("seal", ocid))
        self.present[ocid] = replace(self.present[ocid], writable=False)

    def unseal(self, ocid: str) -> None:
        self.asked.append(("unseal", ocid))
        self.present[ocid] = replace(self.present[ocid], writable=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    paths = ClusterPaths(tmp_path)
    paths.create()
    return Run("destroy", paths, ignore)


def _release(
    run: Run, systems: FileSystemsDouble, *answers: UserFiles | str, delete_data: bool = False
) -> frozenset[str]:
    looks = iter(answers)

    def look(sources: Sequence[str], *, every_file: bool = False) -> UserFiles | str:
        assert sources
        assert not every_file
        return next(looks)

    guard = DataGuard(lambda: cast(FileSystems, systems), look)
    return guard.release((), run, delete_data=delete_data)


def test_files_of_users_are_counted_and_guarded(run: Run) -> None:
    systems = FileSystemsDouble(HOME)
    with pytest.raises(DataGuardError, match="demo-home holds 4 files of users: 1 of alice, 3 of bob") as caught:
        _release(run, systems, UserFiles({"bob": 3, "alice": 1}))
    assert "pass --delete-data" in caught.value.hint
    assert caught.value.exit_code == 6
    assert systems.asked == []
    with pytest.raises(DataGuardError, match="holds at least 100000 files"):
        _release(run, systems, UserFiles({"bob": 100_000}, complete=False))


def test_an_empty_one_is_released_when_no_user_can_write_any_more(run: Run) -> None:
    systems = FileSystemsDouble(HOME)
    assert _release(run, systems, NOBODY, NOBODY) == {HOME.id}
    assert systems.asked == [("seal", HOME.id), ("note", UsersFiles.EMPTY)]


@pytest.mark.parametrize("second", [UserFiles({"alice": 1}), "the controller is unreachable"])
def test_what_is_written_between_two_looks_is_not_lost_and_users_can_write_again(
    run: Run, second: UserFiles | str
) -> None:
    systems = FileSystemsDouble(HOME)
    with pytest.raises(DataGuardError):
        _release(run, systems, NOBODY, second)
    assert systems.present == {HOME.id: HOME}


def test_a_share_that_a_killed_destroy_left_read_only_is_opened_again(run: Run) -> None:
    systems = FileSystemsDouble(replace(HOME, writable=False))
    with pytest.raises(DataGuardError):
        _release(run, systems, UserFiles({"alice": 1}))
    assert systems.present[HOME.id].writable


def test_snapshots_would_be_deleted_with_it(run: Run) -> None:
    systems = FileSystemsDouble(replace(HOME, snapshots=("friday", "monday")))
    with pytest.raises(DataGuardError, match="has 2 snapshots, which OCI would delete with it: friday, monday"):
        _release(run, systems, NOBODY, NOBODY)


def test_with_delete_data_nothing_is_examined(run: Run) -> None:
    assert _release(run, FileSystemsDouble(HOME, replace(HOME, id="b")), delete_data=True) == {HOME.id, "b"}


def test_each_of_several_is_looked_into(run: Run) -> None:
    with pytest.raises(DataGuardError, match="1 of alice"):
        _release(run, FileSystemsDouble(HOME, replace(HOME, id="b")), NOBODY, NOBODY, UserFiles({"alice": 1}))


@pytest.mark.parametrize(
    ("files", "writable", "empty"),
    [
        (None, False, False),  # the tag was removed
        (UsersFiles.UNUSED, True, True),
        (UsersFiles.IN_USE, False, False),
        (UsersFiles.EMPTY, False, True),
        (UsersFiles.EMPTY, True, False),  # an apply has opened it again
    ],
)
def test_where_no_host_can_be_asked_its_own_tag_decides(
    run: Run, files: UsersFiles | None, writable: bool, empty: bool
) -> None:
    system = replace(HOME, files=files, writable=writable)
    assert known_to_be_empty(system) is empty
    if empty:
        assert _release(run, FileSystemsDouble(system), "no host is left") == {HOME.id}
    else:
        with pytest.raises(DataGuardError, match="can't be looked into for users' files: no host is left") as caught:
            _release(run, FileSystemsDouble(system), "no host is left")
        assert caught.value.where == HOME.id


def test_a_host_is_asked_even_if_the_tag_states_that_it_was_not_used(run: Run) -> None:
    with pytest.raises(DataGuardError, match="1 of root2"):
        _release(run, FileSystemsDouble(replace(HOME, files=UsersFiles.UNUSED)), UserFiles({"root2": 1}))


# --- asking the hosts -----

CONTROLLER = SavedHost("demo-controller", "10.77.0.2", None)
NODES = (SavedHost("compute-1", "10.77.1.3", None), SavedHost("compute-2", "10.77.1.4", None))
UNREACHED = Completed((), 255, "", "ssh: connect to host 10.77.0.2 port 22: No route to host\n")


def _says(answer: Mapping[str, Any]) -> Completed:
    return Completed((), 0, json.dumps(answer) + "\n", "")


EMPTY, FULL = _says({"owners": {}, "complete": True}), _says({"owners": {"alice": 3}, "complete": True})
BROKEN = _says({"error": "mount: access denied"})


class SshDouble:
    """Stands for ssh: each host has one answer; behind the controller, nodes answer through it, and else directly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Completed]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.sent = b""
        monkeypatch.setattr(process, "run", self.run)

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        host, direct = argv[argv.index("--") - 1], "ProxyCommand=none" in argv
        self.asked.append(f"{host} directly" if direct else host)
        self.sent, self.command = options["input"], argv[-1]
        if host != CONTROLLER.name and not direct and self.answers[CONTROLLER.name].returncode == UNREACHED.returncode:
            return UNREACHED
        return self.answers[host]


def _look(
    tmp_path: Path,
    hosts: Callable[..., Sequence[SavedHost]] = lambda *, refresh=False: (CONTROLLER, *NODES),
    nodes: Callable[[], Sequence[SavedHost]] = tuple,
) -> ShareLook:
    return ShareLook(hosts, nodes, lambda: SshClient(ClusterPaths(tmp_path), None))


def test_the_controller_is_asked_with_the_agent_of_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = SshDouble(monkeypatch, {CONTROLLER.name: FULL})
    assert _look(tmp_path)(SHARE) == UserFiles({"alice": 3})
    assert ssh.asked == [CONTROLLER.name]
    assert ssh.command.endswith("home-files 10.77.1.2:/mnt/home")
    assert "gpucluster/node_agent/home_files.py" in zipfile.ZipFile(BytesIO(ssh.sent)).namelist()


def test_on_a_further_share_every_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    ssh = SshDouble(monkeypatch, {CONTROLLER.name: FULL})
    data = replace(HOME, name="demo-data", has_homes=False, sources=("10.77.1.2:/data",))
    guard = DataGuard(lambda: cast(FileSystems, FileSystemsDouble(data)), _look(tmp_path))
    with pytest.raises(DataGuardError, match="demo-data holds 3 files"):
        guard.release((), run, delete_data=False)
    assert ssh.command.endswith("home-files --all 10.77.1.2:/data")


def test_a_node_is_asked_where_the_controller_can_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SshDouble(monkeypatch, {CONTROLLER.name: BROKEN, NODES[0].name: UNREACHED, NODES[1].name: FULL})
    assert _look(tmp_path)(SHARE) == UserFiles({"alice": 3})


def test_a_node_is_asked_past_a_controller_that_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = SshDouble(monkeypatch, {CONTROLLER.name: UNREACHED, NODES[0].name: UNREACHED, NODES[1].name: EMPTY})
    assert _look(tmp_path)(SHARE) == NOBODY
    assert "compute-2 directly" in ssh.asked


def test_hosts_are_located_again_if_those_of_the_cache_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = SavedHost("old-controller", "10.77.0.9", None)
    SshDouble(monkeypatch, {"old-controller": UNREACHED, CONTROLLER.name: FULL})
    look = _look(tmp_path, hosts=lambda *, refresh=False: (CONTROLLER,) if refresh else (stale,))
    assert look(SHARE) == UserFiles({"alice": 3})


def test_the_nodes_of_a_cluster_without_a_controller_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SshDouble(monkeypatch, {NODES[0].name: BROKEN, NODES[1].name: FULL, CONTROLLER.name: EMPTY})
    assert _look(tmp_path, hosts=lambda *, refresh=False: (), nodes=lambda: NODES)(SHARE) == UserFiles({"alice": 3})


def test_where_no_host_can_look_the_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = SshDouble(monkeypatch, {CONTROLLER.name: UNREACHED, **{node.name: UNREACHED for node in NODES}})
    assert _look(tmp_path)(SHARE) == (
        "demo-controller can't be reached: ssh: connect to host 10.77.0.2 port 22: No route to host, "
        "and 2 other hosts can't tell either"
    )
    assert _look(tmp_path, hosts=lambda *, refresh=False: ())(SHARE) == "no host of the cluster is left to ask"
    ssh.asked.clear()
    assert _look(tmp_path)(()) == "no host can mount it, because it has no export"
    assert ssh.asked == []


def test_a_failure_to_locate_or_a_missing_answer_is_not_an_empty_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: Any) -> Sequence[SavedHost]:
        raise CloudError("the cloud answered 500")

    assert _look(tmp_path, hosts=refused)(SHARE) == "the cloud answered 500"
    for printed in ("", "{}", "7", "null", '{"owners": []}', '{"owners": {"alice": "x"}, "complete": true}'):
        answer = Completed((), 0, printed, "sudo: a password is required\n")
        SshDouble(monkeypatch, {CONTROLLER.name: answer})
        look = _look(tmp_path, hosts=lambda *, refresh=False: (CONTROLLER,))
        assert look(SHARE) == "demo-controller: sudo: a password is required", printed

    def timeout(*_: Any, **__: Any) -> Completed:
        raise ProcessError("ssh did not end within 1200 s", returncode=124)

    monkeypatch.setattr(process, "run", timeout)
    assert "ssh did not end" in str(_look(tmp_path, hosts=lambda *, refresh=False: (CONTROLLER,))(SHARE))
