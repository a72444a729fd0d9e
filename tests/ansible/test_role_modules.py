"""Modules of single roles with scripted commands: interrupted runs, and runs without write access."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load

package_files = load("module_utils/gpucluster_package_files.py")
nvidia = load("library/gpucluster_nvidia.py")
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


def test_keys_that_can_not_be_made_here_are_said_and_those_that_are_there_are_not_touched(tmp_path: Path) -> None:
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
