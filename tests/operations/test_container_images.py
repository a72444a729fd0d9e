"""The operator's side of container images: what is asked, how answers are taken, the command line.

The double of ssh answers what a test sets. What the program on the controller does is tested in tests/ansible.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli, images
from gpucluster.cluster import Cluster
from gpucluster.cluster.images import ImageOperations
from gpucluster.errors import InputError, ProcessError, ToolError
from gpucluster.events import Event
from gpucluster.spec import load
from tests.spec.spec_texts import LOCAL
from tests.workspace.known_hosts import save_controller

_SSH = """#!{python} -S
# A double of ssh: writes down its call, and gives the answer of the test.
import json, pathlib, sys
here = pathlib.Path(sys.argv[0]).parent
(here / "call.json").write_text(json.dumps({{"argv": sys.argv[1:], "stdin": sys.stdin.read()}}))
answer = json.loads((here / "answer.json").read_text())
sys.stderr.write(answer["stderr"]); sys.stderr.flush()
sys.stdout.write(answer["stdout"])
sys.exit(answer["status"])
"""
IMAGE: dict[str, Any] = {
    "name": "org+tool+1.0", "path": "/mnt/home/.gpucluster/images/org+tool+1.0.sqsh", "size": 1_400_000_000,
    "created_at": "2026-01-01T00:00:00+00:00", "uri": "docker://registry.example#org/tool:1.0", "user": "alice",
}  # fmt: skip
URI: str = IMAGE["uri"]
WITHOUT_SLURM = (
    LOCAL.replace("slurm:\n", "slurm:\n  enabled: false\n")
    .replace("max_count: 4", "count: 4")
    .replace("- name: bob\n", "- name: bob\n      uid: 10002\n")
)
NASTY = "x'; reboot #\x1b[2J\n"


class Images:
    """A cluster whose controller is the double."""

    def __init__(self, folder: Path, text: str) -> None:
        self.programs = folder / "bin"
        self.file = folder / "cluster.yml"
        self.file.write_text(text)
        self.events: list[Event] = []
        self.cluster = Cluster(load(self.file), on_event=self.events.append)

    @property
    def call(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.programs / "call.json").read_text())
        return found

    @property
    def was_asked(self) -> bool:
        return (self.programs / "call.json").exists()

    def answers(self, answer: Any, *, stderr: str = "", status: int = 0) -> None:
        stdout = answer if isinstance(answer, str) else json.dumps(answer)
        (self.programs / "answer.json").write_text(json.dumps({"stdout": stdout, "stderr": stderr, "status": status}))

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--file", str(self.file)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(_SSH.format(python=sys.executable))
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    save_controller(tmp_path, "controller")
    return tmp_path


@pytest.fixture
def controller(folder: Path) -> Images:
    return Images(folder, LOCAL + "containers:\n  runtimes: [enroot]\n")


def test_an_import_is_one_question_and_its_progress_is_told(controller: Images) -> None:
    controller.answers({"result": {"image": IMAGE, "changed": True}}, stderr="srun: job 7 queued\n\n\x1b[2Jlayers\n")
    done = controller.cluster.container_images.import_uri(URI, pool="cpu", name=NASTY, force=True)
    assert done.changed
    assert done.image.size == IMAGE["size"]
    call = controller.call
    assert call["argv"][-2:] == ["--", "sudo -n /usr/local/sbin/gpucluster-image request"]
    given = {"uri": URI, "pool": "cpu", "user": "alice", "name": NASTY, "force": True}
    assert json.loads(call["stdin"]) == {"operation": "image.import", "arguments": given}
    told = [(event.name, event.message) for event in controller.events if event.kind == "resource"]
    assert told == [("container image", "srun: job 7 queued"), ("container image", "\\x1b[2Jlayers")]


def test_the_controller_knows_the_default_pool_and_name(controller: Images) -> None:
    controller.answers({"result": {"image": IMAGE, "changed": False}})
    assert not controller.cluster.container_images.import_uri(URI, user="bob").changed
    assert json.loads(controller.call["stdin"])["arguments"] == {"uri": URI, "user": "bob", "force": False}


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (LOCAL, {}, "enroot is not among containers.runtimes"),
        (WITHOUT_SLURM, {}, "needs Slurm, and the scheduler of this cluster is none"),
        (LOCAL + "containers: {runtimes: [enroot]}\n", {"pool": NASTY}, "there is no pool x'; reboot"),
        (
            LOCAL.partition("users:")[0] + "containers: {runtimes: [enroot]}\n",
            {},
            "there is no user under users.people",
        ),
    ],
    ids=["no enroot", "no slurm", "no such pool", "nobody"],
)
def test_what_can_not_be_is_reported_before_any_request(
    folder: Path, text: str, given: dict[str, Any], message: str
) -> None:
    controller = Images(folder, text)
    with pytest.raises(InputError) as caught:
        controller.cluster.container_images.import_uri(URI, **given)
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert caught.value.hint
    assert not controller.was_asked


@pytest.mark.parametrize(
    ("answer", "stderr", "status", "kind", "message"),
    [
        (
            {"error": {"message": "there is no user x\x1b", "hint": "Look"}},
            "",
            2,
            InputError,
            "there is no user x\\x1b. Look",
        ),
        ({"error": {"message": "it failed", "hint": ""}}, "", 1, ToolError, "it failed"),
        ("", "sudo: /usr/local/sbin/gpucluster-image: command not found\n", 1, ToolError, "Run: gpucluster apply"),
        ("", "ssh: connect to host 10.0.0.2: timed out\n", 255, ProcessError, "the controller can't be reached"),
        ("oh", "Traceback\nKeyError: 1\n", 1, ProcessError, "KeyError: 1"),
        ({"result": {"image": {"name": "x"}, "changed": True}}, "", 0, ToolError, "`image.path` is missing"),
        ([], "", 0, ToolError, "neither a result nor an error"),
    ],
)
def test_other_answers(controller: Images, answer: Any, stderr: str, status: int, kind: type, message: str) -> None:
    controller.answers(answer, stderr=stderr, status=status)
    with pytest.raises(kind) as caught:
        controller.cluster.container_images.import_uri(URI)
    assert message in str(caught.value)


def test_import_on_the_command_line(controller: Images) -> None:
    controller.answers({"result": {"image": IMAGE, "changed": True}}, stderr="srun: job 7 queued\n")
    done = controller.run("image", "import", URI, "--output", "text")
    assert done.exit_code == 0, done.output
    assert "srun: job 7 queued" in done.output
    assert f"org+tool+1.0 is imported: 1.4 GB\nNext: srun --container-image={IMAGE['path']} COMMAND" in done.output
    done = controller.run("image", "import", URI, "--output", "json")
    assert json.loads(done.stdout.splitlines()[-1])["data"] == {
        "command": "image import",
        "image": IMAGE,
        "changed": True,
    }


def test_list_and_remove_on_the_command_line(controller: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageOperations, "list", lambda _: ())
    controller.answers({"result": {"images": [IMAGE]}})
    text = controller.run("image", "list", "--output", "text").output
    assert "there are no baked images" in text
    assert [line.split()[:3] for line in text.splitlines() if "org+" in line] == [["org+tool+1.0", "1.4", "GB"]]
    data = json.loads(controller.run("image", "list", "--output", "json").stdout.splitlines()[-1])["data"]
    assert (data["images"], data["container_images"]) == ([], [IMAGE])
    controller.answers({"result": {"name": IMAGE["name"]}})
    assert controller.run("image", "remove", IMAGE["name"]).output.strip() == "org+tool+1.0 is removed"
    controller.answers({"error": {"message": "there is no image x", "hint": ""}}, status=2)
    assert controller.run("image", "remove", "x").exit_code == 2


def test_where_there_can_be_none_the_list_sends_no_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageOperations, "list", lambda _: ())
    without = Images(folder, LOCAL)
    done = without.run("image", "list", "--output", "text")
    assert (done.exit_code, done.output.strip()) == (0, "there are no baked images")
    (folder / ".gpucluster" / "hosts.json").unlink()
    not_built = Images(folder, LOCAL + "containers: {runtimes: [enroot]}\n")
    assert "there are no container images" in not_built.run("image", "list", "--output", "text").output
    assert not not_built.was_asked


def test_sizes_and_ages_for_users() -> None:
    assert [images._size(size) for size in (0, 999, 1500, 2.5e9, 3e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 GB",
        "3.0 TB",
    ]
    assert [images._age(age) for age in (5, 125, 7300, 200000)] == ["now", "2 min", "2 h", "2 d"]
