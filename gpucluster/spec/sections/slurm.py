"""Sections `slurm` and `autoscaler`: the scheduler, and the limits of elastic nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.slurm.releases import DISTRIBUTION, NEWEST, Buildable
from gpucluster.spec.sections.fields import (
    DESCRIPTION_PATTERN,
    SLURM_CLUSTER_PATTERN,
    AccountingName,
    Count,
    FileName,
    Hours,
    Number,
    Price,
    Resolved,
    Seconds,
    SpecPart,
    UserName,
    located,
)

#: The keys of `autoscaler.times`. The autoscaler owns their defaults (policy.Times); a test compares the names.
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


class UserLimits(SpecPart):
    """What one user may have at the same time."""

    jobs: Number | None = Field(default=None, description="Running jobs.")
    submitted_jobs: Number | None = Field(default=None, description="Running and pending jobs.", examples=[1000])
    cpus: Number | None = Field(default=None, description="Processors of running jobs.")
    gpus: Number | None = Field(default=None, description="GPUs of running jobs.", examples=[16])
    nodes: Number | None = Field(default=None, description="Nodes of running jobs.")


class GroupLimits(SpecPart):
    """What all jobs of an account or a QOS together may have; hours are of what they have used."""

    jobs: Number | None = Field(default=None, description="Running jobs (Slurm's `GrpJobs`).", examples=[50])
    submitted_jobs: Number | None = Field(
        default=None, description="Running and pending jobs (`GrpSubmitJobs`).", examples=[2000]
    )
    cpus: Number | None = Field(default=None, description="Processors of running jobs (`GrpTRES=cpu`).")
    gpus: Number | None = Field(default=None, description="GPUs of running jobs (`GrpTRES=gres/gpu`).", examples=[64])
    nodes: Number | None = Field(default=None, description="Nodes of running jobs (`GrpTRES=node`).")
    cpu_hours: Number | None = Field(
        default=None, description="Hours of processors that jobs have used or can still use (`GrpTRESMins=cpu`)."
    )
    gpu_hours: Number | None = Field(
        default=None,
        description="Hours of GPUs that jobs have used or can still use (`GrpTRESMins=gres/gpu`). Slurm halves its "
        "record of use every 7 days (`PriorityDecayHalfLife`, to be changed in `slurm.extra_config`). A job starts "
        "only if its time limit fits into what is left, and no running job is ended (Slurm's `safe`).",
        examples=[5000],
    )
    job_hours: Hours | None = Field(
        default=None, description="Highest time limit of one job, in hours (`MaxWall`).", examples=[48]
    )


class QosSpec(SpecPart):
    """A QOS of Slurm, which jobs ask for by `--qos`."""

    description: str = Field(default="", pattern=DESCRIPTION_PATTERN, description="What it is for.")
    priority: Count = Field(
        default=0, description="Priority of its jobs; the QOS with the highest one has the whole weight of it."
    )
    preempts: tuple[AccountingName, ...] = Field(
        default=(),
        max_length=50,
        description="QOS whose running jobs give way to jobs of this one. `normal` is that of jobs that ask for none.",
        examples=[["normal"]],
    )
    preempt_mode: Literal["requeue", "cancel"] = Field(
        default="requeue",
        description="What happens to jobs of this QOS that give way to others: they begin again later, or end. A job "
        "that Slurm can't run again, such as that of `srun`, ends in any case.",
    )
    limits: GroupLimits = Field(default_factory=GroupLimits, description="What all its jobs together may have.")
    user_limits: UserLimits = Field(
        default_factory=UserLimits, description="What the jobs of one user in it may have at the same time."
    )


class AccountSpec(SpecPart):
    """An account of Slurm: a team, or a project of one."""

    description: str = Field(
        default="", pattern=DESCRIPTION_PATTERN, description="What it is for.", examples=["Vision team"]
    )
    parent: AccountingName = Field(
        default="root", description="The account that it is a part of: limits of that hold for both. `root`: none."
    )
    fairshare: Number | None = Field(
        default=None,
        description="Its share, beside those of the accounts with the same parent: jobs of accounts that have used "
        "less than theirs come first. `null`: Slurm's default, 1.",
        examples=[30],
    )
    limits: GroupLimits = Field(
        default_factory=GroupLimits, description="What its jobs together, with those of accounts below it, may have."
    )
    qos: tuple[AccountingName, ...] = Field(
        default=(),
        max_length=50,
        description="QOS that its jobs may ask for, of `slurm.qos` and `normal`. Default: those of the parent.",
        examples=[["normal", "urgent"]],
    )
    default_qos: AccountingName | None = Field(
        default=None,
        description="QOS of its jobs that ask for none. `null`: `normal`, or the first of `qos` without it.",
    )
    monthly_budget: Price | None = Field(
        default=None,
        description="Money of a calendar month, in the currency of the price list, for its jobs and those of accounts "
        "below it. When it is spent, no new elastic nodes are launched for them; running jobs go on. `null`: no limit.",
        examples=[20000],
    )
    users: tuple[UserName, ...] = Field(
        default=(),
        max_length=1000,
        description="Users who may charge jobs to it by `--account`, besides those whose `slurm_account` it is.",
        examples=[["alice", "bob"]],
    )


class SlurmSpec(SpecPart):
    """Slurm as the scheduler."""

    enabled: bool = Field(
        default=True,
        description="Whether Slurm is the scheduler. Without `scheduler`, `false` means `scheduler: none`.",
    )
    cluster_name: str = Field(
        default="", pattern=SLURM_CLUSTER_PATTERN, description="Name of the cluster in Slurm. Default: `name`."
    )
    accounting: bool = Field(default=True, description="Whether finished jobs are recorded (slurmdbd).")
    default_partition: str = Field(
        default="",
        description="Partition of jobs that name none. Default: that of the pool with `default: true`, or the first.",
    )
    release: Literal["", "distribution", Buildable] = Field(
        default="",
        description="Slurm's release, the same on every host whatever its system: a number such as `26.05` is built "
        "once for each system, from the source, and kept on the controller. `distribution`: the packages of each "
        "host's own system, which must be the same on all hosts. A running cluster moves to another release by "
        f"`gpucluster slurm upgrade`. Default: `{NEWEST}`; in the local cloud `distribution` where all hosts have the "
        "same system.",
        examples=[NEWEST],
    )
    private: bool = Field(
        default=True,
        description="Users see only their own jobs, and in the accounting only what is theirs. Members of "
        "`users.privilege_group` see everything. `false`: all users do.",
    )
    login_needs_job: bool = Field(
        default=True,
        description="Users log in to a node only while they have a job on it, and such a session ends with the job. "
        "Members of `users.privilege_group` and accounts of the host itself need no job. `false`: no user needs one.",
    )
    default_gpus: Literal["none", "all"] = Field(
        default="none",
        description="GPUs of a job that asks for none. `none`: such a job sees no GPU. `all`: each job has its nodes "
        "for itself, in the partitions whose nodes have GPUs, and all their GPUs (Slurm's `OverSubscribe=EXCLUSIVE`), "
        "as scripts expect that were written for whole nodes. Two jobs never share a node there.",
    )
    default_job_hours: Hours | None = Field(
        default=24, description="Time limit of jobs that name none (`--time`), in hours. `null`: `max_job_hours`."
    )
    max_job_hours: Hours | None = Field(
        default=168, description="Highest time limit of a job, in hours. `null`: none.", examples=[336]
    )
    user_limits: UserLimits = Field(
        default_factory=UserLimits,
        description="What one user may have at the same time; it needs the accounting. They are limits of Slurm's QOS "
        "`normal`, which every user has whom an administrator gave no other.",
    )
    accounts: dict[str, AccountSpec] = Field(
        default_factory=dict,
        max_length=200,
        description="Accounts of teams, by name: shares, limits and QOS; they need the accounting. What an "
        "administrator has set of other accounts, or by other keys, stays. An account that leaves the file is removed "
        "once it has no users, no accounts below it and no jobs.",
        examples=[{"vision": {"fairshare": 30, "limits": {"gpus": 64}, "users": ["alice"]}}],
    )
    qos: dict[str, QosSpec] = Field(
        default_factory=dict,
        max_length=50,
        description="QOS by name: priority, preemption and limits; they need the accounting. One that leaves the file "
        "is removed once no account, no user and no job has it.",
        examples=[{"urgent": {"priority": 100, "preempts": ["normal"], "limits": {"gpus": 16}}}],
    )
    rest: bool = Field(
        default=False,
        description="Whether the controller answers Slurm's REST API (slurmrestd) by TLS, on port 6820, with tokens "
        "that `gpucluster token` makes. It answers hosts of the cluster's networks only. Slurm 24.11 or later has it.",
    )
    rest_certificate_file: FileName | None = Field(
        default=None,
        description="Certificate of the REST API with its intermediate ones (PEM), relative to this file. `null`: one "
        "of the cluster's own CA, for the controller's name and address and for `localhost`.",
        examples=["rest.pem"],
    )
    rest_key_file: FileName | None = Field(
        default=None,
        description="Private key of `rest_certificate_file` (PEM, without a passphrase). Keep it out of Git.",
        examples=["rest.key"],
    )
    extra_config: dict[str, Any] = Field(
        default_factory=dict,
        max_length=100,
        description="Additional lines of slurm.conf: key and value. Keys that gpucluster sets itself are refused; "
        "`validate` warns of one that it does not know.",
        examples=[{"SchedulerParameters": "bf_interval=30"}],
    )

    _directory: Path | None = PrivateAttr(default=None)
    _certificates: Mapping[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the directory of the file, and the certificates, from the validation context."""
        if isinstance(context, Resolved):
            self._directory, self._certificates = context.directory, context.certificates

    @property
    def rest_certificate(self) -> str | None:
        """One's own certificate of the REST API with its intermediate ones (PEM); None without one."""
        if self.rest_certificate_file is None:
            return None
        return "\n".join(self._certificates.get(self.rest_certificate_file, ())) or None

    @property
    def rest_key_path(self) -> Path | None:
        """The absolute path of `rest_key_file`; None if it is not set."""
        if self.rest_key_file is None:
            return None
        return located(self.rest_key_file, self._directory or Path()).absolute()

    @property
    def built_release(self) -> str | None:
        """The release that is built from its source; None for that of the distribution, and without a scheduler."""
        return self.release if self.enabled and self.release != DISTRIBUTION else None


class Autoscaler(SpecPart):
    """Limits of elastic nodes over all pools, and times of the autoscaler."""

    max_nodes: Number | None = Field(
        default=None,
        description="Highest number of elastic nodes at the same time. `null`: what the pools allow.",
        examples=[16],
    )
    max_launches_per_hour: Number = Field(
        default=500,
        description="Highest number of launches per hour; further ones wait. It limits the cost of an error.",
    )
    max_cost_per_hour: Price | None = Field(
        default=None,
        description="Highest cost of elastic nodes per hour, in the currency of the price file. `null`: no limit.",
        examples=[250.0],
    )
    prices_file: FileName | None = Field(
        default=None,
        description="YAML file with the hourly price of each shape, such as `BM.GPU4.8: 24.4`; relative to this file.",
        examples=["prices.yml"],
    )
    times: dict[str, Seconds] = Field(
        default_factory=dict,
        description="Times in seconds, for experts: " + ", ".join(f"`{name}`" for name in sorted(TIME_NAMES)) + ".",
        examples=[{"cool_down": 120}],
    )
    _prices: Mapping[str, float] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the prices from the validation context."""
        if isinstance(context, Resolved):
            self._prices = dict(context.prices)

    @property
    def prices(self) -> Mapping[str, float]:
        """The price per hour of each shape; empty without a price file."""
        return self._prices
