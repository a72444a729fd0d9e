"""The section `cloud`: wrong values, each at its place."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from gpucluster.spec import loads
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import KEY, OCI

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "gpus of nobody": ("  provider: local", "  provider: local\n  local: {gpus: §some}", "cloud.local.gpus", "emulated"),
    "region of the local cloud": ("provider: local", "provider: local\n  region: §us-ashburn-1", "cloud.region", "has one region"),
    "a method of none": ("  provider: local", "  provider: local\n  auth: §api_key", "cloud.auth", "instance_principal"),
    "a method that only OCI has": ("  provider: local", "  provider: local\n  auth: §instance_principal", "cloud.auth", "one of profile, oidc"),
    "oidc without a domain": ("  provider: local", "  provider: local\n  auth: oidc", "cloud.oidc", "Add `oidc:"),
    "a secret over the network": ("  provider: local", "  provider: local\n  auth: oidc\n  oidc: {client_id: a, domain_url: §'http://idcs.example.com'}", "cloud.oidc.domain_url", "must be the https:// URL"),
    "a secret in the file": ("  provider: local", "  provider: local\n  auth: oidc\n  oidc: {client_id: a, domain_url: 'https://idcs.example.com', §client_secret: hunter2}", "cloud.oidc.client_secret", "unknown"),
    "profile of the local cloud": ("provider: local", "provider: local\n  §profile: X", "cloud.profile", "no meaning"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


def test_terraform_has_no_workload_identity_for_a_state_in_object_storage() -> None:
    state = "state: {backend: oci, config: {bucket: b, namespace: n}}\n"
    text = OCI.replace("  provider: oci\n", "  provider: oci\n  auth: workload_identity\n", 1) + state
    text = text.replace("public_key_file: operator.pub", f"public_keys: [{KEY}]")
    [(_, _, path, words)] = findings(text)
    assert (path, "backend oci refuses workload_identity" in words) == ("cloud.auth", True)
    loads(text.replace("namespace: n}", "namespace: n, auth: InstancePrincipal}"))
