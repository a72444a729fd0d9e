"""Section `monitoring`: what the cluster measures of itself, and for how long it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.spec.sections.fields import MONITORING_HOST_PATTERN, FileName, Resolved, SpecPart, located

Days = Annotated[int, Field(ge=1, le=3650)]
Gibibytes = Annotated[int, Field(ge=1, le=32_768)]
HangSeconds = Annotated[int, Field(ge=30, le=86_400)]
SilentSeconds = Annotated[int, Field(ge=60, le=86_400)]
IdleMinutes = Annotated[int, Field(ge=5, le=10_080)]
OnHang = Literal["tell", "requeue", "cancel"]
SlurmInterval = Annotated[int, Field(ge=10, le=3600)]


class Monitoring(SpecPart):
    """Prometheus on one host, exporters on every host, and what comes with them."""

    enabled: bool = Field(
        default=False,
        description="Whether every host has exporters, and Prometheus records what they measure. Nothing of it is "
        "reachable from outside of the cluster.",
    )
    host: str = Field(
        default="controller",
        pattern=MONITORING_HOST_PATTERN,
        description="Where Prometheus, Alertmanager and Grafana run: `controller`, or `login-<n>` for a login node by "
        "its number. Users of that login node can't reach them.",
        examples=["login-1"],
    )
    retention_days: Days = Field(default=30, description="Days after which Prometheus deletes what it has recorded.")
    retention_gb: Gibibytes = Field(
        default=10,
        description="GiB that Prometheus' records may use on the disk of its host. The oldest are deleted first, also "
        "when they are younger than `retention_days`.",
    )
    slurm_interval: SlurmInterval = Field(
        default=30, description="Seconds between two queries of Slurm for its nodes and jobs."
    )
    hang_seconds: HangSeconds = Field(
        default=180,
        description="A job with NVIDIA GPUs is hung if its GPUs do no work, NCCL counts no new operation for so many "
        "seconds, and the rank that is behind does not work either.",
    )
    silent_hang_seconds: SilentSeconds | None = Field(
        default=None,
        description="Seconds after which a job is hung whose GPUs are in kernels that use no memory and draw little "
        "power, while NCCL prints nothing. `null`: that alone is never a hang.",
        examples=[3600],
    )
    idle_minutes: IdleMinutes = Field(
        default=30, description="Minutes after which a GPU that a job holds without a process counts as idle."
    )
    on_hang: OnHang = Field(
        default="tell",
        description="What follows when a job of Slurm is hung, beside the alert: `tell` is a line in its output, "
        "`requeue` and `cancel` do that, and requeue or cancel the job. The owner chooses another one with "
        "`--comment gpucluster:on-hang=requeue`.",
    )
    on_hang_by_partition: dict[str, OnHang] = Field(
        default_factory=dict,
        description="The same for single partitions, instead of `on_hang`.",
        examples=[{"gpu": "requeue"}],
    )
    end_idle_jobs_minutes: IdleMinutes | None = Field(
        default=None,
        description="Minutes after which a job of Slurm is cancelled that has no process on any of its GPUs; at least "
        "`idle_minutes`. `null`: never.",
        examples=[240],
    )
    hang_stacks: bool = Field(
        default=False,
        description="Whether a node takes the stacks of a hung job's processes with py-spy, where root has installed "
        "it, writes them into `~/gpucluster-stacks` of the job's owner, and asks the flight recorder of PyTorch for "
        "its dump where the job has one. It sets `kernel.yama.ptrace_scope` to 0 on nodes with NVIDIA GPUs: users may "
        "trace processes of their own.",
    )
    alertmanager_file: FileName | None = Field(
        default=None,
        description="Configuration of Alertmanager, with the receivers of alerts; relative to this file. It may "
        "contain passwords: keep it out of Git. `null`: no Alertmanager; Prometheus shows the alerts.",
        examples=["alertmanager.yml"],
    )
    grafana: bool = Field(default=False, description="Whether Grafana runs beside Prometheus, with the dashboards.")
    _directory: Path | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Take the directory of the file from the validation context."""
        if isinstance(context, Resolved):
            self._directory = context.directory

    @property
    def login_number(self) -> int | None:
        """The number of the login node that is the host; None if that is the controller."""
        _, _, number = self.host.partition("login-")
        return int(number) if number else None

    @property
    def alertmanager_path(self) -> Path | None:
        """The absolute path of `alertmanager_file`; None if it is not set."""
        if self.alertmanager_file is None:
            return None
        return located(self.alertmanager_file, self._directory or Path()).absolute()
