"""The controller's program for container images, run as it stands, with doubles of srun and scancel.

The double of srun runs the command on this machine as the user that it was started as, and `enroot` is a double, too,
which writes what the test states. Not proved here: Slurm, a registry, and the real Enroot.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.controller.images.image_site import NAME, SLOW, URI, USER, Controller, until_it_waits
from tests.waiting import PATIENCE_S

DIGEST = "0123456789abcdef" * 4

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="the program is root's"), pytest.mark.slow]


def test_an_import_is_a_job_of_the_user(controller: Controller) -> None:
    status, answer, told = controller.fetch()
    assert (status, answer["result"]["changed"]) == (0, True), answer
    image = answer["result"]["image"]
    file = Path(image["path"])
    assert file == controller.images / f"{NAME}.sqsh"
    assert (image["uri"], image["user"], image["size"]) == (URI, USER, len("hsqs and layers"))
    found = file.stat()
    assert (found.st_uid, oct(found.st_mode & 0o7777)) == (0, "0o644")
    assert controller.left() == [f"{NAME}.json", f"{NAME}.sqsh"]
    assert all(
        oct(folder.stat().st_mode & 0o7777) == "0o755" for folder in (controller.images, controller.images.parent)
    )

    words = controller.told("srun.words").splitlines()
    assert {
        "--partition=compute",
        "--exclude=cpu-[1-4],cpu-e[1-8]",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=8",
    } <= {*words}
    assert words[-5:] == [
        "enroot",
        "import",
        "--output",
        str(controller.images / f".import-{NAME}" / "image.sqsh"),
        URI,
    ]
    assert controller.told("srun.user").strip() == USER
    environment = controller.told("srun.environment")
    assert "SECRET" not in environment
    assert f"HOME={pwd.getpwnam(USER).pw_dir}\n" in environment
    assert "queued and waiting" in told
    assert not controller.told("scancel.words")


def test_the_second_time_it_is_there_already(controller: Controller) -> None:
    controller.fetch()
    controller.enroot("exit 9")
    assert controller.fetch()[1]["result"]["changed"] is False
    assert controller.fetch(force=True)[1]["error"]["message"].startswith("the import failed with status 9")
    # What was there is there still.
    assert controller.ask("image.list")[1]["result"]["images"][0]["name"] == NAME
    controller.enroot("printf 'hsqs, newer' > \"$3\"")
    status, answer, _ = controller.fetch(force=True)
    assert (status, answer["result"]["image"]["size"]) == (0, len("hsqs, newer"))


def test_another_image_of_this_name_is_not_taken_for_it(controller: Controller) -> None:
    controller.fetch()
    other = "docker://other.example#org/tool:1.0"
    status, answer, _ = controller.fetch(uri=other)
    assert status == 2
    assert f"already, from {URI}" in answer["error"]["message"]
    assert controller.fetch(uri=other, name="mine")[0] == 0
    (controller.images / f"{NAME}.json").unlink()
    assert "of unknown origin" in controller.fetch()[1]["error"]["message"]


def test_an_image_by_its_digest_lies_beside_the_one_by_its_tag(controller: Controller) -> None:
    controller.fetch()
    pinned = f"{URI}@sha256:{DIGEST}"
    status, answer, _ = controller.fetch(uri=pinned)
    assert (status, answer["result"]["image"]["name"]) == (0, f"{NAME}+{DIGEST[:12]}"), answer
    assert controller.told("srun.words").splitlines()[-1] == pinned
    listed = controller.ask("image.list")[1]["result"]["images"]
    assert {image["name"]: image["uri"] for image in listed} == {NAME: URI, f"{NAME}+{DIGEST[:12]}": pinned}


def test_list_and_remove(controller: Controller) -> None:
    assert controller.ask("image.list") == (0, {"result": {"images": []}}, "")
    controller.fetch(pool="small")
    assert "--exclude" not in controller.told("srun.words")
    (controller.images / ".import-x").mkdir()
    (controller.images / "link.sqsh").symlink_to("/etc/passwd")
    assert [image["name"] for image in controller.ask("image.list")[1]["result"]["images"]] == [NAME]
    assert controller.ask("image.remove", name=f"{NAME}.sqsh")[1] == {"result": {"name": NAME}}
    status, answer, _ = controller.ask("image.remove", name=NAME)
    assert (status, answer["error"]["message"]) == (2, f"there is no image {NAME}")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "[ERROR] URL https://registry.example/v2/ returned error code: 401 Unauthorized",
            ".config/enroot/.credentials",
        ),
        ("curl: (6) Could not resolve host: registry.example", "must reach the registry"),
        ("mksquashfs: Write failed because No space left on device", "Free space"),
        ("slurmstepd: error: execve(): enroot: No such file or directory", "Run: gpucluster apply"),
        ("srun: error: Job allocation 7 has been revoked", "Run the same command again"),
        (
            "srun: error: Unable to create step for job 28: Job/step already completing or completed",
            "Run the same command again",
        ),
        (
            "[INFO] Authenticating with user: <anonymous>; srun: error: Job allocation 7 has been revoked",
            "Run the same command again",
        ),
        # Enroot 4.1 with a registry that asks for basic authentication: its last line, without and with credentials.
        ("[INFO] Authenticating with user: <anonymous>", "HOST is without its port"),
        ("[INFO] Authenticating with user: alice; [INFO] Using credentials from file: /h/.credentials", ".credentials"),
        ("[INFO] Authenticating with user: <anonymous>; [INFO] Fetching image manifest", ""),
        ("something else", ""),
    ],
)
def test_a_failure_has_its_last_words_and_leaves_nothing(controller: Controller, said: str, hint: str) -> None:
    controller.enroot(
        f"printf 'half' > \"$3\"; for i in 1 2 3 4 5 6 7 8; do echo line $i; done; echo '{said}' >&2; exit 3"
    )
    status, answer, told = controller.fetch()
    assert status == 1
    assert said in answer["error"]["message"]
    assert "line 1;" not in answer["error"]["message"]
    assert "line 1\n" in told
    assert hint in answer["error"]["hint"]
    assert bool(hint) == bool(answer["error"]["hint"])
    assert controller.left() == []


@pytest.mark.parametrize(
    "does",
    [
        "printf 'no image' > \"$3\"",
        "exit 0",
        "ln -s $DOUBLES/secret \"$3\"",
        "mkdir \"$3\"; ln -s $DOUBLES/folder \"$3/x\"",
        "mkfifo \"$3\"",
        "printf hsqs > \"$3\"; ln \"$3\" \"$3.second\"",
    ],
    ids=["other bytes", "nothing", "link", "directory", "fifo", "second name"],
)  # fmt: skip
def test_what_is_not_an_image_is_not_published(controller: Controller, does: str) -> None:
    secret, inside = controller.folder / "told" / "secret", controller.folder / "told" / "folder" / "file"
    inside.parent.mkdir()
    for file in (secret, inside):
        file.write_text("root's")
        file.chmod(0o600)
    controller.enroot(does)
    status, answer, _ = controller.fetch()
    assert status == 1, answer
    assert controller.left() == []
    for file in (secret, inside):
        found = file.stat()
        assert (file.read_text(), found.st_uid, found.st_mode & 0o7777, found.st_nlink) == ("root's", 0, 0o600, 1)


def test_the_next_import_goes_on_where_one_was_killed(controller: Controller) -> None:
    controller.enroot(SLOW)
    child = controller.start("image.import", uri=URI, user=USER)
    assert child.stderr is not None
    until_it_waits(child)
    child.kill()
    child.communicate()
    assert controller.left() == [f".import-{NAME}"]
    assert controller.ask("image.list")[1]["result"]["images"] == []
    controller.enroot("printf 'hsqs whole' > \"$3\"")
    status, answer, told = controller.fetch()
    assert status == 0, answer
    assert "an earlier import" in told
    assert f"--name=gpucluster-image/{NAME}" in controller.told("scancel.words")
    assert controller.left() == [f"{NAME}.json", f"{NAME}.sqsh"]


def test_two_at_once_make_one_job(controller: Controller) -> None:
    controller.enroot(SLOW + "; echo once >> $DOUBLES/imports")
    first = controller.start("image.import", uri=URI, user=USER)
    until_it_waits(first)
    second = controller.start("image.import", uri=URI, user=USER)
    assert second.stderr is not None
    assert "another import of" in second.stderr.readline()
    assert "is being imported" in controller.ask("image.remove", name=NAME)[1]["error"]["message"]
    controller.let_go()
    answers = [json.loads(child.communicate(timeout=PATIENCE_S)[0])["result"]["changed"] for child in (first, second)]
    assert answers == [True, False]
    assert controller.told("imports") == "once\n"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"user": "root"}, "root has no jobs"),
        ({"user": "no such"}, "there is no user 'no such'"),
        ({"user": None}, "there is no user 'None'"),
        ({"pool": "x"}, "there is no pool x"),
        ({"name": "../../etc/passwd"}, "can't be the name"),
        ({"name": ".hidden"}, "can't be the name"),
        ({"name": "a" * 10000}, "can't be the name"),
        ({"uri": "dockerd://x"}, "not the address"),
        ({"uri": "-o/etc/passwd"}, "not the address"),
        ({"uri": "docker://a$(reboot)"}, "not the address"),
        ({"uri": "docker://registry.example#a b"}, "not the address"),
        ({"uri": "docker://registry.example#a:1\n"}, "not the address"),
        ({"uri": f"docker://registry.example#a@sha256:{DIGEST[:-1]}"}, "not the address"),
        ({"uri": f"docker://a@sha256:{DIGEST[:-1]}"}, "not the address"),
        ({"uri": f"docker://registry.example#a@sha256:{DIGEST.upper()}"}, "not the address"),
        ({"uri": f"docker://registry.example#a@sha512:{DIGEST}"}, "not the address"),
        ({"uri": f"docker://registry.example#a@sha256:{DIGEST}:1"}, "not the address"),
    ],
)
def test_what_can_not_be_had_is_refused(controller: Controller, request_: dict[str, Any], message: str) -> None:
    status, answer, _ = controller.fetch(**request_)
    assert status == 2
    assert message in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 200
    assert not controller.told("srun.words")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"operation": "x"}', '{"operation": "image.import", "arguments": 1}'])
def test_what_is_not_a_request_is_refused(controller: Controller, text: str) -> None:
    done = subprocess.run(
        controller.argv(),
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "message" in json.loads(done.stdout)["error"]) == (2, True)
