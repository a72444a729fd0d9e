"""The wheel that users install, used in a folder that has nothing to do with the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import gpucluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAMS = {"gpucluster", "gpucluster-agent", "gpucluster-autoscaler"}


def run(argv: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`python -m build`, with the build backend of this environment: no package index is asked."""
    target = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)], target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel. Its dependencies are those of this environment."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    run([*pip, str(wheel)], target)
    return target


@pytest.fixture
def env(installed: Path, tmp_path: Path) -> dict[str, str]:
    # PYTHONPATH stands before the editable installation of the checkout.
    return {**os.environ, "PYTHONPATH": str(installed), "GPUCLUSTER_HOME": str(tmp_path / "cloud")}


def gpucluster_command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "gpucluster", *words]


def test_the_wheel_has_everything_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entries,) = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert {line.split(" = ")[0] for line in entries.splitlines() if " = " in line} == PROGRAMS
    assert "gpucluster/py.typed" in names  # type checkers of users read our annotations
    tracked = run(["git", "ls-files", "gpucluster", "ansible", "terraform", "requirements.lock"], ROOT).split()
    for file in tracked:
        place = file if file.startswith("gpucluster/") else f"gpucluster/_data/{file}"
        assert place in names or not (ROOT / file).is_file(), f"{file} is not in the wheel"
    assert {name.split("/")[0] for name in names} == {"gpucluster", f"gpucluster-{gpucluster.__version__}.dist-info"}


def test_the_command_works_outside_of_the_repository(installed: Path, env: dict[str, str], tmp_path: Path) -> None:
    places = "import gpucluster, gpucluster.paths as p; print(gpucluster.__file__, p.terraform_dir(), p.ansible_dir())"
    found = run([sys.executable, "-P", "-c", places], tmp_path, env).split()
    assert all(Path(place).is_relative_to(installed) for place in found), found
    assert gpucluster.__version__ in run(gpucluster_command("--version"), tmp_path, env)
    run(gpucluster_command("init"), tmp_path, env)
    run(gpucluster_command("validate"), tmp_path, env)


def test_the_playbooks_of_the_wheel_are_read_by_ansible(installed: Path, env: dict[str, str], tmp_path: Path) -> None:
    ansible = installed / "gpucluster" / "_data" / "ansible"
    program = Path(sys.executable).with_name("ansible-playbook")
    env = {**env, "ANSIBLE_CONFIG": str(ansible / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "ansible")}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {one: {ansible_connection: local}}}\n")
    for playbook in sorted(ansible.glob("*.yml")):
        run([str(program), "--syntax-check", "-i", str(inventory), str(playbook)], tmp_path, env)
