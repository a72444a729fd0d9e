"""The public interface: each name once, with the module that defines it. `__init__.py` imports it at the first use."""

from gpucluster.advisories.evaluate import (
    InstalledVersion as InstalledVersion,
    KnownFault as KnownFault,
    Standing as Standing,
)
from gpucluster.cancellation import Cancellation as Cancellation
from gpucluster.cloud.baked_images import BakedImage as BakedImage
from gpucluster.cloud.clusters import CloudContents as CloudContents
from gpucluster.cluster import Cluster as Cluster
from gpucluster.cluster.autoscaler import AutoscalerOperations as AutoscalerOperations
from gpucluster.cluster.backup import BackupOperations as BackupOperations
from gpucluster.cluster.controller import ControllerOperations as ControllerOperations
from gpucluster.cluster.hosts import HostOperations as HostOperations
from gpucluster.cluster.images import ImageOperations as ImageOperations
from gpucluster.cluster.kubernetes import KubernetesOperations as KubernetesOperations
from gpucluster.cluster.secrets import SecretOperations as SecretOperations
from gpucluster.cluster.slurm import SlurmOperations as SlurmOperations
from gpucluster.cluster.state import StateOperations as StateOperations
from gpucluster.cost.report import CostRow as CostRow
from gpucluster.dashboards.addresses import Subject as Subject
from gpucluster.dashboards.overview import Overview as Overview
from gpucluster.errors import (
    AnsibleError as AnsibleError,
    CloudError as CloudError,
    DataGuardError as DataGuardError,
    EnvironmentFault as EnvironmentFault,
    GpuClusterError as GpuClusterError,
    InputError as InputError,
    InputFinding as InputFinding,
    Interrupted as Interrupted,
    LockedError as LockedError,
    OtherClusterError as OtherClusterError,
    PartlyDone as PartlyDone,
    PreflightError as PreflightError,
    PreflightFinding as PreflightFinding,
    ProcessError as ProcessError,
    MovedError as MovedError,
    NewerReleaseError as NewerReleaseError,
    ReplacementError as ReplacementError,
    TerraformError as TerraformError,
    ToolError as ToolError,
    UnconfirmedError as UnconfirmedError,
    VerifyError as VerifyError,
)
from gpucluster.events import Event as Event, EventKind as EventKind
from gpucluster.events.schema import event_schema as event_schema
from gpucluster.handover.iam import Policies as Policies
from gpucluster.jobs.report.build import JobReport as JobReport
from gpucluster.lifecycle.adoption import Recovered as Recovered
from gpucluster.lifecycle.cost import CostReport as CostReport
from gpucluster.lifecycle.failover import FailoverResult as FailoverResult
from gpucluster.lifecycle.plan import ClusterPlan as ClusterPlan
from gpucluster.lifecycle.repair import Fix as Fix
from gpucluster.lifecycle.result import RunResult as RunResult
from gpucluster.lifecycle.rollout import RolloutRequest as RolloutRequest
from gpucluster.operations.backup import Backup as Backup, Restored as Restored
from gpucluster.operations.container_images import (
    ContainerImage as ContainerImage,
    ContainerImages as ContainerImages,
    ImageImport as ImageImport,
)
from gpucluster.operations.dashboard import Dashboard as Dashboard, Page as Page
from gpucluster.operations.directory_records import (
    Group as Group,
    GroupChange as GroupChange,
    GroupRemoval as GroupRemoval,
    ImportReport as ImportReport,
    Imported as Imported,
    NewUser as NewUser,
    Removal as Removal,
    User as User,
    UserChange as UserChange,
    UserEdit as UserEdit,
)
from gpucluster.drift.model import (
    Area as Area,
    DriftFinding as DriftFinding,
    DriftReport as DriftReport,
    Unseen as Unseen,
)
from gpucluster.operations.exposure import Exposure as Exposure, HostExposure as HostExposure
from gpucluster.operations.generated_keys import GeneratedKey as GeneratedKey, GeneratedKeys as GeneratedKeys
from gpucluster.operations.host_logs import (
    JobLines as JobLines,
    JobTimes as JobTimes,
    KeptLines as KeptLines,
    LogFilter as LogFilter,
)
from gpucluster.operations.job_reports import JobReports as JobReports
from gpucluster.operations.jobs import (
    CancelledJob as CancelledJob,
    JobOutcome as JobOutcome,
    JobRequest as JobRequest,
    JobStatus as JobStatus,
    Jobs as Jobs,
    Prepared as Prepared,
    QueuedJob as QueuedJob,
    Submitted as Submitted,
)
from gpucluster.operations.kubeconfig import WrittenKubeconfig as WrittenKubeconfig
from gpucluster.operations.kubernetes import (
    ControlPlaneCertificate as ControlPlaneCertificate,
    ControlPlaneState as ControlPlaneState,
    EtcdSpace as EtcdSpace,
    KubernetesNode as KubernetesNode,
)
from gpucluster.operations.kubernetes_upgrade import KubernetesUpgrade as KubernetesUpgrade
from gpucluster.operations.rest_tokens import RestToken as RestToken
from gpucluster.operations.rotation import (
    RotatableSecret as RotatableSecret,
    RotatedSecret as RotatedSecret,
    Rotation as Rotation,
)
from gpucluster.operations.scheduled_backups import FetchedBackup as FetchedBackup, ScheduledBackup as ScheduledBackup
from gpucluster.operations.slurm_upgrade import SlurmUpgrade as SlurmUpgrade
from gpucluster.operations.status import ClusterState as ClusterState, ClusterStatus as ClusterStatus
from gpucluster.operations.support_bundle import NotCollected as NotCollected, SupportBundle as SupportBundle
from gpucluster.operations.users import Groups as Groups, Users as Users
from gpucluster.paths import ClusterPaths as ClusterPaths
from gpucluster.plain import as_json as as_json
from gpucluster.preflight import PreflightReport as PreflightReport
from gpucluster.process import Completed as Completed
from gpucluster.shapes import Shape as Shape
from gpucluster.rollout.decide import JobPolicy as JobPolicy
from gpucluster.rollout.decide import RolloutPolicy as RolloutPolicy
from gpucluster.spec import ClusterSpec as ClusterSpec, load as load
from gpucluster.spec.sections.machines import Machine as Machine, PoolSpec as PoolSpec
from gpucluster.terraform.plan import ResourceChange as ResourceChange
from gpucluster.verdict.expectation import Level as Level
from gpucluster.verdict.verdict import (
    CheckResult as CheckResult,
    CheckSummary as CheckSummary,
    Verdict as Verdict,
)
from gpucluster.workspace.run_log import RunStatus as RunStatus

__all__: list[str]
__version__: str
