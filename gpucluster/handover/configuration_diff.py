"""What apply would configure on the hosts: the settings of the last complete apply, compared with those of now. Pure.

Settings are the inventory's variables, without what depends on the machine that runs apply and without the lists of
hosts: which host is configured is compared by its OCID. The content of files on the hosts is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucluster import formats

#: The version of the record's format.
FORMAT = 1
NOT_KNOWN = "how the hosts are configured is not known: apply configures all of them"

# Paths on the machine that runs apply, and the lists of hosts.
_LEFT_OUT = frozenset({"gpucluster_hosts", "software_files", "software_directory", "autoscaler_wheels"})
# The names of variables in messages: by the beginning of its name, the longest first.
_SUBJECTS = {
    "users_people": "users", "users_": "users", "slurm_pools": "pools", "slurm_partitions": "partitions",
    "slurm_": "slurm", "containers_": "containers", "pyxis_": "containers", "nvidia_": "nvidia",
    "autoscaler_policy": "autoscaler", "software": "software", "home_": "storage.home", "nfs_shares": "storage.shares",
    "private_subnet_": "network",
    "base_": "network", "health_": "checks", "monitoring_": "monitoring", "kubernetes_": "kubernetes",
    "scheduler": "scheduler", "": "software",
}  # fmt: skip
_WITHOUT_NAME = frozenset(
    {"users_people", "slurm_pools", "slurm_partitions", "autoscaler_policy", "software", "scheduler", "nfs_shares"}
)


@dataclass(frozen=True)
class ConfigurationDifference:
    """One thing that apply would configure.

    Args:
        subject: what it belongs to, in the words of cluster.yml: users, slurm, containers...
        action: add, remove, change or configure.
        what: the user, the key, or a sentence.
        before: the value of the last complete apply; None if there was none.
        after: the value that it would get; None if it is removed.
    """

    subject: str
    action: str
    what: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.action == "configure":
            return f"{self.subject}: {self.what}"
        if self.before is None and self.after is None:
            return f"{self.subject}: {self.action} {self.what}"
        if self.before is None:
            return f"{self.subject}: {self.what} = {self.after}"
        if self.after is None:
            return f"{self.subject}: remove {self.what}"
        return f"{self.subject}: {self.what} {self.before} -> {self.after}"


def settings(variables: Mapping[str, Any], software: Mapping[str, str]) -> dict[str, Any]:
    """What is compared of the inventory's variables.

    Args:
        software: the version of each release that the hosts need.
    """
    kept = {name: value for name, value in variables.items() if name not in _LEFT_OUT}
    if variables.get("scheduler") != "kubernetes":  # its keys have no effect
        kept = {name: value for name, value in kept.items() if not name.startswith("kubernetes_")}
    kept["software"] = dict(software)
    kept["slurm_pools"] = [
        {key: value for key, value in pool.items() if key != "nodes"} for pool in variables["slurm_pools"]
    ]
    if variables.get("home_mount_path") is not None:
        del kept["users_people"]  # The directory itself is asked: `gpucluster user` changes it, too.
    return kept


def record(*, gpucluster: str, content: str, settings: Mapping[str, Any], hosts: Mapping[str, str]) -> dict[str, Any]:
    """What is compared: of an apply for its record, and of now.

    Args:
        gpucluster: the version of the package.
        content: the digest of the roles and programs that configure the hosts.
        hosts: the OCID of each host, by name.
    """
    made = {"format": FORMAT, "gpucluster": gpucluster, "content": content, "settings": settings, "hosts": hosts}
    # As it is read back: two records are equal if their texts are.
    compared: dict[str, Any] = json.loads(json.dumps(made))
    return compared


def require_known(recorded: Mapping[str, Any] | None, where: str) -> None:
    """Refuse to configure hosts that a newer release has configured, if its record can't be read.

    Args:
        recorded: the configuration record; None if there is none.
        where: its file.

    Raises:
        NewerReleaseError: nothing was changed.
    """
    release, found = str((recorded or {}).get("gpucluster") or ""), (recorded or {}).get("format")
    formats.require_known(found, what="the controller's record", where=where, release=release, known=FORMAT)


def differences(recorded: Mapping[str, Any] | None, now: Mapping[str, Any]) -> tuple[ConfigurationDifference, ...]:
    """What apply would configure.

    Args:
        recorded: the configuration record; None if there is none.
        now: as `record` makes it, of cluster.yml and of the hosts that stay.
    """
    if recorded is None or recorded.get("format") != FORMAT or not recorded.get("complete"):
        return (ConfigurationDifference("hosts", "configure", NOT_KNOWN),)
    before, after = recorded["settings"], now["settings"]
    changes = [*_hosts(recorded["hosts"], now["hosts"])]
    for name in sorted({*before, *after}):
        subject, key = _named(name)
        old, new = before.get(name), after.get(name)
        if name == "users_people":  # the account of a user who is not in the file any more stays
            old = [each for each in old or () if each["name"] in {one["name"] for one in new or ()}]
        if old != new:
            changes += _differing(subject, key, old, new)
    if recorded["gpucluster"] != now["gpucluster"]:
        changes.append(
            ConfigurationDifference("gpucluster", "change", "version", recorded["gpucluster"], now["gpucluster"])
        )
    elif recorded["content"] != now["content"]:
        changes.append(
            ConfigurationDifference("gpucluster", "configure", "its roles differ from those of the last apply")
        )
    return tuple(changes)


def _hosts(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ConfigurationDifference]:
    for name in sorted(after):
        if before.get(name) != after[name]:
            yield ConfigurationDifference("hosts", "configure", f"configure {name}")
    for name in sorted(set(before) - set(after)):
        yield ConfigurationDifference("hosts", "remove", name)


def _named(variable: str) -> tuple[str, str]:
    """The subject of a variable, and its name there."""
    prefix = max((each for each in _SUBJECTS if variable.startswith(each)), key=len)
    return _SUBJECTS[prefix], "" if variable in _WITHOUT_NAME else variable.removeprefix(prefix)


def _differing(subject: str, key: str, before: Any, after: Any) -> Iterator[ConfigurationDifference]:
    """The differences of two values that are not equal: at least one."""
    changes = list(_parts(subject, key, before, after))
    yield from changes or [ConfigurationDifference(subject, "change", f"the order of {key}")]


def _parts(subject: str, key: str, before: Any, after: Any) -> Iterator[ConfigurationDifference]:
    old, new = _by_name(before), _by_name(after)
    if old is not None and new is not None:
        for name in sorted({*old, *new}):
            path = f"{key}.{name}" if key else name
            if name not in old or name not in new:
                yield from _one_sided(subject, path, name in new, old.get(name, new.get(name)))
            elif old[name] != new[name]:
                yield from _differing(subject, path, old[name], new[name])
    elif _is_list(before) and _is_list(after):
        yield from (ConfigurationDifference(subject, "add", f"{key} {each}") for each in after if each not in before)
        yield from (ConfigurationDifference(subject, "remove", f"{key} {each}") for each in before if each not in after)
    else:
        action = "add" if before is None else "remove" if after is None else "change"
        yield ConfigurationDifference(subject, action, key or subject, before, after)


def _one_sided(subject: str, path: str, added: bool, value: Any) -> Iterator[ConfigurationDifference]:
    """Something that is only there before or only there after; a plain value is shown."""
    shown = None if isinstance(value, Mapping | list | tuple) else value
    yield (
        ConfigurationDifference(subject, "add", path, None, shown)
        if added
        else ConfigurationDifference(subject, "remove", path, shown, None)
    )


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """A mapping, or a list of objects with names as one (an empty list is both); None for anything else."""
    if isinstance(value, Mapping):
        return value
    if _is_list(value) and all(isinstance(each, Mapping) and "name" in each for each in value):
        return {str(each["name"]): {key: part for key, part in each.items() if key != "name"} for each in value}
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
