"""The files of a control plane: units, kubeconfigs and keys. tests/e2e/test_kubernetes_oke.py runs one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from gpucluster.localcloud.kubernetes import certificates, control_plane, releases
from gpucluster.localcloud.kubernetes.releases import MirroredRelease
from gpucluster.localcloud.state.store import Resource
from tests.localcloud.kubernetes.test_releases import fill


def cluster(**options: Any) -> Resource:
    authority, key = certificates.new_authority("oke-ca")
    network = {"podsCidr": "10.244.0.0/16", "servicesCidr": "10.96.0.0/16"}
    body = {"name": "demo", "options": {"kubernetesNetworkConfig": network, **options}}
    hidden = {"ip": "10.0.0.9", "ca": authority, "ca_key": key, **control_plane.new_secrets()}
    return Resource("ocid1.cluster.local..abcdefghijklmnop", "cluster", body, hidden)


def flags(unit: str) -> dict[str, str]:
    """The options of the command that a unit starts."""
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))[1:]
    return dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)


def release(folder: Path, number: str = "1.31.1") -> MirroredRelease:
    return MirroredRelease(number, fill(folder / "mirror", number, *releases.PARTS), folder / "kubelet", folder)


def test_the_parts_use_one_set_of_files(tmp_path: Path) -> None:
    row = cluster()
    control_plane._write_files(None, row, release(tmp_path), tmp_path / "files")  # type: ignore[arg-type]
    files = {path.name for path in (tmp_path / "files").rglob("*") if path.is_file()}
    units = {path.stem: path.read_text() for path in (tmp_path / "files" / "units").iterdir()}
    assert set(units) == {
        "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "cluster-addons",
    }  # fmt: skip
    used = {
        value.removeprefix(f"{control_plane._FILES}/")
        for name in units
        for value in flags(units[name]).values()
        if value.startswith(control_plane._FILES)
    }
    assert used
    assert used <= files, "every file that an option names is there"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "files").rglob("*"))


def test_ranges_and_addresses_come_from_the_cluster(tmp_path: Path) -> None:
    units = control_plane._units(cluster(), release(tmp_path))
    server, manager = flags(units["kube-apiserver"]), flags(units["kube-controller-manager"])
    assert (server["advertise-address"], server["service-cluster-ip-range"]) == ("10.0.0.9", "10.96.0.0/16")
    assert (manager["cluster-cidr"], manager["service-cluster-ip-range"]) == ("10.244.0.0/16", "10.96.0.0/16")
    assert server["service-account-key-file"] == manager["service-account-private-key-file"]


@pytest.mark.parametrize(("number", "port"), [("1.20.2", "0"), ("1.23.9", "0"), ("1.24.0", None), ("1.31.1", None)])
def test_the_port_without_tls_is_off_where_a_release_still_has_it(
    tmp_path: Path, number: str, port: str | None
) -> None:
    units = control_plane._units(cluster(), release(tmp_path, number))
    assert [flags(units[name]).get("port") for name in ("kube-controller-manager", "kube-scheduler")] == [port, port]


@pytest.mark.parametrize(
    ("enabled", "plugins"), [(True, "NodeRestriction,PodSecurityPolicy"), (False, "NodeRestriction")]
)
def test_pod_security_policies_are_checked_where_the_cluster_has_them(
    tmp_path: Path, enabled: bool, plugins: str
) -> None:
    row = cluster(admissionControllerOptions={"isPodSecurityPolicyEnabled": enabled})
    assert flags(control_plane._units(row, release(tmp_path))["kube-apiserver"])["enable-admission-plugins"] == plugins


def test_the_api_server_asks_the_cloud_with_the_secret_of_its_cluster() -> None:
    row = cluster()
    reviewer: Any = control_plane._reviewer(row)
    assert reviewer["users"][0]["user"] == {"token": row.hidden["review_secret"]}
    assert reviewer["clusters"][0]["cluster"]["server"].endswith(f"{control_plane.REVIEWS}/{row.id}")
    assert json.loads(json.dumps(reviewer)) == reviewer


def test_secrets_are_new_for_each_cluster() -> None:
    one, other = control_plane.new_secrets(), control_plane.new_secrets()
    assert set(one) == set(other) == {"accounts_key", "review_secret"}
    assert all(one[name] != other[name] for name in one)
