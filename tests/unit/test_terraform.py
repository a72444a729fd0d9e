"""The terraform program: found, or refused with words."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.terraform import backends
from gpucluster.terraform.backends import Backend, Memory
from gpucluster.terraform.runner import Change, Plan, find_program


def _fake(folder: Path, name: str, version: str) -> None:
    """A double for the program: it tells a version and proves nothing else."""
    file = folder / name
    file.write_text(f'#!/bin/sh\necho \'{{"terraform_version": "{version}"}}\'\n')
    file.chmod(0o755)


def test_terraform_on_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, "terraform", "1.5.0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_program(tmp_path / "cache") == tmp_path / "terraform"


def test_tofu_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, "tofu", "1.9.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find_program(tmp_path / "cache") == tmp_path / "tofu"


@pytest.mark.parametrize("version", ["1.4.7", "0.15.0", "x"])
def test_an_old_or_strange_one_is_refused(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, "terraform", version)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EnvironmentFault):
        find_program(tmp_path / "cache")


def test_without_one_and_without_network_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    def no_network(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(EnvironmentFault, match=r"no route to host.*Install terraform 1\."):
        find_program(tmp_path / "cache")


def test_a_download_with_another_checksum_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("terraform", "#!/bin/sh\necho something else\n")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(archive.getvalue()))
    with pytest.raises(EnvironmentFault, match="SHA-256"):
        find_program(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_plan_names_what_it_would_lose(tmp_path: Path) -> None:
    plan = Plan(
        (
            Change("module.home.oci_file_storage_file_system.this", "replace"),
            Change("module.network.oci_core_vcn.this", "update"),
        ),
        tmp_path,
    )
    assert plan.lost("oci_file_storage_file_system") == ("module.home.oci_file_storage_file_system.this",)
    assert plan.lost("oci_core_vcn") == ()


def _wished(kind: str, **config: object) -> Backend:
    return backends.wished(
        kind, config, cluster="demo", local_file=Path("/x/terraform.tfstate"), region="us-ashburn-1", profile="OPS"
    )


def test_a_backend_gets_its_defaults_from_the_cluster() -> None:
    assert json.loads(_wished("local").text()) == {
        "terraform": {"backend": {"local": {"path": "/x/terraform.tfstate"}}}
    }
    assert _wished("oci", bucket="states", namespace="space").config == {
        "bucket": "states",
        "namespace": "space",
        "key": "gpucluster/demo/terraform.tfstate",
        "region": "us-ashburn-1",
        "config_file_profile": "OPS",
    }
    assert _wished("oci", bucket="b", namespace="n", key="mine", config_file_profile="X").config["key"] == "mine"
    http = _wished("http", address="https://x/demo", lock_address="https://x/lock")
    assert http.config["unlock_address"] == "https://x/lock"
    assert "lock_address" not in _wished("http", address="https://x/demo").config


def test_object_storage_by_way_of_s3_is_told_what_amazon_alone_has(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _wished("s3", bucket="states", namespace="space").config
    assert config["endpoints"] == {"s3": "https://space.compat.objectstorage.us-ashburn-1.oraclecloud.com"}
    assert config["use_path_style"] is True
    assert config["skip_s3_checksum"] is True
    assert "namespace" not in config
    assert _wished("s3", bucket="states", namespace="space", skip_s3_checksum=False).config["skip_s3_checksum"] is False
    frankfurt = _wished("s3", bucket="b", namespace="space", region="eu-frankfurt-1").config["endpoints"]["s3"]
    assert ".eu-frankfurt-1." in frankfurt
    amazon = _wished("s3", bucket="states")
    assert amazon.config == {"bucket": "states", "key": "gpucluster/demo/terraform.tfstate", "region": "us-ashburn-1"}
    assert amazon.environment() == {}
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    assert _wished("s3", bucket="b", namespace="space").environment() == {
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }


def test_http_needs_an_address_from_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_HTTP_ADDRESS", raising=False)
    with pytest.raises(InputError, match="TF_HTTP_ADDRESS"):
        _wished("http")
    monkeypatch.setenv("TF_HTTP_ADDRESS", "https://x/p/secret/n/space/b/states/o/demo")
    assert _wished("http").config == {}
    assert "secret" not in _wished("http").secret_address()


@pytest.mark.parametrize(
    ("kind", "program", "version", "words"),
    [
        ("oci", "terraform", "1.11.4", r"terraform 1\.11\.4 has no backend oci.*1\.12 is the first"),
        ("oci", "tofu", "1.12.0", "OpenTofu has no backend oci"),
        ("s3", "terraform", "1.5.7", r"1\.6 is the first"),
    ],
)
def test_a_program_that_does_not_know_a_backend_is_refused(kind: str, program: str, version: str, words: str) -> None:
    backend = _wished(kind, bucket="states", namespace="space")
    with pytest.raises(EnvironmentFault, match=words) as caught:
        backend.check_program(Path(program), version)
    assert "backend: http" in caught.value.hint
    backend.check_program(Path("terraform"), "1.12.0-beta1")


def test_where_a_state_lies_is_understood_again() -> None:
    memory = Memory(_wished("oci", bucket="states", namespace="space"), "", {"lineage": 4})
    assert Memory.parse(memory.text()) == memory
    for text in ("", "[]", "{}", '{"backend": "local", "config": [], "secret_address": "", "left": 1}'):
        with pytest.raises(ValueError, match=r"\S"):
            Memory.parse(text)
