"""The users of the directory as Kubernetes sees them. Clusters without it have no quota in the configuration."""

from __future__ import annotations

from pathlib import Path

from gpucluster.controller.kubernetes import people
from gpucluster.controller.kubernetes.person_objects import KubernetesUser
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.state import DirectoryState
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes.kubectl import ADMIN, Kubectl


def people_of(state: DirectoryState, config: Config) -> list[KubernetesUser]:
    """All users of the directory, by uid."""
    privileged = state.privileged(config)
    kubernetes_users = []
    for user in sorted(state.users.values(), key=lambda user: user.uid):
        others = sorted(state.groups[name].gid for name in state.groups_of(user.name))
        gids = tuple(dict.fromkeys((user.gid, *others)))
        kubernetes_users.append(
            KubernetesUser(user.name, user.uid, gids, user.home, user.enabled, user.name in privileged)
        )
    return kubernetes_users


def follow(config: Config, state: DirectoryState, kubectl: Kubectl | None = None) -> bool:
    """Make Kubernetes follow the directory; returns whether anything changed. Before there is a control plane, nothing.

    Raises:
        Failed: it did not follow in every way. All else is done.
    """
    if config.kubernetes is None or (kubectl is None and not Path(ADMIN).is_file()):
        return False
    outcome = people.sync(
        kubectl or Kubectl(), people_of(state, config), config.kubernetes, engine=config.kubernetes_engine
    )
    if outcome.problems:
        raise Failed("; ".join(outcome.problems))
    return outcome.changed


def person_named(config: Config, state: DirectoryState, name: object) -> KubernetesUser:
    """The user of this name, if they may use the cluster.

    Raises:
        Refused: there is no such user, or they are disabled.
    """
    for person in people_of(state, config):
        if person.name == name:
            return _enabled(person)
    raise Refused(f"there is no user {str(name)[:40]!r} in the directory", "Run: gpucluster user list")


def person_of_uid(config: Config, state: DirectoryState, uid: int) -> KubernetesUser:
    """The user with this uid, if they may use the cluster.

    Raises:
        Refused: there is no such user, or they are disabled.
    """
    for person in people_of(state, config):
        if person.uid == uid:
            return _enabled(person)
    hint = "Operators run on their machine: gpucluster kubeconfig"
    raise Refused(f"no user of the cluster's directory has the uid {uid}", hint)


def _enabled(person: KubernetesUser) -> KubernetesUser:
    if not person.enabled:
        raise Refused(f"the user {person.name} is disabled", f"Run: gpucluster user enable {person.name}")
    return person
