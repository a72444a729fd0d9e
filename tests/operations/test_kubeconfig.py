"""Files of kubeconfig: what is in them, who may read them, and what they never replace. A real server takes them."""

from __future__ import annotations

import base64
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gpucluster.controller.kubernetes import client_certificates
from gpucluster.controller.kubernetes.person_objects import OPERATORS
from gpucluster.errors import InputError, ToolError
from gpucluster.node_agent.kubernetes.kubectl import Kubectl
from gpucluster.operations.kubeconfig import Kubeconfigs, kubectl_argv
from gpucluster.spec import load, template
from tests.controller.kubernetes.api_server import binaries, needs_api_server, running

_SSH = ["ssh", "-F", "/x/ssh_config", "demo-controller"]


class Authority:
    """The controller's answers, by the program that it has: the real signature, with a CA of the test."""

    def __init__(self, authority: Path, server: str = "https://10.0.0.2:6443") -> None:
        self.authority, self.server, self.asked = authority, server, {}  # type: ignore[var-annotated]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes",
             "-keyout", str(authority / "ca.key"), "-out", str(authority / "ca.crt")],
            check=True, capture_output=True,
        )  # fmt: skip

    def ask(self, operation: str, **given: Any) -> dict[str, Any]:
        self.asked = {"operation": operation, **given}
        if operation == "client.token":
            return self.token(**given)
        user = given["user"] or "gpucluster:operator"
        groups = [] if given["user"] else [OPERATORS]
        return {
            "certificate": client_certificates.sign(given["request"], user, groups, given["hours"], self.authority),
            "authority": (self.authority / "ca.crt").read_text(), "server": self.server, "user": user,
            "namespace": f"user-{user}" if given["user"] else "default",
        }  # fmt: skip

    def token(self, **given: Any) -> dict[str, Any]:
        """The answer of a controller whose control plane is Oracle's."""
        expires = (datetime.now(UTC) + timedelta(hours=3, minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "token": "a-token", "expires": expires, "authority": (self.authority / "ca.crt").read_text(),
            "server": self.server, "user": given["user"] or "gpucluster:operator", "namespace": "user-ada",
        }  # fmt: skip

    def require_own(self) -> None:
        """The cluster is this folder's."""

    def ssh_argv(self, host: str | None = None, command: Any = ()) -> list[str]:
        return [*_SSH, *(["--", *command] if command else [])]


@pytest.fixture
def controller(tmp_path: Path) -> Authority:
    (tmp_path / "pki").mkdir()
    return Authority(tmp_path / "pki")


def _files(controller: Authority) -> Kubeconfigs:
    file = controller.authority / "cluster.yml"
    file.write_text(template("demo", "local") + "\nscheduler: kubernetes\nkubernetes: {kubeconfig_hours: 5}\n")
    return Kubeconfigs(load(file), controller, controller)  # type: ignore[arg-type]


def test_where_oracle_runs_the_control_plane_the_file_has_a_token(controller: Authority, tmp_path: Path) -> None:
    file = controller.authority / "cluster.yml"
    section = "kubernetes: {control_plane: oke, kubeconfig_hours: 12}"
    file.write_text(template("demo", "local") + f"\nscheduler: kubernetes\n{section}\n")
    files = Kubeconfigs(load(file), controller, controller)  # type: ignore[arg-type]
    done = files.write("ada", tmp_path / "ada.yaml")
    assert (tmp_path / "ada.yaml").stat().st_mode & 0o777 == 0o600
    found = yaml.safe_load((tmp_path / "ada.yaml").read_text())
    assert found["users"] == [{"name": "ada", "user": {"token": "a-token"}}]
    assert controller.asked == {"operation": "client.token", "user": "ada", "hours": 12}
    assert (done.hours, done.server) == (3, "https://10.0.0.2:6443"), "what the API server gave"
    # The certificate of OKE's API server has the address of its endpoint, and no name that kubeadm writes.
    forwarded = files.write(None, tmp_path / "operator.yaml")
    cluster = yaml.safe_load((tmp_path / "operator.yaml").read_text())["clusters"][0]["cluster"]
    assert (cluster["server"], cluster["tls-server-name"]) == ("https://127.0.0.1:16443", "10.0.0.2")
    assert "16443:10.0.0.2:6443" in str(forwarded.forward)
    assert "a-token" not in str(done.to_dict())


def test_the_key_stays_here_and_only_the_owner_reads_the_file(controller: Authority, tmp_path: Path) -> None:
    file = tmp_path / "ada.yaml"
    done = _files(controller).write("ada", file)
    assert file.stat().st_mode & 0o777 == 0o600
    found = yaml.safe_load(file.read_text())
    user = {key: base64.b64decode(text) for key, text in found["users"][0]["user"].items()}
    key = serialization.load_pem_private_key(user["client-key-data"], None)
    signed = x509.load_pem_x509_certificate(user["client-certificate-data"])
    assert signed.public_key() == key.public_key()
    assert signed.subject.rfc4514_string() == "CN=ada"
    assert 5 < (signed.not_valid_after_utc - signed.not_valid_before_utc).total_seconds() / 3600 < 5.1
    assert "PRIVATE" not in str(controller.asked)
    assert controller.asked["hours"] == 5
    assert (done.server, done.forward, done.namespace) == ("https://10.0.0.2:6443", None, "user-ada")
    assert "PRIVATE" not in str(done.to_dict())


def test_an_operator_reaches_the_api_through_ssh_and_checks_its_certificate(
    controller: Authority, tmp_path: Path
) -> None:
    done = _files(controller).write(None, tmp_path / "own.yaml")
    where = yaml.safe_load((tmp_path / "own.yaml").read_text())["clusters"][0]["cluster"]
    assert (where["server"], where["tls-server-name"]) == ("https://127.0.0.1:16443", "kubernetes")
    assert "insecure-skip-tls-verify" not in where
    assert done.forward == (
        "ssh -S none -o ExitOnForwardFailure=yes -N -L 16443:10.0.0.2:6443 -F /x/ssh_config demo-controller"
    )


def test_a_file_with_access_to_other_clusters_is_never_replaced(controller: Authority, tmp_path: Path) -> None:
    file, files = tmp_path / "config", _files(controller)
    for text in ("clusters: [{name: other}]", "clusters: [{name: demo}, {name: other}]", "not: [yaml", "", "[1]"):
        file.write_text(text)
        with pytest.raises(InputError, match="not a kubeconfig of demo alone"):
            files.write("ada", file)
        assert file.read_text() == text
    assert not controller.asked
    file.unlink()
    first = files.write("ada", file)
    assert files.write("ada", file) == first  # renewed


@pytest.mark.parametrize("name", ["../ada", "-x", "A", "", "a" * 33])
def test_what_is_not_a_name_is_refused_before_anything_is_asked(controller: Authority, name: str) -> None:
    with pytest.raises(InputError, match="not a user name"):
        _files(controller).write(name)
    assert not controller.asked


def test_an_answer_of_another_version_is_an_error_with_the_next_command(
    controller: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _files(controller)
    monkeypatch.setattr(controller, "ask", lambda *_words, **_given: {"certificate": "x"})
    with pytest.raises(ToolError, match="can't be read"):
        files.write(None, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_kubectl_runs_as_an_operator_with_each_word_as_it_is(controller: Authority) -> None:
    argv = kubectl_argv(controller, ["get", "pods", "-l", "a=b; rm -rf /"], terminal=True)  # type: ignore[arg-type]
    assert argv[:2] == ["ssh", "-t"]
    words = shlex.split(argv[-1])
    assert words[-4:] == ["get", "pods", "-l", "a=b; rm -rf /"]
    assert "--as-group=gpucluster:operators" in words
    assert words[:2] == ["sudo", "-n"]


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_real_api_server_takes_the_file_of_a_user(controller: Authority, tmp_path: Path) -> None:
    authority = f"--client-ca-file={controller.authority / 'ca.crt'}"
    with running(tmp_path, authority) as server:
        controller.server = server.kubectl.server()
        file = tmp_path / "ada.yaml"
        _files(controller).write("ada", file)
        config = yaml.safe_load(file.read_text())
        # The server's own certificate of the tests is not of this CA.
        config["clusters"][0]["cluster"] = {"server": controller.server, "insecure-skip-tls-verify": True}
        file.write_text(yaml.safe_dump(config))
        ada = Kubectl(str(file), f"{binaries()}/kubectl")
        server.kubectl.run("create", "namespace", "user-ada")
        server.kubectl.run(
            "create", "rolebinding", "a", "--clusterrole=cluster-admin", "--user=ada", "--namespace=user-ada"
        )
        # The namespace of the file is the user's own.
        assert ada.run("get", "configmaps", "--output=name") is not None
