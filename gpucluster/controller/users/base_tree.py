"""The directory's base tree (DIT): units, counters, the cluster's groups, and the entries with which hosts bind."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from gpucluster.controller.users import host_entries, hosts, lock
from gpucluster.controller.users.config import Config
from gpucluster.controller.users.controller import DirectoryController
from gpucluster.controller.users.host_entries import ClusterHosts, DesiredHost, HostEntry
from gpucluster.controller.users.ldap import Ldap
from gpucluster.controller.users.state import DirectoryState
from gpucluster.node_agent import passwords
from gpucluster.node_agent.errors import Failed, Refused

#: For how long a node that boots waits for another change of the directory. It asks again.
_LOCK_SECONDS = 10.0


def make(controller: DirectoryController, desired_hosts: Iterable[DesiredHost] = ()) -> bool:
    """Create what is missing; returns whether anything changed. The caller holds the lock.

    Args:
        desired_hosts: the hosts of this run. Those of earlier ones keep their entries, but for elastic nodes that are
            gone.

    Raises:
        Failed: the server does not accept a password, or the file of passwords can't be used.
    """
    plan = controller.plan(controller.state(), {})
    changed = controller.apply(plan)
    entries = _read(controller.config.hosts_file)
    desired = list(desired_hosts)
    if entries is None and not desired:
        # The passwords of hosts are not known any more: they still have them, and the next apply makes new ones.
        return changed
    before = entries or {}
    now = int(time.time())
    after = host_entries.put(before, desired, passwords.made, now)
    if desired:
        after = host_entries.without_removed(after, _cluster(controller.config), now)
    return _store(controller.config, controller.ldap, plan.state, before, after) or changed


def revoke(controller: DirectoryController, permanent: Collection[str]) -> bool:
    """Remove the entries of hosts that are gone; returns whether anything changed. The caller holds the lock.

    Args:
        permanent: the permanent hosts of the cluster.
    """
    config = controller.config
    before = _read(config.hosts_file)
    if before is None:
        return False
    after = host_entries.without_removed(before, _cluster(config, permanent), int(time.time()))
    return _store(config, controller.ldap, controller.state(), before, after)


def admit(config: Config, host: Callable[[], DesiredHost | None], hashed: str) -> str:
    """Make the entry of an elastic node that boots, with a password of which only the hash is known here; returns its
    name. It reads no users, so it costs the same in a directory with many.

    Args:
        host: which node asks. It is looked at under the lock: who has waited for it may be another node's past.

    Raises:
        Refused: no node asks, or what it sent is not a hash.
        Failed: the directory or its lock is not available, or the file of passwords can't be used.
    """
    # Slurm may take its time, and others must not wait for it. What is made meanwhile stays in its first hour.
    cluster = _cluster(config)
    with lock.held(seconds=_LOCK_SECONDS):
        node = host()
        if node is None:
            raise Refused("no node boots at this address now", "Ask again when the autoscaler knows it")
        before = _read(config.hosts_file)
        if before is None:
            # Of the other hosts nothing would be known, and their entries would go.
            raise Failed(f"there is no {config.hosts_file}", "Run: gpucluster apply")
        now = int(time.time())
        after = host_entries.without_removed(host_entries.put_hash(before, node, hashed, now), cluster, now)
        _store_hosts(config, before, after)
    return node.name


def renew(config: Config, names: Collection[str], off: Collection[str] = ()) -> tuple[dict[str, HostEntry], bool]:
    """Make another password for each of these hosts, which the directory accepts beside the one before. Where hosts
    have not confirmed an earlier one, those come first, and no other password is made.

    Args:
        off: hosts that can't confirm anything now. They keep the passwords that they have.

    Returns:
        The entries whose host has to confirm its password, and whether passwords were made.

    Raises:
        Refused: this cluster has no directory.
        Failed: the directory or its lock is not available, or the file of passwords can't be used.
    """
    with lock.held():
        before = _read(config.hosts_file)
        if before is None:
            raise Refused(f"there is no {config.hosts_file}", "Run: gpucluster apply")
        after: Mapping[str, HostEntry] = before
        is_new = not any(entry.former for name, entry in before.items() if name not in off)
        if is_new:
            chosen = [name for name in sorted(names) if name in before and name not in off]
            after = host_entries.renew(before, chosen, passwords.made, int(time.time()))
        # Also where the one before was killed between the file and the directory.
        _store_hosts(config, before, after)
    return {name: entry for name, entry in after.items() if entry.former and name not in off}, is_new


def confirm(config: Config, hash_by_name: Mapping[str, str]) -> None:
    """End the former passwords of hosts that have confirmed the present one: see `host_entries.confirm`.

    Raises:
        Failed: the directory or its lock is not available, or the file of passwords can't be used.
    """
    with lock.held():
        before = _read(config.hosts_file) or {}
        _store_hosts(config, before, host_entries.confirm(before, hash_by_name))


def present(config: Config) -> dict[str, HostEntry]:
    """The entries in the controller's file; none without one.

    Raises:
        Failed: it is damaged.
    """
    return _read(config.hosts_file) or {}


def _store_hosts(config: Config, before: Mapping[str, HostEntry], after: Mapping[str, HostEntry]) -> None:
    directory = Ldap(config.uri)
    state = DirectoryState.read(config, directory.search(config.hosts_dn, "one", ["userPassword"]))
    _store(config, directory, state, before, after)


def _cluster(config: Config, permanent: Collection[str] | None = None) -> ClusterHosts:
    lists = [name for name in config.hosts.login_user_by_host if hosts.is_hostlist(name)]
    try:
        existing: Collection[str] | None = hosts.existing(",".join(lists)) if lists else ()
    except Failed:
        existing = None
    return ClusterHosts(permanent, lambda name: any(hosts.lists(nodes, name) for nodes in lists), existing)


def _store(
    config: Config,
    directory: Ldap,
    state: DirectoryState,
    before: Mapping[str, HostEntry],
    after: Mapping[str, HostEntry],
) -> bool:
    """The file first: whatever ends this, the next run makes the directory like it."""
    if after != before:
        passwords.write_file(config.hosts_file, host_entries.text(after))
    records = host_entries.records(config, after, state.hosts)
    directory.apply(records)
    return after != before or bool(records)


def _read(file: Path) -> dict[str, HostEntry] | None:
    """The entries in the file; None without one.

    Raises:
        Failed: it is damaged.
    """
    try:
        return host_entries.parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Not the error itself: it may quote the file.
        hint = "Remove it and run `gpucluster apply`: every host gets a new password"
        raise Failed(f"{file} can't be read ({type(error).__name__})", hint) from None
