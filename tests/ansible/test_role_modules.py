"""Modules of single roles with scripted commands: interrupted runs, and runs without write access."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load

package_files = load("module_utils/gpucluster_package_files.py")
nvidia = load("library/gpucluster_nvidia.py")
packages = load("library/gpucluster_role_packages.py")
mesh = load("library/gpucluster_mesh_keys.py")


def test_a_policy_that_a_killed_run_has_left_is_known_and_one_of_the_hosts_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(package_files, "POLICY", policy)
    with package_files.nothing_starts():
        assert package_files.policy_is_left()
        assert policy.stat().st_mode & 0o777 == 0o755
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 101\n")
    with package_files.nothing_starts():
        assert not package_files.policy_is_left()
    assert policy.exists()


def test_during_a_rotation_two_keys_are_accepted(tmp_path: Path) -> None:
    for name, key in (("k.pub", "ssh-ed25519 A"), ("k.next.pub", "ssh-ed25519 B"), ("k.former.pub", "ssh-ed25519 A")):
        (tmp_path / name).write_text(f"{key}\n")
    assert mesh.accepted(tmp_path, "k") == "ssh-ed25519 A\nssh-ed25519 B\n"
    assert mesh.accepted(tmp_path, "none") == ""


def test_keys_that_can_not_be_made_here_are_reported_and_those_that_are_there_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModuleFailed, match=r"keys are missing in .* and can't be created"):
        mesh.complete(FakeModule(), tmp_path / "file" / "mesh", ["id_ed25519"])
    tmp_path.chmod(0o700)
    before = tmp_path.stat().st_ctime_ns
    assert mesh.complete(FakeModule(), tmp_path, []) is False
    assert tmp_path.stat().st_ctime_ns == before


def test_a_module_that_can_not_be_loaded_is_told_at_every_run(tmp_path: Path) -> None:
    module = FakeModule(answers={"modprobe": (1, "", "Module nvidia_peermem not found in /lib/modules/6.8.0")})
    changed, faults = nvidia.load_modules(module, tmp_path, ["nvidia_peermem"])
    assert changed
    assert "nvidia_peermem can't be loaded (Module nvidia_peermem not found" in faults[0]
    assert nvidia.load_modules(module, tmp_path, ["nvidia_peermem"]) == (False, faults)
    assert (tmp_path / nvidia.MODULES).read_text() == "nvidia_peermem\n"

    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert nvidia.load_modules(module, tmp_path, ["nvidia_peermem"]) == (False, [])
    assert nvidia.load_modules(module, tmp_path, []) == (True, [])
    assert not (tmp_path / nvidia.MODULES).exists()


@pytest.mark.parametrize(
    ("have", "answers", "differing"),
    [
        ({}, {}, ["nvidia-fabricmanager-580"]),
        ({"nvidia-fabricmanager-580": "580.95.05-1"}, {}, []),
        ({"nvidia-fabricmanager-580": "580.99.01-1"}, {}, ["nvidia-fabricmanager-580"]),
        # As OCI's HPC images for Ubuntu have it: no branch in the name of the package.
        ({"nvidia-fabricmanager": "580.95.05-1"}, {}, []),
        ({"nvidia-fabricmanager": "580.65.06-1"}, {}, ["nvidia-fabricmanager-580"]),
        ({"nvidia-fabricmanager-dev-580": "580.95.05-1"}, {}, ["nvidia-fabricmanager-580"]),
        # In another package still: the service runs, and its program reports the version.
        ({}, {"nv-fabricmanager --version": (0, "Fabric Manager version is : 580.95.05", "")}, []),
        ({}, {"nv-fabricmanager --version": (0, "version is : 570.1", "")}, ["nvidia-fabricmanager-580"]),
        (
            {},
            {"nv-fabricmanager": (0, "Fabric Manager version is : 580.95.05", ""), "is-active": (3, "", "")},
            ["nvidia-fabricmanager-580"],
        ),
    ],
)
def test_a_fabric_manager_of_the_driver_s_version_is_accepted_whatever_its_package_is_called(
    have: dict[str, str], answers: dict[str, tuple[int, str, str]], differing: list[str]
) -> None:
    executor = nvidia.Executor(FakeModule(answers=answers), None)
    assert executor.differing(["nvidia-fabricmanager-580"], have, "580.95.05") == differing


POLICY_OF_TWO = """curl:
  Installed: (none)
  Candidate: 7.88.1-10
  Version table:
     7.88.1-10 500
slurmctld:
  Installed: (none)
  Candidate: (none)
  Version table:
"""


def test_a_package_that_no_repository_has_is_named_with_the_system_and_its_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "OS_RELEASE", tmp_path / "os-release")
    (tmp_path / "os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    no_such = "E: Unable to locate package slapd"
    module = FakeModule(
        answers={
            "install curl slurmctld slapd": (100, "", no_such),
            "apt-cache policy": (0, POLICY_OF_TWO, "N: Unable to locate package slapd"),
            "indextargets": (0, "http://archive.example noble/main\nhttp://archive.example noble/main\n", ""),
        }
    )
    asked, families = ["curl", "slurmctld", "slapd"], packages.manager.__globals__
    debian = families["Debian"](module)
    with pytest.raises(ModuleFailed) as failed:
        packages.install(debian, asked, [], "")
    assert str(failed.value) == (
        "no repository of this host (Ubuntu-24) has slurmctld, slapd; its repositories: http://archive.example "
        "noble/main. Enable the repository that has it (in the image or in your mirror of packages) and run apply "
        f"again. {no_such}"
    )

    (tmp_path / "os-release").write_text('ID="ol"\nVERSION_ID="8.10"\n')
    module = FakeModule(
        answers={
            "--enablerepo=ol8_developer_EPEL repoquery --queryformat %{name}\n --whatprovides jq": (0, "jq\n", ""),
            "repolist": (0, "repo id    repo name\nol8_baseos_latest  Oracle Linux 8\n", ""),
            "install": (1, "", "Error: Unable to find a match: openldap-servers"),
        }
    )
    redhat = families["RedHat"](module)
    with pytest.raises(ModuleFailed) as failed:
        packages.install(redhat, ["jq", "openldap-servers"], ["ol8_developer_EPEL"], "Use another image")
    assert "dnf --assumeyes --quiet --enablerepo=ol8_developer_EPEL install jq openldap-servers" in module.calls
    assert str(failed.value) == (
        "no repository of this host (OracleLinux-8) has openldap-servers; its repositories: ol8_baseos_latest, "
        "ol8_developer_EPEL. Use another image. Error: Unable to find a match: openldap-servers"
    )

    # Another cause, such as a broken dependency or a full disk.
    module = FakeModule(answers={"install": (100, "", "E: No space  left"), "apt-cache": (0, POLICY_OF_TWO, "")})
    with pytest.raises(ModuleFailed, match=r"^curl can't be installed on OracleLinux-8: E: No space left$"):
        packages.install(families["Debian"](module), ["curl"], [], "")
