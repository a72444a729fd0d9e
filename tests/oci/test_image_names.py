"""What the names of images mean, with names that Oracle published."""

from __future__ import annotations

import pytest

from gpucluster.oci.image_names import parse, version_filter

LISTING = "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0"
VERSIONS = (
    f"{LISTING}-GPU-550-CUDA-12.4-2025.07.19-0",
    f"{LISTING}-GPU-570-OPEN-CUDA-12.8-2025.07.18-0",
    f"{LISTING}-AMD-ROCM-632-2025.07.20-0",
)


@pytest.mark.parametrize(
    ("name", "system", "marks"),
    [
        ("Oracle-Linux-9.7-2026.06.15-0", "Oracle Linux 9", {"build"}),
        ("Oracle-Linux-9.7-aarch64-2026.06.15-0", "Oracle Linux 9", {"aarch64", "build"}),
        ("Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0", "Oracle Linux 8", {"nvidia", "build"}),
        ("Canonical-Ubuntu-24.04-2026.06.29-0", "Canonical Ubuntu 24.04", {"build"}),
        (VERSIONS[1], "Oracle Linux 8", {"rdma", "nvidia", "build"}),
        (VERSIONS[2], "Oracle Linux 8", {"rdma", "amd", "build"}),
        (f"{LISTING}-2025.07.19-0", "Oracle Linux 8", {"rdma", "build"}),
        (
            "Canonical-Ubuntu-24.04-aarch64-2026.02.28-0-6.17-DOCA-OFED-3.2.1-GPU-580-OPEN-CUDA-13.0-2026.03.13-0",
            "Canonical Ubuntu 24.04",
            {"rdma", "nvidia", "aarch64", "build"},
        ),
        ("Debian-13-local", "Debian 13", set()),
        ("debian-12-genericcloud-amd64", "Debian 12", set()),
        ("our image of May", " ", set()),
        ("", " ", set()),
    ],
)
def test_a_name_states_what_is_on_the_image(name: str, system: str, marks: set[str]) -> None:
    found = parse(name)
    assert f"{found.operating_system} {found.version}" == system
    assert {mark for mark in ("rdma", "nvidia", "amd", "aarch64", "build") if getattr(found, mark)} == marks
    assert found.says_contents is ("build" in marks)


def test_a_build_has_a_date() -> None:
    assert parse("Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0").build == "2025-02-28"


@pytest.mark.parametrize(
    ("wanted", "amd", "fitting"),
    [
        (None, False, VERSIONS[:2]),
        (None, True, VERSIONS[2:]),
        ("*-GPU-570-*", False, VERSIONS[1:2]),
        ("*-2025.07.*", False, VERSIONS[:2]),
        ("*-2025.07.*", True, VERSIONS[2:]),
        (VERSIONS[0], False, VERSIONS[:1]),
        (VERSIONS[2], False, ()),
        ("GPU-570", False, ()),
        ("*-GPU.570-*", False, ()),
    ],
)
def test_the_versions_of_a_listing_that_fit_a_machine(wanted: str | None, amd: bool, fitting: tuple[str, ...]) -> None:
    chosen = version_filter(wanted, amd=amd)
    assert tuple(version for version in VERSIONS if chosen.fits(version)) == fitting


def test_machines_share_a_version_if_they_ask_for_the_same() -> None:
    assert version_filter(None, amd=False).name == "newest", "it is in the addresses of existing states"
    assert version_filter("8.10", amd=False).name == "8.10"
    assert version_filter(None, amd=True).name != version_filter(None, amd=False).name
