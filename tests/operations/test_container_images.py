"""The operator's side of container images: what is asked, how answers are taken, the command line.

The double of ssh answers what a test sets. What the program on the controller does is tested in tests/ansible.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import InputError, ProcessError, ToolError
from tests.operations.image_cluster import IMAGE, Images, prepared
from tests.spec.spec_texts import LOCAL

URI: str = IMAGE["uri"]
WITHOUT_SLURM = (
    LOCAL.replace("slurm:\n", "slurm:\n  enabled: false\n")
    .replace("max_count: 4", "count: 4")
    .replace("- name: bob\n", "- name: bob\n      uid: 10002\n")
)
NASTY = "x'; reboot #\x1b[2J\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


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
