"""Slurm's packages: built for real from a release's source with its own recipe, kept, and installed on the same system.

Debian 13 and the source of 24.11, which Debian's archive has. The build has no optimization, to save time; the roles
build with it. It takes some minutes of two processors, so it runs by `make test-build`, and in any run that finds
packages of an earlier one. The recipe for rpm has not run anywhere: no archive of such a system is in reach.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.in_container import Host, host
from tests.ansible.loading import FakeModule, ModuleFailed, load, read
from tests.ansible.render import evaluate, host_facts, variables
from tests.slurm_sources import CACHE, source
from tests.waiting import PATIENCE_S

build = load("library/gpucluster_slurm_build.py")
aside = load("library/gpucluster_slurm_aside.py")
FOLDER = "/var/lib/gpucluster-software"
BUILD_SECONDS = 780


# --- for real, in a container -----


def _task(entry: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    packages = ["build-essential", "fakeroot"]
    options = {"folder": FOLDER, "source": entry, "system": "Debian-13", "profile": ["noopt"], "packages": packages}
    found = "{{ made | to_json }}"
    return [
        {"gpucluster_slurm_build": {**options, **more}, "register": "made"},
        {"copy": {"dest": "/root/made.json", "content": found, "mode": "0600"}},
    ]


@pytest.mark.containers
@pytest.mark.slow
def test_a_release_is_built_once_and_replaces_the_distribution_s() -> None:
    if "GPUCLUSTER_TEST_BUILD" not in os.environ and not any((CACHE / "packages").glob("slurm-packages_*")):
        pytest.skip("a build takes minutes: make test-build")
    artifact, tarball = source("24.11")
    entry = {"component": "slurm", "version": artifact.version, "file": artifact.file, "sha256": str(artifact.sha256)}
    entry |= {"format": "any", "architecture": "any"}
    with host() as node:
        node.run("sh", "-c", f"mkdir -p {FOLDER} && echo '{Path('/etc/resolv.conf').read_text()}' > /etc/resolv.conf")
        _put(node, tarball, f"/root/{tarball.name}")
        assert "slurm-wlm 24.11" in node.run("slurmctld", "-V")
        # From the cache, if these inputs were built before.
        looked = _play(node, _task(entry))
        assert looked["must_build"]
        kept = CACHE / "packages" / f"slurm-packages_{artifact.version}_{looked['host']}_{looked['key']}.tar"
        record = kept.with_name(f".{kept.name}.json")
        if kept.exists() and record.exists():
            for file in (kept, record):
                _put(node, file, f"{FOLDER}/{file.name}")
        else:
            _play(node, _task(entry, archive=f"/root/{tarball.name}"), patience=BUILD_SECONDS)
            kept.parent.mkdir(parents=True, exist_ok=True)
            for file in (kept, record):
                _take(node, f"{FOLDER}/{file.name}", file)
            # What only the build needed is gone.
            assert "librrd-dev" not in node.run("dpkg", "--get-selections")
        again = _play(node, _task(entry, archive=f"/root/{tarball.name}"))
        assert (again["changed"], again["must_build"]) == (False, False)
        built = again["builds"][again["host"]]
        known = read("group_vars/all/slurm.yml")
        names = [name for listed in known["slurm_package_names"]["deb"].values() for name in listed]
        accounts = known["slurm_system_accounts"]
        preferences = (Path("ansible/roles/slurm_packages/templates/preferences.j2").read_text()).splitlines()[1:]
        node.run("userdel", "slurm")
        pinned = {"path": "/etc/apt/preferences.d/gpucluster-slurm", "content": "\n".join([*preferences, ""])}
        install = [
            {"gpucluster_service": {"accounts": accounts, "files": [pinned]}},
            {"gpucluster_role_packages": {"absent": known["slurm_foreign_packages"]}},
            {"gpucluster_software": {"server": f"file://{FOLDER}", "files": [built], "packages": names}},
        ]
        first = node.play(install, {})
        assert first.changed == len(install)
        assert node.play(install, {}).changed == 0
        assert node.run("slurmctld", "-V").split() == ["slurm", artifact.version]
        assert node.run("id", "-u", "slurm").strip() == "64030"
        # The distribution's are gone, and stay away.
        assert "no installation candidate" in node.run("apt-get", "--simulate", "install", "slurmd", check=False)
        have = node.run("sh", "-c", "ls /usr/lib/*/slurm")
        wanted = ("accounting_storage_mysql", "auth_jwt", "auth_munge", "cgroup_v2", "job_submit_lua", "mpi_pmix")
        assert [name for name in wanted if f"{name}.so" not in have] == []
        assert node.exists("/usr/include/slurm/spank.h")
        # Nothing was started that no role has configured.
        assert not node.exists("/usr/sbin/policy-rc.d")


def _play(node: Host, tasks: list[dict[str, Any]], patience: float = 3 * PATIENCE_S) -> dict[str, Any]:
    node.play(tasks, {}, patience=patience)
    made: dict[str, Any] = json.loads(node.read("/root/made.json"))
    return made


def _put(node: Host, file: Path, target: str) -> None:
    with file.open("rb") as stream:
        argv = ["nsenter", f"--target={node.pid}", "--mount", "--", "sh", "-c", f"cat > {target}"]
        subprocess.run(argv, stdin=stream, check=True)


def _take(node: Host, path: str, file: Path) -> None:
    with file.open("wb") as stream:
        subprocess.run(["nsenter", f"--target={node.pid}", "--mount", "--", "cat", path], stdout=stream, check=True)


# --- the module, with programs that are doubles -----


class ManagerDouble:
    """Stands for the package manager: no package is installed. Proves nothing of apt or dnf."""

    format = "deb"

    def run(self, _argv: list[str], _what: str = "") -> str:
        return ""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of this folder stand for apt-get and dpkg-buildpackage."""
    folder = tmp_path / "bin"
    folder.mkdir()
    _program(folder / "apt-get", "exit 0")
    _program(
        folder / "dpkg-buildpackage", "echo packed > ../slurm-smd_1_amd64.deb; echo no > ../slurm-smd-doc_1_all.deb"
    )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def _program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def _module(tmp_path: Path, sha256: str = "a" * 64, version: str = "26.05.5", **more: Any) -> Any:
    module = FakeModule()
    module.params = {
        "folder": str(tmp_path / "kept"),
        "source": {"file": "slurm.tar.gz", "sha256": sha256, "version": version},
        "archive": str(tmp_path / "slurm.tar.gz"),
        "take": None,
        "system": "Debian-13",
        "repositories": [],
        "packages": [],
        "options": [],
        "profile": [],
        "timeout": 60,
        "log": str(tmp_path / "log"),
        **more,
    }
    return build.Build(module, ManagerDouble())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "slurm-26.05.5" / "debian").mkdir(parents=True)
    (tmp_path / "slurm-26.05.5" / "debian" / "control").write_text("Source: slurm-smd\n")
    file = tmp_path / "slurm.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(tmp_path / "slurm-26.05.5", "slurm-26.05.5")
    return file


@pytest.mark.usefixtures("programs", "archive")
def test_what_was_built_is_kept_under_the_hash_of_its_inputs(tmp_path: Path) -> None:
    made = _module(tmp_path).run()
    built = made["builds"][made["host"]]
    kept = tmp_path / "kept" / built["file"]
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == built["sha256"]
    with tarfile.open(kept) as tar:
        assert tar.getnames() == ["slurm-smd_1_amd64.deb"]
    assert _module(tmp_path).run()["changed"] is False
    # Another option, another system, another source: another build.
    for other in ({"profile": ["noopt"]}, {"system": "Debian-12"}, {"sha256": "b" * 64}):
        assert _module(tmp_path, **other, archive=None).run()["must_build"]
    # An archive that was lost is built again.
    kept.unlink()
    assert _module(tmp_path).run()["changed"] is True


@pytest.mark.usefixtures("archive")
def test_an_error_of_a_build_has_its_last_lines_and_the_log(tmp_path: Path, programs: Path) -> None:
    _program(programs / "dpkg-buildpackage", "echo configure: error: no munge; exit 2")
    with pytest.raises(ModuleFailed) as caught:
        _module(tmp_path).run()
    assert "no munge" in str(caught.value)
    assert str(tmp_path / "log") in str(caught.value)
    assert [file.name for file in (tmp_path / "kept").iterdir()] == [".slurm-build.lock"]


@pytest.mark.usefixtures("archive")
def test_a_build_has_a_time_limit(tmp_path: Path, programs: Path) -> None:
    _program(programs / "dpkg-buildpackage", "sleep 600")
    with pytest.raises(ModuleFailed) as caught:
        _module(tmp_path, timeout=0).run()
    assert "took more than 0 s" in str(caught.value)
    assert str(tmp_path / "log") in str(caught.value)


@pytest.mark.usefixtures("programs", "archive")
def test_the_packages_of_the_last_versions_stay_for_the_way_back(tmp_path: Path) -> None:
    for number, version in enumerate(("23.11.1", "24.11.5", "25.05.8", "26.05.5")):
        _module(tmp_path, sha256=f"{number}" * 64, version=version).run()
    kept = {file.name.split("_")[1] for file in (tmp_path / "kept").glob("slurm-packages_*")}
    assert kept == {"24.11.5", "25.05.8", "26.05.5"}


@pytest.mark.usefixtures("programs", "archive")
def test_the_controller_takes_what_a_node_has_built_and_nothing_else(tmp_path: Path) -> None:
    node = _module(tmp_path, folder=str(tmp_path / "node"), system="Ubuntu-22").run()
    taken = {"host": node["host"], "key": node["key"], "entry": node["builds"][node["host"]]}
    got = _module(tmp_path, archive=None, take={**taken, "command": ["cat", node["path"]]}).run()
    assert got["builds"][node["host"]] == taken["entry"]
    (tmp_path / "other").write_text("other")
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    with pytest.raises(ModuleFailed) as caught:
        _module(tmp_path, archive=None, take={**taken, "command": ["cat", str(tmp_path / "other")]}).run()
    assert "its checksum is" in str(caught.value)
    assert list((tmp_path / "kept").iterdir()) == []


# --- which host builds what -----


def _known(**facts: Any) -> dict[str, Any]:
    inventory = {"slurm_release": "26.05", "software_files": [_SOURCE]}
    return variables(inventory, role="slurm_packages", facts=host_facts() | {"machine": "x86_64", **facts})


_SOURCE = {"component": "slurm", "version": "26.05.5", "file": "slurm.tar.gz", "sha256": "a" * 64}


def test_the_first_node_of_each_other_system_builds() -> None:
    known = _known()
    names = list(known["hostvars"])
    for name, system in zip(names[1:], ("Ubuntu-22", "Ubuntu-22", "Debian-13"), strict=False):
        facts = known["ansible_facts"]["gpucluster_host"] | {"system": system}
        known["hostvars"][name] = {"ansible_facts": {"gpucluster_host": facts}, "inventory_hostname": name}
    known["hostvars"][names[0]]["slurm_packages_state"] = {"builds": {"Debian-13-x86_64": {"sha256": "b" * 64}}}
    assert evaluate("{{ slurm_packages_first_of_each_system }}", known) == [names[1]]


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        ({"slurm_version": "24.11.5", "slurm_configured": True}, True),
        # The packages of an image, in which no cluster has run.
        ({"slurm_version": "24.11.5", "slurm_configured": False}, False),
        ({"slurm_version": "26.05.3", "slurm_configured": True}, False),
        ({"slurm_version": "", "slurm_configured": False}, False),
    ],
)
def test_only_a_cluster_that_runs_is_upgraded(facts: dict[str, Any], changes: bool) -> None:
    known = _known(**facts) | {"slurm_source": _SOURCE}
    assert bool(evaluate("{{ slurm_packages_changes_release }}", known)) is changes


# --- the copy before an upgrade -----


def test_what_slurm_has_stored_is_copied_for_root_only(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "job_state").write_text("jobs")
    (tmp_path / "slurmdbd.conf").write_text("StorageLoc = slurm_acct_db\n")
    _program(tmp_path / "dump", 'echo "dump of $6 $7"')
    module = FakeModule()
    module.params = {
        "folder": str(tmp_path / "kept"),
        "version": "24.11.5",
        "directories": [str(tmp_path / "state")],
        "dumper": str(tmp_path / "dump"),
        "settings": str(tmp_path / "slurmdbd.conf"),
    }
    copy = Path(aside.Aside(module).run()["path"])
    assert "slurm_acct_db" in (copy / "accounting.sql").read_text()
    (packed,) = copy.glob("*.tar.gz")
    with tarfile.open(packed) as tar:
        assert [name for name in tar.getnames() if name.endswith("job_state")]
    assert copy.stat().st_mode & 0o077 == 0
    _program(tmp_path / "dump", "echo no such database >&2; exit 2")
    with pytest.raises(ModuleFailed) as caught:
        aside.Aside(module).run()
    assert "no such database" in str(caught.value)
    assert list((tmp_path / "kept").glob("slurm-*Z")) == [copy]
