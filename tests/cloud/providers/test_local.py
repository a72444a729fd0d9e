"""The local cloud as a cloud of the operator's machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.cloud.providers.local import LocalCloudProvider
from gpucluster.errors import EnvironmentFault
from gpucluster.events import ignore
from gpucluster.localcloud import control
from gpucluster.localcloud.server.work_requests import FILE
from gpucluster.paths import ClusterPaths
from gpucluster.spec import loads
from tests.localcloud.api_harness import running
from tests.spec.spec_texts import LOCAL
from tests.waiting import PATIENCE_S


def test_the_real_provider_is_pointed_at_the_local_cloud_and_at_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    ignored: Any = None
    paths = ClusterPaths(tmp_path / ".gpucluster")
    paths.create()
    spec: Any = SimpleNamespace(cloud=SimpleNamespace(auth="profile"))
    cloud = LocalCloudProvider(spec, paths, ignored, "registry")
    cloud.home = tmp_path
    (tmp_path / "credentials").mkdir()
    lines = ("tenancy=ocid1.tenancy.x", "user=ocid1.user.x", "fingerprint=aa:bb", "key_file=/k.pem", "region=local-1")
    (tmp_path / "credentials" / "config").write_text("\n".join(("[DEFAULT]", *lines, "")))
    (tmp_path / "endpoint.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:8089"}))
    (tmp_path / FILE).write_text(json.dumps({"proxy": "http://127.0.0.1:8090", "certificate": "/c.pem"}))
    env = cloud.terraform_env("registry.example/oracle/oci")
    # The provider splits at ; and =, and drops what is not a name and a host; its SDK refuses a host with a path.
    pairs = [item.split("=") for item in env["CLIENT_HOST_OVERRIDES"].split(";")]
    assert {host for _, host in pairs} == {"http://127.0.0.1:8089"}
    assert {name for name, _ in pairs} == {
        "oci_core.VirtualNetworkClient",
        "oci_core.ComputeClient",
        "oci_core.ComputeManagementClient",
        "oci_core.BlockstorageClient",
        "oci_identity.IdentityClient",
        "oci_file_storage.FileStorageClient",
        "oci_bastion.BastionClient",
    }
    # Whatever is not overridden is looked for at <service>.local-1.invalid, which never exists.
    assert env["OCI_DEFAULT_REALM"] == "invalid"
    assert "TF_CLI_CONFIG_FILE" not in env
    assert (env["HTTPS_PROXY"], env["custom_cert_location"]) == ("http://127.0.0.1:8090", "/c.pem")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    assert "HTTPS_PROXY" not in cloud.terraform_env("registry.example/oracle/oci")


@pytest.mark.slow
def test_a_machine_with_the_credentials_alone_needs_no_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: endpoint.json names a process of another machine, and there is no podman here."""
    spec = loads(LOCAL, "cluster.yml")
    with running(tmp_path / "server") as api:
        home = tmp_path / "home"
        shutil.copytree(api.home / "credentials", home / "credentials")
        (home / "endpoint.json").write_text(json.dumps({"endpoint": api.endpoint, "pid": 1, "identity": "elsewhere"}))
        monkeypatch.setenv("GPUCLUSTER_HOME", str(home))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(control, "_ELSEWHERE_TIMEOUT", PATIENCE_S)
        cloud = LocalCloudProvider(spec, ClusterPaths(tmp_path / ".gpucluster"), ignore)
        assert cloud.in_use()
        cloud.check()
        cloud.check_network()
        cloud.start(to_build=True)
        assert cloud.access().client("identity", "IdentityClient").list_availability_domains(api.tenancy).data
        cloud.stop_if_empty()
        assert control.status(api.home).running
        assert sorted(file.name for file in home.iterdir()) == ["credentials", "endpoint.json"]
        # The address of a local cloud that is gone may have been given to another one.
        config = home / "credentials" / "config"
        config.write_text(config.read_text().replace(api.tenancy, "ocid1.tenancy.other"))
        with pytest.raises(EnvironmentFault, match="can't run the local cloud"):
            cloud.check()
