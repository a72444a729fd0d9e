"""Which images preflight refuses, by their names as Oracle publishes them: systems, roles, drivers, RDMA, builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight.checks.images import images
from gpucluster.preflight.facts import ExistingInstance, Facts, FoundImage, Unknown
from gpucluster.spec import ClusterSpec, loads
from gpucluster.systems import matrix
from tests.preflight.preflight_facts import HPC_IMAGE
from tests.spec import spec_texts, unbuilt_shapes

LISTING = "listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc"
BY_OCID = "ocid: ocid1.image.oc1.iad.ours, login_user: opc"
BASE = "Oracle-Linux-8.10-2025.06.17-0-RHCK-OFED-24.10-1.1.4.0"
GOOD = FoundImage("ocid1.image.oc1..u", "Canonical-Ubuntu-24.04-2026.06.29-0")
FULL = "BM.GPU4.8"  # eight GPUs and an RDMA network


@pytest.fixture(autouse=True)
def all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    unbuilt_shapes.allow(monkeypatch)


def spec(folder: Path, image: str, shape: str = FULL, *, rdma: str = "null", driver: str = "keep") -> ClusterSpec:
    """A cluster with one pool of that image."""
    (folder / "operator.pub").write_text(spec_texts.KEY + "\n")
    head, _, rest = spec_texts.OCI.partition("pools:\n")
    users = rest[rest.index("users:") :]
    pool = f"pools:\n  gpu:\n    shape: {shape}\n    count: 1\n    rdma: {rdma}\n    image: {{{image}}}\n"
    return loads(f"{head}{pool}nvidia: {{driver: {driver}}}\n{users}", str(folder / "cluster.yml"))


def found(folder: Path, image: str, fact: FoundImage | Unknown, **options: Any) -> list[Finding]:
    facts = Facts(domains=("AD-1",), images={"controller": GOOD, "gpu": fact})
    return list(images(spec(folder, image, **options), facts))


def named(name: str, *, custom: bool = False, **more: Any) -> FoundImage:
    return FoundImage("ocid1.image.oc1..x", name, custom=custom, **more)


def version(name: str) -> FoundImage:
    return FoundImage("ocid1.image.oc1..l", "GPU", listing="ocid1.l", listing_version=name)


def by_system(system: str, release: str) -> str:
    return f'operating_system: {system}, version: "{release}"'


UBUNTU, ORACLE9, ORACLE8 = (
    by_system("Canonical Ubuntu", "24.04"),
    by_system("Oracle Linux", "9"),
    by_system("Oracle Linux", "8"),
)
PLAIN_UBUNTU = named("Canonical-Ubuntu-24.04-2026.06.29-0", system="Canonical Ubuntu", version="24.04")
GEN2 = named("Oracle-Linux-9.7-Gen2-GPU-2026.06.15-0", system="Oracle Linux", version="9")
NO_RDMA: dict[str, Any] = {"rdma": "false"}


@pytest.mark.parametrize(
    ("image", "fact", "options"),
    [
        (LISTING, version(f"{BASE}-GPU-570-OPEN-CUDA-12.8-2025.07.18-0"), {}),
        (LISTING, version(f"{BASE}-AMD-ROCM-632-2025.07.20-0"), {"shape": "BM.GPU.MI300X.8"}),
        (LISTING, version(f"{BASE}-2025.07.19-0"), {"shape": "BM.HPC2.36"}),
        (BY_OCID, named(HPC_IMAGE, custom=True, system="Canonical Ubuntu", version="24.04"), {}),
        (BY_OCID, named(HPC_IMAGE.replace("24.04", "22.04"), custom=True, system="Linux"), {}),
        (BY_OCID, named(HPC_IMAGE.replace("-2026", "-aarch64-2026", 1), custom=True), {"shape": "BM.GPU.GB200.4"}),
        (f"name: {HPC_IMAGE}, login_user: ubuntu", named(HPC_IMAGE, custom=True), {}),
        (UBUNTU, PLAIN_UBUNTU, {**NO_RDMA, "driver": "install"}),
        (UBUNTU, PLAIN_UBUNTU, {"shape": "BM.GPU.A10.4", "driver": "install"}),
        (ORACLE9, GEN2, NO_RDMA),
        (ORACLE8, named("Oracle-Linux-8.10-Gen2-GPU-2025.08.31-0", system="Oracle Linux", version="8"), NO_RDMA),
        # Its name shows nothing, and it needs no RDMA: only its owner knows its content.
        (BY_OCID, named("ours", custom=True, system="Oracle Linux", version="9.5"), NO_RDMA),
    ],
)
def test_nothing_is_reported_of_an_image_that_has_what_its_nodes_need(
    image: str, fact: FoundImage, options: dict[str, Any], tmp_path: Path
) -> None:
    assert found(tmp_path, image, fact, **options) == []


@pytest.mark.parametrize(
    ("image", "fact", "options", "level", "reason", "action"),
    [
        # drivers
        (UBUNTU, PLAIN_UBUNTU, NO_RDMA, "error", "no NVIDIA driver, and `nvidia.driver` is `keep`",
         "nvidia.driver: install"),
        (ORACLE9, named("Oracle-Linux-9.7-2026.06.15-0", system="Oracle Linux", version="9"), NO_RDMA, "error",
         "no NVIDIA driver", "listing"),
        (LISTING, version(f"{BASE}-AMD-ROCM-632-2025.07.20-0"), {}, "error",
         "driver of AMD GPUs, and BM.GPU4.8 has others", "listing"),
        (LISTING, version(f"{BASE}-GPU-570-OPEN-CUDA-12.8-2025.07.18-0"), {"shape": "BM.GPU.MI300X.8"}, "error",
         "driver of NVIDIA GPUs", "listing"),
        (LISTING, version(f"{BASE}-2025.07.19-0"), {}, "error", "no NVIDIA driver", "GPU Cluster Networking"),
        (ORACLE9, replace(GEN2, fits=False), {"shape": "BM.GPU.MI300X.8", **NO_RDMA}, "error",
         "no platform image of Oracle Linux 9 is offered for the shape BM.GPU.MI300X.8", "listing"),
        # RDMA
        (UBUNTU, PLAIN_UBUNTU, {}, "error", "no RDMA stack (OFED, wpa_supplicant)", "rdma: false"),
        (UBUNTU, PLAIN_UBUNTU, {"driver": "install"}, "error", "installs the driver of the GPUs only", "listing"),
        (ORACLE9, GEN2, {}, "error", "no RDMA stack", "by `ocid`"),
        (UBUNTU, PLAIN_UBUNTU, {"shape": "BM.HPC2.36"}, "error", "no RDMA stack", "HPC Cluster Networking"),
        (BY_OCID, named("ours", custom=True, system="Oracle Linux", version="9"), {}, "warning",
         "does not show whether it has the RDMA stack", "listing"),
        # architecture
        (BY_OCID, named(HPC_IMAGE.replace("-2026", "-aarch64-2026", 1), custom=True), {}, "error",
         "is for Arm", "ocid"),
        (BY_OCID, named(HPC_IMAGE, custom=True), {"shape": "BM.GPU.GB200.4"}, "error", "is for x86", "by `ocid`"),
        # systems
        (BY_OCID, named("x", custom=True, system="Rocky Linux", version="9.5"), NO_RDMA, "error",
         "Rocky Linux 9.5 is not supported on nodes", "Oracle Linux 9"),
        (BY_OCID, named("x", custom=True, system="Linux", version="Custom"), NO_RDMA, "warning",
         "Linux Custom is not supported", "oci compute image update --image-id ocid1.image.oc1..x"),
        (by_system("Canonical Ubuntu", "20.04"), named("", system="Canonical Ubuntu", version="20.04"), NO_RDMA,
         "error", "Canonical Ubuntu 20.04 is not supported on nodes", "Canonical Ubuntu 22.04"),
        (UBUNTU.replace("24.04", "24.04 Minimal"),
         named("", system="Canonical Ubuntu", version="24.04 Minimal"), NO_RDMA,
         "error", "24.04 Minimal is not supported", "Canonical Ubuntu 24.04"),
        # builds
        ("name: Oracle-Linux-8.10-Gen2-GPU-2025.02.28-0, login_user: opc", FoundImage(""), NO_RDMA, "error",
         "the newest three builds of a platform image, and that of 2025-02-28 is older",
         'Write `image: {operating_system: Oracle Linux, version: "8"}`'),
        ("name: Oracle-Linux-9.7-Gen2-GPU-2026.06.15-0, login_user: opc", GEN2, NO_RDMA, "warning",
         "once three newer ones are published", 'Write {operating_system: Oracle Linux, version: "9"} without name'),
        ("name: nothing such, login_user: opc", FoundImage(""), NO_RDMA, "error",
         "no image nothing such", "oci compute image"),
        # placeholders
        ("ocid: ocid1.image.oc1..exampleuniqueid, login_user: ubuntu", Unknown("image", "it", "no", 400), {}, "error",
         "is a placeholder", "HPC images"),
    ],
)  # fmt: skip
def test_what_an_image_lacks_is_reported_with_what_to_use_instead(
    image: str,
    fact: FoundImage | Unknown,
    options: dict[str, Any],
    level: str,
    reason: str,
    action: str,
    tmp_path: Path,
) -> None:
    (one,) = found(tmp_path, image, fact, **options)
    assert (one.level, one.check) == (level, "image")
    assert one.reason.startswith("pools.gpu: ")
    assert reason in one.reason
    assert action in one.action


@pytest.mark.parametrize("system", matrix.SYSTEMS, ids=lambda system: system.title)
def test_the_controller_has_a_system_of_the_matrix(system: matrix.System, tmp_path: Path) -> None:
    fact = FoundImage("ocid1.image.oc1..c", "", system=system.operating_system, version=system.version)
    gpu = named(HPC_IMAGE, custom=True)
    findings = list(images(spec(tmp_path, BY_OCID), Facts(domains=("AD-1",), images={"controller": fact, "gpu": gpu})))
    if system.controller:
        assert findings == []
    else:
        (one,) = findings
        assert one.level == "error"
        assert one.reason.startswith(f"controller: {system.title} is not supported on the controller: {system.refused}")
        assert matrix.nearest(system.operating_system, system.version, "controller").title in one.action


def test_a_controller_that_runs_is_not_refused(tmp_path: Path) -> None:
    """It was launched by an earlier release; in the local cloud such a cluster works."""
    oracle = FoundImage("ocid1.image.oc1..c", "Oracle-Linux-8.10-2025.08.31-0")
    wanted = spec(tmp_path, BY_OCID)
    there = ExistingInstance("prod-controller", wanted.controller.shape, "AD-1", 4, 32)
    facts = Facts(domains=("AD-1",), images={"controller": oracle}, instances=(there,))
    assert [one.level for one in images(wanted, facts)] == ["warning"]
    assert [one.level for one in images(wanted, replace(facts, instances=()))] == ["error"]


def test_emulated_hardware_needs_no_driver_and_a_stand_in_reports_what_oci_would_refuse(tmp_path: Path) -> None:
    """The local cloud's own image lacks nothing there; of a file for OCI it warns."""
    local = loads(spec_texts.LOCAL, str(tmp_path / "cluster.yml"))
    debian = named("Debian-13-local", system="Debian", version="13")

    def said(fact: FoundImage) -> list[tuple[str, str]]:
        facts = Facts(domains=("AD-1",), images={"controller": debian, "compute": fact})
        return [(one.level, one.reason) for one in images(local, facts)]

    assert said(debian) == []
    (warning, note) = said(replace(PLAIN_UBUNTU, stand_in="Debian 13"))
    assert warning[0] == "warning"
    assert warning[1].endswith("(in OCI an error)")
    assert note[0] == "note"
