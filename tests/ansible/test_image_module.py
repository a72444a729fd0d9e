"""The module gpucluster_images with a scripted runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load

images = load("library/gpucluster_images.py")


def runtime(answers: dict[str, tuple[int, str, str]]) -> tuple[Any, FakeModule]:
    module = FakeModule(answers=answers)
    module.params = {"program": ["docker"], "timeout": 60}
    return images.Runtime(module), module


def test_a_pull_that_takes_too_long_is_ended_and_the_image_is_named() -> None:
    one, module = runtime({"pull": (124, "", "")})
    with pytest.raises(ModuleFailed, match=r"registry\.example/big:1 could not be pulled: it took more than 60 s"):
        one.pull("registry.example/big:1")
    assert module.calls == ["timeout 60 docker pull --quiet registry.example/big:1"]


def test_an_archive_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    one, _module = runtime({"save": (1, "", "no space left on device")})
    with pytest.raises(ModuleFailed, match="no space left"):
        one.save("registry.example/big:1", tmp_path / "big.tar")
    assert list(tmp_path.iterdir()) == []


def test_archives_of_images_that_are_not_listed_go_and_other_files_stay(tmp_path: Path) -> None:
    wanted, other = images.archive_name("registry.example/a:1"), images.archive_name("registry.example/b:1")
    for name in (wanted, other, f".{other}.part", "of-somebody-else.tar", "notes"):
        (tmp_path / name).write_text("")
    found = {file.name for file in images.surplus(tmp_path, ["registry.example/a:1"])}
    assert found == {other, f".{other}.part"}
    assert images.surplus(tmp_path / "nowhere", []) == []


def test_two_images_never_share_a_file() -> None:
    names = {images.archive_name(name) for name in ("a/b:1", "a_b:1", "a/b@1", "../../etc/passwd", "a/b:1 ")}
    assert len(names) == 5
    assert not any("/" in name for name in names)
