"""Wheels for the controller. Packages from elsewhere are doubles: empty wheels with the right names."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpucluster import paths, process
from gpucluster.artifacts import agent_archive, wheels
from gpucluster.errors import EnvironmentFault
from gpucluster.events import Event, ignore

pytestmark = pytest.mark.slow

TARGET = wheels.Target(f"{sys.version_info.major}.{sys.version_info.minor}", "x86_64")


#: For a Python before 3.12 and for one since.
ANSIBLE = ("2.19.4", "2.21.2")


def _double(folder: Path, name: str, version: str) -> None:
    """An empty wheel."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of an operator's own wheels; the cache is a scratch folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "packages"
    folder.mkdir()
    for version in ANSIBLE:
        _double(folder, "ansible_core", version)
    for name, version in (
        *(("clustershell", "1.9.3"), ("oci", "2.160.0"), ("prometheus_client", "0.21.0")),
        *(("pyyaml", "6.0.2"), ("oci", "2.1.0")),
    ):
        _double(folder, name, version)
    return folder


def _ensure(packages: Path | None, on_event: Callable[[Event], None] = ignore) -> Path:
    return wheels.ensure(TARGET, packages, "1.2.3", on_event)


def _index(folder: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((folder / "wheels.json").read_text())
    return loaded


def _own(folder: Path) -> Path:
    (found,) = folder.glob("gpucluster-*.whl")
    return found


def test_the_set_is_complete_and_its_index_names_every_file(packages: Path) -> None:
    folder = _ensure(packages)
    index = _index(folder)
    present = sorted(file.name for file in folder.glob("*.whl"))
    assert index["wheels"] == present
    assert index["sha256"] == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in present}
    assert (index["version"], index["python"]) == (1, TARGET.python)
    # The newest that the ranges allow, and nothing else.
    assert [name.partition("-py3")[0] for name in present if not name.startswith("gpucluster")] == [
        f"ansible_core-{ANSIBLE[TARGET.python >= '3.12']}",
        "clustershell-1.9.3",
        "oci-2.160.0",
        "prometheus_client-0.21.0",
        "pyyaml-6.0.2",
    ]


def test_the_requirements_are_those_of_the_package_for_that_python() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    for python, ansible in (("3.11", "2.19"), ("3.12", "2.21"), ("3.13", "2.21")):
        needed = [Requirement(line) for line in wheels.requirements(python)]
        names = ["ansible-core", "clustershell", "oci", "prometheus-client", "pyyaml"]
        assert [canonicalize_name(one.name) for one in needed] == names
        assert f"{ansible}.1" in needed[0].specifier
        specifiers = {str(Requirement(line).specifier) for line in declared}
        assert {str(one.specifier) for one in needed} <= specifiers
        assert not any(one.marker for one in needed)


def test_what_an_index_gives_must_have_a_locked_hash(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is a folder; the packages are doubles."""
    index = tmp_path / "index"
    for name in ("oci", "pyyaml"):
        (index / name).mkdir(parents=True)
        links = "".join(f'<a href="{file.as_uri()}">{file.name}</a>' for file in sorted(packages.glob(f"{name}-*")))
        (index / name / "index.html").write_text(links)
    for name in list(os.environ):
        if name.upper().startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.as_uri())
    sums = {file.name.split("-")[0]: hashlib.sha256(file.read_bytes()).hexdigest() for file in packages.glob("*6*.whl")}
    lock = tmp_path / "requirements.lock"
    monkeypatch.setattr(wheels, "requirements_lock", lambda: lock)
    text = (
        f"# about\n\n# -- controller\noci==2.160.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{{oci}}\n"
        f"pyyaml==6.0.2 ; python_full_version >= '3.11' \\\n    --hash=sha256:{{pyyaml}}\n"
        f"pyyaml==5.0 ; python_full_version < '3.11' \\\n    --hash=sha256:{'0' * 64}\n\n# -- run\nnothing==1\n"
    )
    lock.write_text(text.format(**sums))
    names = [file.name.partition("-py3")[0] for file in sorted(_ensure(None).glob("*.whl"))]
    assert names[-2:] == ["oci-2.160.0", "pyyaml-6.0.2"], "and not what they require"
    assert len(names) == 3
    lock.write_text(text.format(oci=sums["oci"], pyyaml="f" * 64))
    with pytest.raises(EnvironmentFault, match="HASHES") as caught:
        _ensure(None)
    assert "software.wheels" in caught.value.hint


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_is_locked_fits_what_is_required(python: str) -> None:
    locked = {
        canonicalize_name(Requirement(line.partition(" --hash=")[0]).name): line
        for line in wheels.locked(python, paths.requirements_lock().read_text())
    }
    assert all(line.count(" --hash=sha256:") >= 1 for line in locked.values())
    for line in wheels.requirements(python):
        needed = Requirement(line)
        version = locked[canonicalize_name(needed.name)].split("==")[1].split()[0]
        assert needed.specifier.contains(version), line
    assert "cffi" in locked, "what they require in turn"


def test_the_second_time_costs_nothing(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _ensure(packages)
    said: list[Event] = []
    monkeypatch.setattr(process, "run", lambda *_args, **_more: pytest.fail("a program was started"))
    assert _ensure(packages, said.append) == first
    assert said == []


def test_our_own_wheel_is_whole_and_pip_takes_it(packages: Path, tmp_path: Path) -> None:
    wheel = _own(_ensure(packages))
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        record = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))}
        assert set(record) == names
        for name, told in record.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert told == ("" if name.endswith("/RECORD") else f"sha256={digest}"), name
        points = configparser.ConfigParser()
        points.read_string(archive.read(f"{info}/entry_points.txt").decode())
        assert dict(points["console_scripts"]) == {
            "gpucluster-autoscaler": "gpucluster.autoscaler.__main__:main",
            "gpucluster-failover": "gpucluster.failover.__main__:main",
        }
    assert {"gpucluster/autoscaler/policy.py", "gpucluster/errors.py", "gpucluster/_data/ansible/site.yml"} <= names
    assert not [name for name in names if "localcloud" in name or "__pycache__" in name or "/." in name]
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", f"--target={target}"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    code = "import gpucluster.autoscaler.policy, gpucluster.paths; print(gpucluster.paths.ansible_dir())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {code}"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == str(target / "gpucluster" / "_data" / "ansible")


def test_the_controller_builds_the_same_agent_for_nodes(packages: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(_own(_ensure(packages))) as archive:
        archive.extractall(tmp_path / "installed")
    assert (tmp_path / "installed/gpucluster/_data/ansible/lookup_plugins/gpucluster_agent.py").is_file()
    code = "from gpucluster.artifacts import agent_archive; sys.stdout.buffer.write(agent_archive.of_node())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); {code}"],
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    assert done.stdout == agent_archive.of_node()


def test_another_file_is_another_wheel_and_the_same_files_are_the_same(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _ensure(packages)
    bytes_of_first, name_of_first = _own(first).read_bytes(), _own(first).name
    for file in first.iterdir():
        file.unlink()
    first.rmdir()
    again = _ensure(packages)
    assert (again, _own(again).read_bytes()) == (first, bytes_of_first)

    real = list(wheels._own_files())
    changed = [(name, data + b"\n#") if name.endswith("policy.py") else (name, data) for name, data in real]
    monkeypatch.setattr(wheels, "_own_files", lambda: iter(changed))
    other = _ensure(packages)
    assert other != first
    assert _own(other).name != name_of_first
    assert _index(other)["hash"] != _index(first)["hash"]


def test_only_a_few_sets_are_kept(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        monkeypatch.setattr(wheels, "_own_files", lambda number=number: iter([("gpucluster/x.py", b"%d" % number)]))
        last = _ensure(packages)
        os.utime(last, (number, number))
    kept = list(last.parent.glob("set-*"))
    assert len(kept) == 3
    assert last in kept
    assert len(list(last.parent.glob("packages-*"))) == 1


def test_a_directory_that_lacks_a_package_names_it(packages: Path) -> None:
    next(packages.glob("pyyaml*")).unlink()
    with pytest.raises(EnvironmentFault, match="pyyaml") as caught:
        _ensure(packages)
    assert caught.value.where == str(packages)
    assert "software.wheels" in caught.value.hint
    root = packages.parent / "cache" / "gpucluster" / "wheels"
    assert list(root.iterdir()) == [], "nothing half made may be left"


def test_no_way_to_an_index_is_told_with_what_to_do(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(EnvironmentFault) as caught:
        _ensure(None)
    assert "are not available" in caught.value.what
    assert "software.wheels" in caught.value.hint
    assert "\n" not in caught.value.what


def test_a_full_disk_shows_no_traceback(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        _ensure(packages)
