"""What preflight reports of the release of a control plane of Kubernetes Engine, and how it asks for releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.cloud.client import CloudAccess
from gpucluster.errors import PreflightFinding
from gpucluster.localcloud.api.container_engine import VERSIONS
from gpucluster.preflight import requirements
from gpucluster.preflight.evaluate import evaluate
from gpucluster.preflight.facts import Facts, FoundImage, KubernetesEngine, Unknown
from gpucluster.preflight.queries.client import QueryClient
from gpucluster.preflight.queries.cloud import CloudQueries
from gpucluster.spec import ClusterSpec, loads
from tests.localcloud.api_harness import running
from tests.spec.spec_texts import KEY, MINIMAL

IN_OCI = (
    "cloud: {provider: oci, region: us-ashburn-1, compartment_id: ocid1.compartment.oc1..a}\n"
    f"ssh: {{public_keys: [{KEY}]}}\n"
    'controller: {image: {operating_system: Canonical Ubuntu, version: "24.04"}}'
)
OFFERED = ("v1.33.1", "v1.34.1", "v1.35.0")


def with_release(release: str, endpoint: str = "private") -> ClusterSpec:
    oke = f"control_plane: oke, release: {release}, oke: {{endpoint: {endpoint}}}"
    return loads(f"{MINIMAL}scheduler: kubernetes\nkubernetes: {{{oke}}}\n")


def said(release: str, engine: KubernetesEngine | Unknown | None) -> list[PreflightFinding]:
    findings = evaluate(with_release(release), Facts(kubernetes_engine=engine))
    return [each for each in findings if each.check == "kubernetes"]


@pytest.mark.parametrize(
    ("release", "running", "words", "action"),
    [
        ("1.36.4", "", "does not offer 1.36.4", "1.33.1, 1.34.1, 1.35.0"),
        ("1.36.4", "v1.35.0", "does not offer 1.36.4", "1.35.0"),
        ("1.33.1", "v1.34.1", "does not go back to 1.33.1", "1.34.1 or a newer one"),
        ("1.35.0", "v1.33.1", "by one minor release at a time", "Write 1.34.1 first"),
    ],
)
def test_a_release_that_can_not_be_had_is_an_error(release: str, running: str, words: str, action: str) -> None:
    (finding,) = said(release, KubernetesEngine(OFFERED, running))
    assert finding.level == "error"
    assert words in finding.reason
    assert action in finding.action


@pytest.mark.parametrize(("release", "running"), [("1.34.1", ""), ("1.34.1", "v1.33.1"), ("1.32.9", "v1.32.9")])
def test_what_is_offered_or_runs_already_is_fine(release: str, running: str) -> None:
    assert said(release, KubernetesEngine(OFFERED, running)) == []


def test_what_is_not_known_is_a_warning_and_nothing_is_asked_without_oke() -> None:
    (finding,) = said("1.34.1", Unknown("kubernetes", "which releases", "refused", 404, "Allow it"))
    assert (finding.level, finding.action) == ("warning", "Allow it")
    assert said("1.34.1", None) == []


def test_oke_itself_reports_which_systems_its_nodes_may_have() -> None:
    pool = "shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 1"
    image = FoundImage("ocid1.image.oc1..x", "Oracle-Linux-7.9-2025.01.31-0", system="Oracle Linux", version="7.9")
    facts = Facts(images={"compute": image})
    own = loads(MINIMAL.replace("shape: BM.GPU4.8, count: 1", pool))
    assert any("Oracle Linux 7 is not supported" in each.reason for each in evaluate(own, facts))
    text = MINIMAL.replace("shape: BM.GPU4.8, count: 1", f"{pool}, managed: true")
    managed = loads(f"{text}scheduler: kubernetes\nkubernetes: {{control_plane: oke}}\n")
    assert [each.reason for each in evaluate(managed, facts) if each.check == "image"] == []


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("Oracle-Linux-8.10-2025.06.17-0-OKE-1.33.1-879", None),
        ("Oracle-Linux-8.10-2025.06.17-0-OKE-1.33.1-878", "error"),
        ("Oracle-Linux-8.10-2025.06.17-0", "warning"),
        ("ubuntu-22.04-hpc-2025.05", "warning"),
    ],
)
def test_own_nodes_have_an_image_that_oracle_supports_on_them(name: str, level: str | None) -> None:
    facts = Facts(images={"compute": FoundImage("ocid1.image.oc1..x", name, custom=True)})
    image = "image: {ocid: ocid1.image.oc1..x, login_user: a}"
    pool = f"shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 32, count: 1, {image}"
    text = MINIMAL.replace("shape: BM.GPU4.8, count: 1", pool).replace("cloud: {provider: local}", IN_OCI)
    own = loads(f"{text}scheduler: kubernetes\nkubernetes: {{control_plane: oke}}\n")
    levels = [each.level for each in evaluate(own, facts) if "self-managed" in each.reason]
    assert levels == ([level] if level else [])
    # It is Oracle's rule for its control plane alone.
    assert not any("self-managed" in each.reason for each in evaluate(loads(text), facts))


def test_the_endpoint_takes_an_address_of_its_subnet() -> None:
    plain = loads(MINIMAL)
    for endpoint, more in (("private", (1, 0)), ("public", (0, 1))):
        for subnet, each in zip(("private", "public"), more, strict=True):
            found = requirements.addresses(with_release("1.34.1", endpoint), subnet)
            assert found[1] - requirements.addresses(plain, subnet)[1] == each


@pytest.mark.slow
def test_the_local_cloud_is_asked_with_the_real_sdk(tmp_path: Path) -> None:
    from oci.container_engine import models

    with running(tmp_path) as api:
        access = CloudAccess(api.config, api.endpoint, api.tenancy)
        queries = CloudQueries(QueryClient(access), "tiny")
        assert queries.kubernetes_engine() == KubernetesEngine(VERSIONS)
        subnet = api.subnet(api.vcn("10.90.0.0/16", "oke"), "10.90.0.0/24", prohibit_public_ip_on_vnic=True)
        for tag in ("other", "tiny"):
            api.kubernetes.create_cluster(
                models.CreateClusterDetails(
                    name="tiny",
                    compartment_id=api.tenancy,
                    vcn_id=subnet.vcn_id,
                    kubernetes_version=VERSIONS[0] if tag == "tiny" else VERSIONS[1],
                    endpoint_config=models.CreateClusterEndpointConfigDetails(subnet_id=subnet.id),
                    freeform_tags={"gpucluster": tag},
                )
            )
        assert queries.kubernetes_engine() == KubernetesEngine(VERSIONS, VERSIONS[0])
        refused = replace(access, config={**access.config, "fingerprint": "00"})
        assert isinstance(CloudQueries(QueryClient(refused), "tiny").kubernetes_engine(), Unknown)
