"""GPUs that a CDI specification offers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.podman import cdi
from tests.cdi import specification, uuid
from tests.localcloud.compute.test_machine_gpus import KIND

# As in Windows' Linux, where all GPUs have one file.
OF_WINDOWS = {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/dxg"}]}}


def offered(folder: Path, text: Any, name: str = "gpus.yaml") -> list[tuple[str, int]]:
    (folder / name).write_text(json.dumps(text) if name.endswith("json") else yaml.safe_dump(text))
    return [(gpu.device, gpu.number) for gpu in cdi.machine_gpus(KIND, [folder])]


@pytest.mark.parametrize("name", ["gpus.yaml", "gpus.json"])
def test_each_card_is_offered_once_by_the_name_that_stays_with_it(tmp_path: Path, name: str) -> None:
    found = offered(tmp_path, specification(KIND, [5, 3]), name)
    assert found == [(f"{KIND}={uuid(3)}", 3), (f"{KIND}={uuid(5)}", 5)]


def test_without_uuids_the_index_is_the_name_and_one_card_is_not_all(tmp_path: Path) -> None:
    text = specification(KIND, [0])
    text["devices"] = [each for each in text["devices"] if not each["name"].startswith("GPU-")]
    assert offered(tmp_path, text) == [(f"{KIND}=0", 0)]


def test_a_divided_card_is_not_offered(tmp_path: Path) -> None:
    text = specification(KIND, [0, 1])
    for device in text["devices"]:
        nodes = device["containerEdits"]["deviceNodes"]
        if len(nodes) == 1 and nodes[0]["path"] == "/dev/nvidia0":
            nodes.append({"path": "/dev/nvidia-caps/nvidia-cap21"})
    assert offered(tmp_path, text) == [(f"{KIND}={uuid(1)}", 1)]
    text["devices"] = [each for each in text["devices"] if each["name"] in ("0", uuid(0))]
    with pytest.raises(EnvironmentFault, match="its GPUs are divided"):
        offered(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no CDI specification"),
        ({"kind": "other.test/gpu", "devices": []}, "there is no CDI specification"),
        ("[", "there is no CDI specification"),
        ({"kind": KIND, "devices": []}, "names no device"),
        ({"kind": KIND, "devices": [OF_WINDOWS]}, "names no device"),
        ({"kind": KIND, "devices": [{"containerEdits": {}}]}, "can't be used"),
        ({"kind": KIND}, "can't be used"),
    ],
)  # fmt: skip
def test_what_can_not_be_used_reports_why_and_what_to_do(tmp_path: Path, text: Any, words: str) -> None:
    if text is not None:
        (tmp_path / "gpus.yaml").write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    with pytest.raises(EnvironmentFault, match=words) as caught:
        cdi.machine_gpus(KIND, [tmp_path / "missing", tmp_path])
    assert cdi.GENERATE in caught.value.hint
