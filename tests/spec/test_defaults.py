"""What is filled in where cluster.yml sets nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import loads
from tests.spec.spec_texts import LOCAL, MINIMAL, OCI
from tests.spec.test_spec import WITHOUT_SLURM, oci


def test_defaults_are_filled_in() -> None:
    spec = loads(MINIMAL)
    assert (spec.cloud.region, spec.cloud.availability_domain, spec.cloud.compartment_id) == ("local-1", None, None)
    controller = spec.controller
    assert (controller.shape, controller.ocpus, controller.memory_gb) == ("VM.Standard.E5.Flex", 4, 32)
    assert controller.boot_volume_gb == 256
    assert controller.image.model_dump(exclude_defaults=True) == {
        "operating_system": "Debian",
        "version": "13",
        "login_user": "debian",
    }
    pool = spec.pools["compute"]
    assert (pool.count, pool.max_count, pool.idle_timeout, pool.default) == (1, 1, 600, True)
    assert (spec.storage.home.mount_path, spec.storage.home.export_path) == ("/mnt/home", "/mnt/home")
    assert (spec.users.group, spec.users.gid, spec.users.first_uid, spec.users.people) == ("people", 9999, 10001, ())
    assert (spec.slurm.cluster_name, spec.slurm.accounting, spec.slurm.default_partition) == ("tiny", True, "compute")
    assert (spec.slurm.extra_config, spec.software.timezone) == ({}, "UTC")
    assert (spec.ssh.public_key, spec.ssh.private_key_path) == (None, None)


@pytest.mark.parametrize(
    ("shape", "counts", "kind"),
    [
        ("BM.GPU4.8", "count: 2", "cluster_network"),
        ("BM.GPU4.8", "count: 2\n    max_count: 2", "cluster_network"),
        ("BM.GPU4.8", "count: 2\n    max_count: 3", "compute_cluster"),
        ("BM.GPU4.8", "max_count: 3", "compute_cluster"),
        ("BM.HPC2.36", "count: 1", "cluster_network"),
        ("BM.GPU.A10.4", "count: 2", "instances"),
        ("BM.GPU.A10.4", "max_count: 2", "instances"),
    ],
)
def test_what_a_pool_stands_in(shape: str, counts: str, kind: str) -> None:
    text = LOCAL.replace("    shape: BM.GPU4.8\n    count: 2", f"    shape: {shape}\n    {counts}")
    assert loads(text).pools["compute"].kind == kind


@pytest.mark.parametrize(
    ("system", "user"), [("Oracle Linux", "opc"), ("Canonical Ubuntu", "ubuntu"), ("Debian", "debian")]
)
def test_the_login_user_follows_from_the_system(tmp_path: Path, system: str, user: str) -> None:
    assert oci(tmp_path, OCI.replace("Canonical Ubuntu", system)).controller.image.login_user == user


def test_a_login_user_that_was_given_stays(tmp_path: Path) -> None:
    spec = oci(tmp_path, OCI.replace('version: "24.04"', 'version: "24.04", login_user: me'))
    assert spec.controller.image.login_user == "me"
    assert spec.pools["h100"].image.login_user == "ubuntu"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    max_count: 4", "    max_count: 4\n    default: true"),
        ("  accounting: true", "  default_partition: cpu"),
    ],
)
def test_the_default_pool_is_known_on_both_sides(old: str, new: str) -> None:
    spec = loads(LOCAL.replace(old, new))
    assert spec.slurm.default_partition == "cpu"
    assert {name: pool.default for name, pool in spec.pools.items()} == {"compute": False, "cpu": True}


def test_without_a_scheduler_there_is_no_shared_home_unless_it_is_asked_for() -> None:
    assert loads(MINIMAL).storage.home.enabled
    assert not loads(WITHOUT_SLURM).storage.home.enabled
    assert loads(WITHOUT_SLURM + "storage: {home: {enabled: true}}\n").storage.home.enabled


def test_login_nodes_are_like_the_controller_where_the_file_sets_nothing_else(tmp_path: Path) -> None:
    none = loads(MINIMAL)
    assert (none.login.count, len(none.machines)) == (0, 2)
    image = "image: {operating_system: Oracle Linux, version: '9'}"
    some = loads(f"{MINIMAL}controller: {{{image}}}\nlogin: {{count: 2}}\n")
    assert some.login.image == some.controller.image
    assert (some.login.shape, some.login.ocpus, some.login.memory_gb) == ("VM.Standard.E5.Flex", 4, 32)
    assert some.machines == (some.controller, some.login, some.pools["compute"])
    # Another system takes part in the choice of Slurm's release.
    other = loads(f"{MINIMAL}login: {{count: 1, {image}}}\n")
    assert (loads(MINIMAL).slurm.release, other.slurm.release) == ("distribution", "26.05")
    # In OCI the image of the controller is an error once, and not again for login nodes.
    without = OCI.replace('  image: {operating_system: Canonical Ubuntu, version: "24.04"}', "  boot_volume_gb: 100", 1)
    with pytest.raises(InputError) as refused:
        oci(tmp_path, f"{without}login: {{count: 1}}\n")
    assert [finding.path for finding in refused.value.findings] == ["controller.image"]
