"""Backends as data: their settings, what they need, and where a state is remembered to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.oci.authentication import Authentication, backend_settings
from gpucluster.terraform import backends
from gpucluster.terraform.backends import BackendConfig, StateLocation


def _desired(kind: str, **config: object) -> BackendConfig:
    return backends.desired(
        kind,
        config,
        cluster="demo",
        local_file=Path("/x/terraform.tfstate"),
        region="us-ashburn-1",
        authentication={"config_file_profile": "OPS"},
    )


def test_a_backend_gets_its_defaults_from_the_cluster() -> None:
    assert json.loads(_desired("local").text()) == {
        "terraform": {"backend": {"local": {"path": "/x/terraform.tfstate"}}}
    }
    assert _desired("oci", bucket="states", namespace="space").config == {
        "bucket": "states",
        "namespace": "space",
        "key": "gpucluster/demo/terraform.tfstate",
        "region": "us-ashburn-1",
        "config_file_profile": "OPS",
    }
    assert _desired("oci", bucket="b", namespace="n", key="mine", config_file_profile="X").config["key"] == "mine"
    http = _desired("http", address="https://x/demo", lock_address="https://x/lock")
    assert http.config["unlock_address"] == "https://x/lock"
    assert "lock_address" not in _desired("http", address="https://x/demo").config


def test_the_backend_asks_as_the_rest_of_a_run_does() -> None:
    of: dict[Authentication, dict[str, str]] = {
        "profile": {"config_file_profile": "OPS"},
        "instance_principal": {"auth": "InstancePrincipal"},
        "resource_principal": {"auth": "ResourcePrincipal"},
        "oidc": {"auth": "SecurityToken", "config_file_profile": "gpucluster"},
    }
    assert {method: backend_settings(method, "OPS") for method in of} == of
    own = backends.desired(
        "oci", {"bucket": "b", "namespace": "n", "auth": "InstancePrincipal"}, cluster="demo", local_file=Path("/x"),
        authentication=of["oidc"],
    )  # fmt: skip
    assert "config_file_profile" not in own.config


def test_who_asks_does_not_make_it_another_place() -> None:
    profile = _desired("oci", bucket="b", namespace="n")
    runner = BackendConfig("oci", {**profile.config, "auth": "InstancePrincipal", "config_file_profile": ""})
    assert profile == runner
    assert profile != BackendConfig("oci", {**profile.config, "bucket": "c"})
    assert BackendConfig("s3", {"auth": "a"}) != BackendConfig("s3", {"auth": "b"})


def test_object_storage_by_way_of_s3_is_told_what_amazon_alone_has(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _desired("s3", bucket="states", namespace="space").config
    assert config["endpoints"] == {"s3": "https://space.compat.objectstorage.us-ashburn-1.oraclecloud.com"}
    assert config["use_path_style"] is True
    assert config["skip_s3_checksum"] is True
    assert "namespace" not in config
    assert (
        _desired("s3", bucket="states", namespace="space", skip_s3_checksum=False).config["skip_s3_checksum"] is False
    )
    frankfurt = _desired("s3", bucket="b", namespace="space", region="eu-frankfurt-1").config["endpoints"]["s3"]
    assert ".eu-frankfurt-1." in frankfurt
    amazon = _desired("s3", bucket="states")
    assert amazon.config == {"bucket": "states", "key": "gpucluster/demo/terraform.tfstate", "region": "us-ashburn-1"}
    assert amazon.environment() == {}
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    assert _desired("s3", bucket="b", namespace="space").environment() == {
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }


def test_http_needs_an_address_from_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_HTTP_ADDRESS", raising=False)
    with pytest.raises(InputError, match="TF_HTTP_ADDRESS"):
        _desired("http")
    monkeypatch.setenv("TF_HTTP_ADDRESS", "https://x/p/secret/n/space/b/states/o/demo")
    assert _desired("http").config == {}
    assert "secret" not in _desired("http").secret_address()


@pytest.mark.parametrize(
    ("kind", "program", "version", "words"),
    [
        ("oci", "terraform", "1.11.4", r"terraform 1\.11\.4 has no backend oci.*1\.12 is the first"),
        ("oci", "tofu", "1.12.0", "OpenTofu has no backend oci"),
        ("s3", "terraform", "1.5.7", r"1\.6 is the first"),
    ],
)
def test_a_program_that_does_not_know_a_backend_is_refused(kind: str, program: str, version: str, words: str) -> None:
    backend = _desired(kind, bucket="states", namespace="space")
    with pytest.raises(EnvironmentFault, match=words) as caught:
        backend.check_program(Path(program), version)
    assert "backend: http" in caught.value.hint
    backend.check_program(Path("terraform"), "1.12.0-beta1")


def test_where_a_state_lies_is_understood_again() -> None:
    location = StateLocation(_desired("oci", bucket="states", namespace="space"), "", {"lineage": 4})
    assert StateLocation.parse(location.text()) == location
    for text in ("", "[]", "{}", '{"backend": "local", "config": [], "secret_address": "", "left": 1}'):
        with pytest.raises(ValueError, match=r"\S"):
            StateLocation.parse(text)
