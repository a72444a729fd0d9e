"""Which release files a cluster needs, and what is known about each: version, checksum, address."""

from __future__ import annotations

import pytest

from gpucluster.artifacts import catalogue, releases, sources
from gpucluster.artifacts.catalogue import Artifact
from gpucluster.errors import InputError
from gpucluster.events import ignore
from gpucluster.spec import loads
from gpucluster.spec.sections.kubernetes import NEWEST_RELEASE
from tests.artifacts.release_files import DEBS, PYXIS, RPMS, wanted
from tests.spec.spec_texts import KEY, MINIMAL, OCI

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache")]


# --- what is wanted -----


def test_what_runtimes_need() -> None:
    assert wanted() == ()
    assert wanted(gpus_present=True) == ()
    assert {one.file for one in wanted("enroot")} == {*DEBS, *RPMS, PYXIS}
    assert [one.file for one in wanted("containerd")] == ["nerdctl-full-2.3.5-linux-amd64.tar.gz"]
    assert wanted("docker") == ()
    assert {one.component for one in wanted("docker", gpus_present=True)} == {catalogue.TOOLKIT}
    both = wanted("enroot", "containerd", architectures={"x86_64", "aarch64"}, gpus_present=True)
    assert [one.file for one in both].count(PYXIS) == 1
    assert {one.architecture for one in both} == {"x86_64", "aarch64", "any"}


def test_every_pinned_file_is_listed_once_and_by_https() -> None:
    everything = wanted("enroot", "docker", "containerd", architectures={"x86_64", "aarch64"}, gpus_present=True)
    assert len({one.file for one in everything}) == len(everything) == 15
    assert all(one.url.startswith("https://") and "{" not in one.url + one.file for one in everything)
    assert next(one.url for one in everything if one.file == DEBS[1]).endswith("/v4.1.2/enroot+caps_4.1.2-1_amd64.deb")


def test_versions_and_checksums_of_the_file_come_first() -> None:
    (pinned,) = wanted("containerd")
    assert (pinned.checksum, pinned.sha256 and len(pinned.sha256)) == ("pinned", 64)
    (other,) = wanted("containerd", versions={"nerdctl": "2.4.0"})
    assert (other.file, other.sha256) == ("nerdctl-full-2.4.0-linux-amd64.tar.gz", None), (
        "a checksum of another version"
    )
    assert "/v2.4.0/" in other.url
    (said,) = wanted("containerd", versions={"nerdctl": "2.4.0"}, checksums={other.file: "A" * 64})
    assert (said.sha256, said.checksum) == ("a" * 64, "software.checksums")
    with pytest.raises(InputError, match=r"software\.versions names pixis") as caught:
        wanted("enroot", versions={"pixis": "1"})
    assert "Did you mean pyxis?" in caught.value.hint


def test_where_a_file_may_lie() -> None:
    (pyxis,) = (one for one in wanted("enroot") if one.component == "pyxis")
    assert pyxis.places == (
        PYXIS, f"pyxis/{PYXIS}", "v0.25.0.tar.gz", "pyxis/v0.25.0.tar.gz",
        "NVIDIA/pyxis/archive/refs/tags/v0.25.0.tar.gz",
    )  # fmt: skip


def of_cluster(more: str) -> tuple[Artifact, ...]:
    return catalogue.needed_by(loads(f"{MINIMAL}{more}\n"), hardware_emulated=True)


def test_files_of_kubernetes_are_needed_only_with_it() -> None:
    assert of_cluster("") == of_cluster("scheduler: none") == ()
    found = of_cluster(f"scheduler: kubernetes\nkubernetes: {{release: {NEWEST_RELEASE}, network: routes}}")
    assert [each.component for each in found] == ["kubernetes"] * 3 + ["kubernetes-images", "cri-tools"]
    # The default release is the newest of the catalogue, whose checksums are known.
    assert {each.version for each in found if each.component.startswith("kubernetes")} == {NEWEST_RELEASE}
    assert [each.file for each in found if each.sha256 is None] == [f"kubernetes-images-{NEWEST_RELEASE}-x86_64.tar"]
    assert "calico" in {each.component for each in of_cluster("scheduler: kubernetes")}


def test_nodes_of_kubernetes_need_the_container_toolkit_for_their_gpus_without_any_runtime_for_users() -> None:
    spec = loads(f"{MINIMAL}scheduler: kubernetes\n")
    assert not spec.containers.runtimes
    real = {each.component for each in catalogue.needed_by(spec, hardware_emulated=False)}
    assert catalogue.TOOLKIT in real
    assert catalogue.TOOLKIT not in {each.component for each in catalogue.needed_by(spec, hardware_emulated=True)}
    without = loads(f"{MINIMAL}scheduler: none\n")
    assert catalogue.TOOLKIT not in {each.component for each in catalogue.needed_by(without, hardware_emulated=False)}


@pytest.mark.parametrize(
    ("image", "bundled"),
    [
        ('{operating_system: Canonical Ubuntu, version: "24.04"}', False),
        ('{operating_system: Oracle Linux, version: "9"}', True),
        # It may be of any system.
        ("{ocid: ocid1.image.oc1.iad.a, login_user: ubuntu}", True),
    ],
)
def test_hosts_without_a_package_of_containerd_get_a_release(image: str, bundled: bool) -> None:
    text = OCI.replace("{ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}", image)
    text = text.replace("    max_count: 8\n", "").replace("public_key_file: operator.pub", f"public_keys: [{KEY}]")
    spec = loads(f"{text}scheduler: kubernetes\n")
    assert ("nerdctl" in {each.component for each in catalogue.needed_by(spec, hardware_emulated=False)}) is bundled


def test_files_of_another_release_have_its_address_and_no_checksum_of_the_pinned_one() -> None:
    found = of_cluster("scheduler: kubernetes\nkubernetes: {release: 1.20.2, network: routes}")
    kubelet, images = (each for each in found if each.file.startswith(("kubelet", "kubernetes-images")))
    assert kubelet.url == "https://dl.k8s.io/release/v1.20.2/bin/linux/amd64/kubelet"
    # The page's own name states neither the release nor the architecture: no file in a mirror is taken by it.
    assert kubelet.places == (
        "kubelet-1.20.2-linux-amd64", "kubernetes/kubelet-1.20.2-linux-amd64",
        "release/v1.20.2/bin/linux/amd64/kubelet",
    )  # fmt: skip
    assert (kubelet.sha256, images.url, images.file) == (None, "", "kubernetes-images-1.20.2-x86_64.tar")
    assert images.places == (images.file, f"kubernetes-images/{images.file}")
    with pytest.raises(InputError, match=r"kubernetes\.release sets the release"):
        of_cluster("scheduler: kubernetes\nsoftware: {versions: {kubernetes: 1.30.0}}")


def test_an_archive_of_images_is_asked_for_in_a_mirror_and_on_no_page() -> None:
    found = [each for each in of_cluster("scheduler: kubernetes") if each.component == "kubernetes-images"]
    assert sources.source(None).find(found[0]) is None
    with pytest.raises(InputError) as caught:
        releases.ensure(found, None, ignore)
    assert "software.mirror" in caught.value.findings[0].hint
