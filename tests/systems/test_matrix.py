"""The support matrix: it agrees with the roles' files, and a system that is not in it has a nearest one."""

from __future__ import annotations

from typing import get_args

import pytest
import yaml

from gpucluster.paths import ansible_dir
from gpucluster.slurm import releases
from gpucluster.spec import PROVIDERS
from gpucluster.spec.defaults import LOGIN_USERS
from gpucluster.spec.sections.software import SystemName
from gpucluster.systems import host_python, matrix

ANSIBLE = ansible_dir()


def test_each_system_has_its_values_and_packages_and_no_other_has() -> None:
    named = {system.vars_file for system in matrix.SYSTEMS}
    assert {file.stem for file in (ANSIBLE / "vars" / "os").glob("*.yml")} == named
    packages = yaml.safe_load((ANSIBLE / "group_vars" / "all" / "packages.yml").read_text())["packages"]
    assert set(packages) == named


def test_the_slurm_of_each_system_is_known() -> None:
    assert set(releases.OF_SYSTEM) == {system.vars_file for system in matrix.SYSTEMS}


def test_a_repository_can_be_named_for_each_system() -> None:
    assert set(get_args(SystemName)) == {system.vars_file for system in matrix.SYSTEMS}


def test_each_system_has_a_python_and_the_autoscaler_one_on_every_controller() -> None:
    assert {found.image for found in host_python.PYTHONS} == {
        (system.operating_system, system.version) for system in matrix.SYSTEMS
    }
    for system in matrix.SYSTEMS:
        known = host_python.of_image(system.operating_system, system.version)
        assert known is not None
        assert known.version is not None, system.title
        assert known.of_autoscaler or not system.controller, system.title


def test_a_refused_role_has_a_reason_and_every_system_a_login_user() -> None:
    for system in matrix.SYSTEMS:
        assert bool(system.refused) is not bool(system.controller and system.node), system.title
        assert system.operating_system in LOGIN_USERS
    assert all("listing" not in system.controller for system in matrix.SYSTEMS), "the listings are Oracle Linux 8"


def test_the_default_images_are_in_the_matrix_for_both_roles() -> None:
    for traits in PROVIDERS.values():
        if traits.default_image is not None:
            found = matrix.find(traits.default_image["operating_system"], traits.default_image["version"])
            assert found is not None
            assert "platform" in found.controller
            assert "platform" in found.node


@pytest.mark.parametrize(
    ("operating_system", "version", "title"),
    [
        ("Oracle Linux", "8", "Oracle Linux 8"),
        ("Oracle Linux", "8.10", "Oracle Linux 8"),
        ("Oracle Linux", "9.5", "Oracle Linux 9"),
        ("Canonical Ubuntu", "24.04", "Canonical Ubuntu 24.04"),
        ("Canonical Ubuntu", "24.04 Minimal", None),
        ("Canonical Ubuntu", "24.10", None),
        ("Oracle Linux", "10", None),
        ("Oracle Linux Cloud Developer", "8", None),
        ("Debian", "12.9", "Debian 12"),
        ("", "", None),
    ],
)
def test_a_system_is_found_by_its_name_and_version(operating_system: str, version: str, title: str | None) -> None:
    found = matrix.find(operating_system, version)
    assert (found and found.title) == title


@pytest.mark.parametrize(
    ("operating_system", "version", "role", "title"),
    [
        ("Oracle Linux", "8", "controller", "Oracle Linux 9"),
        ("Oracle Linux", "7.9", "node", "Oracle Linux 8"),
        ("Oracle Linux", "10", "node", "Oracle Linux 9"),
        ("Rocky Linux", "9.5", "node", "Oracle Linux 9"),
        ("Canonical Ubuntu", "22.04", "controller", "Canonical Ubuntu 24.04"),
        ("Canonical Ubuntu", "20.04", "node", "Canonical Ubuntu 22.04"),
        ("Ubuntu", "26.04", "node", "Canonical Ubuntu 24.04"),
        ("Debian", "11", "controller", "Debian 12"),
        ("Windows", "Server 2022", "node", "Canonical Ubuntu 24.04"),
        ("", "", "controller", "Canonical Ubuntu 24.04"),
    ],
)
def test_the_nearest_that_is_supported_in_that_role(
    operating_system: str, version: str, role: matrix.Role, title: str
) -> None:
    assert matrix.nearest(operating_system, version, role).title == title


@pytest.mark.parametrize(
    ("operating_system", "version", "listing", "count"),
    [
        ("Oracle Linux", "8", False, 1),
        (None, None, True, 1),
        ("Oracle Linux", "9", False, 0),
        ("Canonical Ubuntu", "24.04", False, 0),
        (None, None, False, 0),
    ],
)
def test_the_plugin_that_may_block_dnf_is_disabled_where_it_is(
    operating_system: str | None, version: str | None, listing: bool, count: int
) -> None:
    found = matrix.disabled_plugins(operating_system, version, listing=listing)
    assert found == ("OS Management Service Agent",) * count
