"""The directory against what `cluster` has written, and Slurm's associations against the users of the directory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gpucluster.controller.users import written
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.ldap import Ldap
from gpucluster.controller.users.slurm import Association, SlurmAccounting
from gpucluster.controller.users.state import ATTRIBUTES, DirectoryState
from gpucluster.node_agent.drift.recorded import Finding, finding


def state(config: Config) -> DirectoryState:
    """The whole directory.

    Raises:
        Failed: it does not answer.
    """
    return DirectoryState.read(config, Ldap(config.uri).search(config.suffix, "sub", ATTRIBUTES))


def of_entries(config: Config, found: DirectoryState) -> dict[str, Any]:
    """`findings`: entries that other programs have made, changed or removed; or `error`."""
    known = written.read(config.written_file)
    if known is None:
        return {"error": "it is not recorded what `cluster` has written. Run: gpucluster apply"}
    return {"findings": list(written.differences(known, written.described(found)))}


def of_associations(config: Config, found: DirectoryState, local: Collection[str]) -> list[Finding]:
    """Associations of users that the directory does not have, and users without one.

    Args:
        local: users of this host, such as the image's login user.

    Raises:
        Failed: the accounting does not answer.
    """
    assert config.slurm is not None
    have = SlurmAccounting(config.slurm).associations()
    return list(differing(have, [user.name for user in found.users.values() if user.enabled], local, found.users))


def differing(
    have: Mapping[str, Sequence[Association]], users: Sequence[str], local: Collection[str], known: Collection[str]
) -> Iterator[Finding]:
    """The same, from what the accounting has.

    Args:
        users: those who need an association. `known`: all of the directory.
    """
    for name in sorted(set(users) - set(have)):
        yield finding("association", name, "an association with an account", "none")
    for name in sorted(set(have) - {*known, *local}):
        accounts = ", ".join(sorted(each.account for each in have[name]))
        yield finding("association", name, "no such user", f"an association with {accounts}")
