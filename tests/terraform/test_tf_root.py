"""The HCL itself: formatted, valid, documented, and without anything that the real provider lacks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucluster.localcloud.provider.schema import catalogue
from gpucluster.paths import terraform_dir

FOLDERS = sorted({path.parent for path in terraform_dir().rglob("*.tf") if ".terraform" not in path.parts})


def _ids(path: Path) -> str:
    return path.name


def test_the_files_are_formatted(terraform: str, terraform_environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [terraform, "fmt", "-check", "-recursive", "-diff", str(terraform_dir())],
        env=dict(terraform_environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=_ids)
@pytest.mark.parametrize("kind", ["variable", "output"])
def test_variables_and_outputs_are_described_and_in_order(folder: Path, kind: str) -> None:
    file = folder / f"{kind}s.tf"
    blocks = re.split(rf'^{kind} "', file.read_text(), flags=re.MULTILINE)[1:]
    names = [block.partition('"')[0] for block in blocks]
    assert names == sorted(names)
    assert all(re.search(r"^  description = ", block, re.MULTILINE) for block in blocks)
    if kind == "variable":
        assert all(re.search(r"^  type +=", block, re.MULTILINE) for block in blocks)
    others = [path.name for path in folder.glob("*.tf") if path != file and f'\n{kind} "' in path.read_text()]
    assert others == []


@pytest.mark.parametrize("folder", FOLDERS, ids=_ids)
def test_every_folder_states_which_provider_it_needs(folder: Path) -> None:
    text = (folder / "versions.tf").read_text()
    assert re.search(r'source\s+= "oracle/oci"', text)
    assert re.search(r'required_version = ">= 1\.5"', text)


def test_the_root_has_no_backend() -> None:
    assert not [path for path in terraform_dir().rglob("*.tf") if re.search(r'^\s*backend\s+"', path.read_text(), re.M)]


def test_the_root_uses_what_the_stand_in_knows() -> None:
    """`terraform validate` with the stand-in's schema is then also a check against the real one."""
    text = "\n".join(path.read_text() for path in terraform_dir().rglob("*.tf"))
    assert set(re.findall(r'^resource "(oci_\w+)"', text, re.M)) == set(catalogue().resources)
    assert set(re.findall(r'^data "(oci_\w+)"', text, re.M)) <= set(catalogue().data_sources)
