"""Sections that say what a cluster does: for whom, with which scheduler, within which limits, with which software."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from gpucluster.spec.fields import (
    PYTHON_PATTERN,
    SLURM_CLUSTER_PATTERN,
    TIMEZONE_PATTERN,
    FileName,
    Id,
    Number,
    Part,
    Price,
    Resolved,
    Seconds,
    UserName,
    located,
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
        default="", max_length=100, description="Full name. Default: the login name.", examples=["Alice Example"]
    )
    uid: Id | None = Field(default=None, description="User id; `null`: the next that is free from `first_uid` on.")
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
    """Who may log in. Their accounts live in LDAP on the controller."""

    group: UserName = Field(default="privilege", description="The group of everybody listed here.")
    gid: Id = Field(default=9876, description="Its id.")
    first_uid: Id = Field(default=10001, description="The lowest user id.")
    people: tuple[Person, ...] = Field(default=(), max_length=1000, description="The users.")


class Slurm(Part):
    """The scheduler."""

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


class Software(Part):
    """What is on every machine."""

    timezone: str = Field(default="UTC", pattern=TIMEZONE_PATTERN, description="Time zone.", examples=["Europe/Berlin"])
    wheels: FileName | None = Field(
        default=None,
        description="Directory with the Python packages (wheels) that the controller of elastic pools needs, for "
        "places without a package index; relative to this file. `null`: they are downloaded, once.",
        examples=["wheels"],
    )
    controller_python: str | None = Field(
        default=None,
        pattern=PYTHON_PATTERN,
        description="Version of Python on the controller of elastic pools, 3.11 or newer. `null`: that of its image, "
        "where it is known.",
        examples=["3.12"],
    )
    _directory: Path | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Remember where the file lies."""
        if isinstance(context, Resolved):
            self._directory = context.directory

    @property
    def wheels_directory(self) -> Path | None:
        """Where `wheels` is; None if it was not said."""
        return None if self.wheels is None else located(self.wheels, self._directory or Path()).absolute()
