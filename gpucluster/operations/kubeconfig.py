"""Access to Kubernetes' API: files with a short-lived certificate or token for kubectl, and kubectl on the controller.

A key is made here and leaves this machine in no way: the controller gets a request with its public half. Where Oracle
runs the control plane no certificate can be signed, and the API server makes a token. The file of the cluster's
administrator on the controller is given to no user.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from gpucluster.controller.kubernetes import kubeconfig
from gpucluster.controller.kubernetes.person_objects import OPERATORS
from gpucluster.controller.rules.names import NAME_PATTERN
from gpucluster.errors import InputError, ToolError
from gpucluster.node_agent.kubernetes.kubectl import ADMIN
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.kubernetes import ControlPlaneClient
from gpucluster.operations.users import require_directory
from gpucluster.paths import write_private
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable

#: The port of this machine in an operator's file, unless another one is asked for.
LOCAL_PORT = 16443
# With the rights of an operator, which the directory of the API server knows: not with those of the administrator.
_KUBECTL = (
    "sudo", "-n", "env", "PATH=/usr/local/bin:/usr/bin:/bin", "kubectl", f"--kubeconfig={ADMIN}",
    "--as=gpucluster:operator", f"--as-group={OPERATORS}",
)  # fmt: skip


@checked(frozen=True)
class _Answer:
    """The controller's answer: a certificate or a token, and what belongs to it."""

    authority: str
    server: str
    user: str
    namespace: str
    certificate: str = ""
    token: str = ""
    expires: str = ""


@dataclass(frozen=True)
class WrittenKubeconfig:
    """A file that was written.

    Args:
        user: its name in Kubernetes.
        server: the address of the API server in the file.
        hours: for which it is valid.
        forward: the command that makes the address reachable; None where hosts of the cluster reach it.
    """

    file: str
    user: str
    namespace: str
    server: str
    hours: int
    forward: str | None

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(vars(self))


def key_and_request() -> tuple[str, str]:
    """A new key and a certificate request for it, both as PEM. The controller chooses the names of the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpucluster kubeconfig")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret.decode(), request.public_bytes(serialization.Encoding.PEM).decode()


class Kubeconfigs:
    """Writes kubeconfig files for one cluster."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection, plane: ControlPlaneClient) -> None:
        self._spec, self._controller, self._plane = spec, controller, plane

    def write(self, user: str | None, file: Path | None = None, local_port: int | None = None) -> WrittenKubeconfig:
        """Write a new file, or renew the one that is there.

        Args:
            user: a user of the directory; None for an operator.
            file: None: `kubeconfig-CLUSTER.yaml`, or `kubeconfig-CLUSTER-USER.yaml`.
            local_port: the port of a machine outside of the cluster from which ssh forwards to the API server. None:
                LOCAL_PORT for an operator, and for a user the address that the cluster's hosts reach.

        Raises:
            InputError: there is no such user, they are disabled, or another file is there.
            ToolError: the controller gives no answer.
            EnvironmentFault: the file can't be written.
        """
        if user is not None:
            require_directory(self._spec, "With storage.home, users are those of a directory")
            if not re.fullmatch(NAME_PATTERN, user):
                raise InputError(f"not a user name: {printable(user)}", hint="Run: gpucluster user list")
        file = file or Path(f"kubeconfig-{self._spec.name}{f'-{user}' if user else ''}.yaml")
        check_file(file, self._spec.name)
        self._controller.require_own()  # a certificate is issued, and roles may be made
        hours = self._spec.kubernetes.kubeconfig_hours
        if self._spec.kubernetes.control_plane == "oke":
            key, answer = "", self._call("client.token", user=user, hours=hours)
        else:
            key, request = key_and_request()
            answer = self._call("client.certificate", request=request, user=user, hours=hours)
        port = LOCAL_PORT if local_port is None and user is None else local_port
        made = kubeconfig.of_person(self._spec.name, vars(answer), key, port)
        write_private(file.resolve(), yaml.safe_dump(made, sort_keys=False))
        forward = None if port is None else self._forward(port, answer.server)
        name, namespace = printable(answer.user), printable(answer.namespace)
        server = made["clusters"][0]["cluster"]["server"]
        return WrittenKubeconfig(str(file), name, namespace, server, _hours_left(answer, hours), forward)

    def _call(self, operation: str, **arguments: Any) -> _Answer:
        try:
            answer = TypeAdapter(_Answer).validate_python(self._plane.ask(operation, **arguments))
        except ValidationError:
            answer = None
        if answer is None or not (answer.certificate or answer.token):
            raise ToolError(
                "the controller's answer can't be read",
                hint="Its program may be of another version than this one. Run: gpucluster apply",
            )
        return answer

    def _forward(self, port: int, server: str) -> str:
        parts = urlsplit(server)
        target = f"{port}:{parts.hostname}:{parts.port or 443}"
        ssh, *rest = self._controller.ssh_argv()
        # A connection of its own: one that others share would forward the port, end this command at once, and end the
        # forwarding with itself.
        own = ["-S", "none", "-o", "ExitOnForwardFailure=yes"]
        return shlex.join([ssh, *own, "-N", "-L", target, *rest])


def check_file(file: Path, cluster: str) -> None:
    """Only a file that has nothing but this cluster is replaced: others hold the access to other clusters.

    Raises:
        InputError: something else is there.
    """
    if file.is_dir():
        raise InputError("this is a folder", where=str(file), hint=f"Name a file in it: {file / 'kubeconfig'}")
    if not file.absolute().parent.is_dir():
        raise InputError("there is no such folder", where=str(file.parent), hint=f"Run: mkdir -p {file.parent}")
    if not file.exists():
        return
    try:
        document: Any = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError, yaml.YAMLError):
        document = None
    if not kubeconfig.holds_only(document, cluster):
        what = f"there is a file already, and it is not a kubeconfig of {cluster} alone"
        raise InputError(what, where=str(file), hint="Name another file, or move that one away")


def kubectl_argv(controller: ControllerConnection, words: Sequence[str], *, terminal: bool) -> list[str]:
    """The command line that runs kubectl on the controller, with the rights of an operator.

    Args:
        words: of kubectl.
        terminal: whether it gets a terminal, as `kubectl exec -it` wants one.

    Raises:
        ToolError: nothing was applied yet.
    """
    ssh, *rest = controller.ssh_argv(None, [shlex.join([*_KUBECTL, *words])])
    return [ssh, *(["-t"] if terminal else []), *rest]


def _hours_left(answer: _Answer, hours: int) -> int:
    """For how many hours the access is valid: an API server may give less than what was asked for."""
    try:
        ends = datetime.fromisoformat(answer.expires)
    except ValueError:
        return hours
    # The answer is some seconds old.
    return min(hours, round((ends - datetime.now(UTC)).total_seconds() / 3600))
