"""Rotation of the secrets that the controller has made: each is one call of a program there.

Which of them a cluster has depends on its scheduler and on whether it has a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from pydantic.dataclasses import dataclass as checked

from gpucluster.errors import GpuClusterError, InputError, ToolError, UnconfirmedError
from gpucluster.events import Sink, info
from gpucluster.handover.names import monitoring_host
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.kubernetes import ALL_DAYS, ControlPlaneClient, require_own_control_plane
from gpucluster.operations.rpc import RemoteProgram
from gpucluster.spec import ClusterSpec

MUNGE, JWT, PASSWORDS, HOST_KEYS, SSH_CA = "munge", "jwt", "passwords", "host-keys", "ssh-ca"
DIRECTORY_CA, GRAFANA, KUBERNETES = "directory-ca", "grafana", "kubernetes"
CONTROLLER_KEY, CONTAINER_KEYS, JOIN_KEY = "controller-key", "container-keys", "join-key"
#: What can be rotated, in the order in which `all` does it.
SECRETS = (
    *(MUNGE, JWT, PASSWORDS, HOST_KEYS, SSH_CA, DIRECTORY_CA),
    *(CONTROLLER_KEY, CONTAINER_KEYS, JOIN_KEY, GRAFANA, KUBERNETES),
)
ALL = "all"
_PROGRAM = RemoteProgram(
    "sudo -n /usr/local/bin/gpucluster-agent rotate request",
    absent="the controller has no program for this yet",
    silent=("the controller does not answer", "Run the same command again: it goes on where this one has ended"),
)
_TIMEOUT = 60.0
RotationState = Literal["complete", "prepared", "switching", "unconfirmed"]


@checked(frozen=True)
class RotatableSecret:
    """A secret that can be rotated.

    Args:
        changed: when it was made or last changed, by the controller's clock (UTC, ISO 8601); empty if it is not known.
        state: of its rotation. `prepared`: hosts have the next one beside the present one; `switching`: the controller
            goes on by itself; `unconfirmed`: hosts have not confirmed that they use it.
        unconfirmed: the names of these hosts.
        expires: when the first of the certificates ends (UTC, ISO 8601); empty for what has no end.
    """

    name: str
    changed: str
    state: RotationState
    unconfirmed: tuple[str, ...] = ()
    expires: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "unconfirmed": list(self.unconfirmed)}


@checked(frozen=True)
class _State:
    secrets: tuple[RotatableSecret, ...]


@checked(frozen=True)
class RotatedSecret:
    """A secret that was rotated.

    Args:
        new: whether this call has begun it; False where it has only asked hosts again that had not confirmed an earlier
            one.
        hosts: the number of hosts that use it.
        away: hosts that are out of service now. They ask for a munge key, for the CA of the directory, and for the keys
            of the controller and of containers when they boot; the former password of such a host is accepted until it
            confirms the next one.
        unconfirmed: hosts that should use it and have not confirmed it.
        keys: of `host-keys`: the public keys of each host that has other ones now, as `type key`.
        authority: of `ssh-ca`: the public key of the CA that certifies hosts now. Of `directory-ca`: the certificate
            (PEM) of the CA that certifies servers now.
    """

    name: str
    new: bool
    hosts: int
    away: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    authority: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        lists = {"away": list(self.away), "unconfirmed": list(self.unconfirmed)}
        return {**asdict(self), **lists, "keys": {name: list(each) for name, each in self.keys.items()}}


@dataclass(frozen=True)
class Rotation:
    """What `rotate` has done."""

    secrets: tuple[RotatedSecret, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"secrets": [each.to_dict() for each in self.secrets]}


@checked(frozen=True)
class _Done:
    new: bool
    hosts: int
    away: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    authority: str = ""


def chosen(what: Sequence[str], spec: ClusterSpec) -> tuple[str, ...]:
    """The secrets of a request.

    Raises:
        InputError: one of them is none, the cluster does not have it, or none is named.
    """
    unknown = [name for name in what if name not in (*SECRETS, ALL)]
    if unknown or not what:
        message = f"{unknown[0]} can't be rotated" if unknown else "nothing is named that is to be rotated"
        raise InputError(message, hint=f"One or more of: {', '.join((*SECRETS, ALL))}")
    if KUBERNETES in what and spec.scheduler == "kubernetes":
        require_own_control_plane(spec, "certificates")
    own = secrets_of(spec)
    for name in what:
        if name not in (*own, ALL):
            message = f"this cluster has no {name} to rotate: {_REASONS[name]}"
            raise InputError(message, where=str(spec.file), hint="To see what it has, run: gpucluster rotate")
    if not own:
        message = f"there is nothing to rotate: the scheduler of this cluster is {spec.scheduler}, without a home share"
        raise InputError(message, where=str(spec.file), hint="Its hosts share no secret")
    return own if ALL in what else tuple(name for name in own if name in what)


_REASONS = {
    MUNGE: "its scheduler is not slurm",
    JWT: "slurm.rest is off",
    PASSWORDS: "it has no directory of its own",
    HOST_KEYS: "without a home share its controller does not know the other hosts",
    SSH_CA: "without a home share its controller does not know the other hosts",
    DIRECTORY_CA: "without a home share its hosts have none",
    CONTROLLER_KEY: "without a home share its controller logs in to no other host",
    CONTAINER_KEYS: "containers.runtimes has neither docker nor containerd, or it has no home share",
    JOIN_KEY: "it has no elastic pool, or no home share",
    GRAFANA: "monitoring.grafana is off",
    KUBERNETES: "its scheduler is not kubernetes",
}


def secrets_of(spec: ClusterSpec) -> tuple[str, ...]:
    """The secrets that a cluster has. The certificates of OKE are Oracle's."""
    has = {
        MUNGE: spec.slurm.enabled,
        JWT: spec.slurm.enabled and spec.slurm.rest,
        PASSWORDS: spec.storage.home.enabled and spec.users.directory is None,
        HOST_KEYS: spec.storage.home.enabled,
        SSH_CA: spec.storage.home.enabled,
        DIRECTORY_CA: spec.storage.home.enabled,
        CONTROLLER_KEY: spec.storage.home.enabled,
        CONTAINER_KEYS: spec.storage.home.enabled and bool({"docker", "containerd"} & {*spec.containers.runtimes}),
        JOIN_KEY: spec.storage.home.enabled and bool(spec.elastic_pools),
        GRAFANA: spec.monitoring.enabled and spec.monitoring.grafana,
        KUBERNETES: spec.scheduler == "kubernetes" and spec.kubernetes.control_plane != "oke",
    }
    return tuple(name for name in SECRETS if has[name])


class Rotations:
    """The secrets of one cluster."""

    def __init__(
        self, spec: ClusterSpec, controller: ControllerConnection, control_plane: ControlPlaneClient, on_event: Sink
    ) -> None:
        self._spec = spec
        self._controller = controller
        self._control_plane = control_plane
        self._on_event = on_event

    def present(self) -> tuple[RotatableSecret, ...]:
        """What can be rotated, when it was changed, and what an interrupted rotation has left.

        Raises:
            InputError: the cluster has nothing of it.
            ToolError: the controller does not answer.
        """
        own = chosen([ALL], self._spec)
        found: list[RotatableSecret] = []
        host_by_name = {name: self._host_of(name) for name in own if name != KUBERNETES}
        for host in dict.fromkeys(host_by_name.values()):
            answer = _PROGRAM.call(partial(self._argv, host), _State, "state", {}, timeout=_TIMEOUT)
            found += (each for each in answer.secrets if host_by_name.get(each.name, "") == host)
        if KUBERNETES in own:
            ends = [each.expires for each in self._control_plane.certificates() if not each.authority]
            found.append(RotatableSecret(KUBERNETES, "", "complete", (), min(ends, default="")))
        return tuple(found)

    def rotate(self, what: Sequence[str], on_done: Callable[[RotatedSecret], None] = lambda _: None) -> Rotation:
        """Rotate secrets, or complete a rotation that was interrupted.

        Args:
            on_done: is called with each of them before the next one begins.

        Raises:
            InputError: one of them can't be rotated.
            UnconfirmedError: the secret is changed, and hosts have not confirmed it.
            ToolError: it failed, or the controller does not answer. The same call goes on.
        """
        names = chosen(what, self._spec)
        done: list[RotatedSecret] = []
        unconfirmed: list[UnconfirmedError] = []
        for number, name in enumerate(names):
            try:
                done.append(self._rotate(name))
                on_done(done[-1])
            except UnconfirmedError as error:
                # It is changed, and what follows does not depend on the hosts that have not confirmed it.
                unconfirmed.append(error)
                done.append(_of(name, error.done))
                on_done(done[-1])
            except GpuClusterError as error:
                left = names[number + 1 :]
                error.hint = _with(error.hint, f"Not begun: {', '.join(left)}" if left else "")
                raise
        if unconfirmed:
            text = "; ".join(error.what for error in unconfirmed)
            raise UnconfirmedError(text, hint=unconfirmed[0].hint, done=Rotation(tuple(done)))
        return Rotation(tuple(done))

    def _rotate(self, name: str) -> RotatedSecret:
        if name == KUBERNETES:
            self._control_plane.renew(ALL_DAYS)
            return RotatedSecret(KUBERNETES, True, 1, (), ())
        host = self._host_of(name)
        answer = _PROGRAM.call(
            partial(self._argv, host),
            dict[str, _Done],
            "rotate",
            {"what": [name]},
            on_progress=lambda line: info(self._on_event, host or "controller", line),
        )
        return _of(name, answer)

    def _host_of(self, name: str) -> str | None:
        """The host whose program rotates a secret; None for the controller."""
        return monitoring_host(self._spec) if name == GRAFANA else None

    def _argv(self, host: str | None, command: Sequence[str]) -> list[str]:
        return self._controller.ssh_argv(host, command)


def _of(name: str, answer: Mapping[str, _Done]) -> RotatedSecret:
    done = answer.get(name)
    if done is None:
        raise ToolError(f"the controller does not report what it has done about {name}", hint="Run: gpucluster apply")
    return RotatedSecret(name, **vars(done))


def _with(hint: str, more: str) -> str:
    return f"{hint}. {more}" if hint and more else hint or more
