"""What Terraform's provider is told about a cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpucluster.cloud.credentials import OciProfile
from gpucluster.cloud.providers.local import LocalCloudProvider
from gpucluster.environment import Program, child
from gpucluster.paths import ClusterPaths

KEY = OciProfile("ocid1.tenancy.x", "ocid1.user.x", "aa:bb", "/keys/api_key.pem", "local-1")


def looked_up(env: dict[str, str], name: str) -> str:
    """As the real provider finds an argument that its block leaves out: the first that is not empty."""
    return env.get(f"TF_VAR_{name}") or env.get(f"OCI_{name.upper()}") or ""


def test_what_an_operator_exported_for_another_root_does_not_win() -> None:
    ours = ("tenancy_ocid", "user_ocid", "fingerprint", "private_key_path")
    names = (*ours, "private_key", "auth", "config_file_profile")
    exported = {key: "theirs" for name in names for key in (f"TF_VAR_{name}", f"OCI_{name.upper()}")}
    env = {**child(exported, Program.TERRAFORM, home="/root"), **KEY.terraform_env("local-1")}
    assert {name: looked_up(env, name) for name in names} == {
        "tenancy_ocid": KEY.tenancy,
        "user_ocid": KEY.user,
        "fingerprint": KEY.fingerprint,
        "private_key_path": KEY.key_file,
        "private_key": "",
        "auth": "",
        "config_file_profile": "",
    }


def test_the_lock_of_the_other_provider_is_forgotten(tmp_path: Path) -> None:
    ignored: Any = None
    paths = ClusterPaths(tmp_path / ".gpucluster")
    paths.create()
    lock = paths.terraform / "cluster" / ".terraform.lock.hcl"
    lock.parent.mkdir(parents=True)
    for provider, survives in (("bundled", False), ("bundled", True), ("registry", False), ("registry", True)):
        lock.write_text("# checksums")
        LocalCloudProvider(ignored, paths, ignored, provider)._drop_other_provider_lock(provider)
        assert lock.exists() is survives, provider
