"""Sections that say what a cluster does: for whom, with which scheduler, within which limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PrivateAttr

from gpucluster.agent.rules.names import FULL_NAME_CHARACTERS
from gpucluster.spec.fields import (
    SLURM_CLUSTER_PATTERN,
    AbsolutePath,
    FileName,
    Id,
    Number,
    Part,
    Price,
    Resolved,
    Seconds,
    UserName,
)

#: What `autoscaler.times` may set. The autoscaler has them and their defaults (policy.Times); a test compares the two.
TIME_NAMES = frozenset(
    {
        "tick",
        "busy_tick",
        "listing_lag",
        "orphan_grace",
        "launch_deadline",
        "join_deadline",
        "gang_retry_window",
        "retry_pause",
        "backoff",
        "backoff_limit",
        "cool_down",
        "cool_down_limit",
        "limit_cool_down",
        "unbacked_after",
        "silent_grace",
        "drain_ahead",
    }
)


class Person(Part):
    """Somebody who may log in."""

    name: UserName = Field(description="Login name.", examples=["alice"])
    full_name: str = Field(
        default="",
        max_length=FULL_NAME_CHARACTERS,
        description="Full name. Default: the login name.",
        examples=["Alice Example"],
    )
    uid: Id | None = Field(
        default=None,
        description="User id; `null`: the next that is free from `first_uid` on. Needed where there is no directory.",
    )
    group: UserName = Field(default="", description="Primary group: `users.group` or `users.privilege_group`.")
    groups: tuple[UserName, ...] = Field(
        default=(),
        max_length=100,
        description="Further groups. `privilege` is asked for here, and never given otherwise. A group that the "
        "cluster does not know is made.",
        examples=[["privilege"]],
    )
    shell: AbsolutePath = Field(default="/bin/bash", description="Login shell.")
    slurm_account: str | None = Field(
        default=None, pattern=SLURM_CLUSTER_PATTERN, description="Account in Slurm. `null`: the cluster's default one."
    )
    ssh_public_keys: tuple[str, ...] = Field(
        default=(), description="Public keys, as in a .pub file.", examples=[["ssh-ed25519 AAAA... alice@laptop"]]
    )
    ssh_public_key_files: tuple[FileName, ...] = Field(
        default=(), description="Files with public keys, relative to this file.", examples=[["alice.pub"]]
    )
    generate_key: bool = Field(
        default=False,
        description="Instead of a key of theirs: gpucluster makes a pair in its state directory. Provider local only.",
    )
    _file_keys: tuple[str, ...] = PrivateAttr(default=())

    def model_post_init(self, context: Any) -> None:
        """Take what the key files hold from the context of the validation."""
        if isinstance(context, Resolved):
            held = (context.public_keys.get(name, ()) for name in self.ssh_public_key_files)
            self._file_keys = tuple(key for keys in held for key in keys)

    @property
    def ssh_keys(self) -> tuple[str, ...]:
        """Every public key of this person, those in files included, none twice."""
        return tuple(dict.fromkeys((*(key.strip() for key in self.ssh_public_keys), *self._file_keys)))


class Users(Part):
    """Who may log in. Their accounts live in LDAP on the controller; without a shared home, on each host."""

    group: UserName = Field(default="people", description="The primary group of everybody who names no other.")
    gid: Id = Field(default=9999, description="Its id.")
    privilege_group: UserName = Field(
        default="privilege",
        description="The group whose members may run containers with the powers of root, such as Docker's.",
    )
    privilege_gid: Id = Field(default=9876, description="Its id.")
    first_uid: Id = Field(default=10001, description="The lowest user id.")
    people: tuple[Person, ...] = Field(default=(), max_length=1000, description="The users.")


class Slurm(Part):
    """The scheduler."""

    enabled: bool = Field(
        default=True,
        description="Whether there is one. `false`: nodes with a container runtime, a list of hosts and ssh between "
        "them; no accounting, and no shared home or directory unless `storage.home.enabled` says so.",
    )
    cluster_name: str = Field(
        default="", pattern=SLURM_CLUSTER_PATTERN, description="Name of the cluster in Slurm. Default: `name`."
    )
    accounting: bool = Field(default=True, description="Whether finished jobs are recorded (slurmdbd).")
    default_partition: str = Field(
        default="",
        description="Partition of jobs that name none. Default: that of the pool with `default: true`, or the first.",
    )
    extra_config: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="Further lines of slurm.conf: key and value. Keys that gpucluster sets itself are refused.",
        examples=[{"SchedulerParameters": "bf_interval=30"}],
    )


class Autoscaler(Part):
    """Limits of elastic nodes, over all pools, and the pace of what launches them."""

    max_nodes: Number | None = Field(
        default=None, description="Elastic nodes there may be at once. `null`: what the pools allow.", examples=[16]
    )
    max_launches_per_hour: Number = Field(
        default=500, description="Launches in an hour; the rest waits. A rail against a cluster that runs amok."
    )
    max_cost_per_hour: Price | None = Field(
        default=None,
        description="What elastic nodes may cost in an hour, in the currency of the price file. `null`: no limit.",
        examples=[250.0],
    )
    prices_file: FileName | None = Field(
        default=None,
        description="YAML file with the price of an hour by shape, such as `BM.GPU4.8: 24.4`; relative to this file.",
        examples=["prices.yml"],
    )
    times: dict[str, Seconds] = Field(
        default_factory=dict,
        description="Seconds by name, for who knows why: "
        + ", ".join(f"`{name}`" for name in sorted(TIME_NAMES))
        + ".",
        examples=[{"cool_down": 120}],
    )
    _prices: Mapping[str, float] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the prices from the context of the validation."""
        if isinstance(context, Resolved):
            self._prices = dict(context.prices)

    @property
    def prices(self) -> Mapping[str, float]:
        """The price of an hour by shape; empty without a price file."""
        return self._prices
