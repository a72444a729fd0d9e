"""The commands of container images: what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucluster.cli import images
from gpucluster.cluster.images import ImageOperations
from tests.operations.image_cluster import IMAGE, Images, prepared
from tests.operations.test_container_images import URI
from tests.spec.spec_texts import LOCAL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepared(tmp_path, monkeypatch)


@pytest.fixture
def controller(folder: Path) -> Images:
    return Images(folder, LOCAL + "containers:\n  runtimes: [enroot]\n")


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
