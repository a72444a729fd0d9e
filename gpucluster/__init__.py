"""Create and operate GPU clusters on Oracle Cloud Infrastructure, or the same cluster on one Linux machine.

    import gpucluster

    spec = gpucluster.load("inventories/local/cluster.yml")
    result = gpucluster.Cluster(spec).apply()

The names in `__all__` are the whole public interface: `load` and `Cluster`, the types that their methods return, events
and errors. Everything else may change in any version. The names are imported when first used, so that importing
gpucluster costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs as much as starting Python; type checkers know the name

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from gpucluster.cloud.baked_images import BakedImage
    from gpucluster.cloud.clusters import CloudContents
    from gpucluster.cluster import Cluster
    from gpucluster.errors import (
        AnsibleError,
        CloudError,
        DataGuardError,
        EnvironmentFault,
        Finding,
        GpuClusterError,
        InputError,
        Interrupted,
        LockedError,
        OtherClusterError,
        PartlyDone,
        PreflightError,
        PreflightFinding,
        ProcessError,
        ReplacementError,
        TerraformError,
        ToolError,
        UnconfirmedError,
        VerifyError,
    )
    from gpucluster.events import Event, EventKind
    from gpucluster.handover.iam import Policies
    from gpucluster.lifecycle.plan import Plan
    from gpucluster.lifecycle.repair import Fix
    from gpucluster.lifecycle.result import Result
    from gpucluster.operations.backup import Backup, Restored
    from gpucluster.operations.container_images import ContainerImage, ContainerImages, ImageImport
    from gpucluster.operations.directory_records import (
        Group,
        GroupChange,
        GroupRemoval,
        Imported,
        ImportReport,
        Removal,
        User,
        UserChange,
    )
    from gpucluster.operations.users import Groups, Users
    from gpucluster.preflight import Report
    from gpucluster.spec import ClusterSpec, load
    from gpucluster.terraform.plan import Change
    from gpucluster.verdict.verdict import CheckResult, Verdict
    from gpucluster.workspace.run_log import RunStatus

__all__ = [
    "AnsibleError",
    "Backup",
    "BakedImage",
    "Change",
    "CheckResult",
    "CloudContents",
    "CloudError",
    "Cluster",
    "ClusterSpec",
    "ContainerImage",
    "ContainerImages",
    "DataGuardError",
    "EnvironmentFault",
    "Event",
    "EventKind",
    "Finding",
    "Fix",
    "GpuClusterError",
    "Group",
    "GroupChange",
    "GroupRemoval",
    "Groups",
    "ImageImport",
    "ImportReport",
    "Imported",
    "InputError",
    "Interrupted",
    "LockedError",
    "OtherClusterError",
    "PartlyDone",
    "Plan",
    "Policies",
    "PreflightError",
    "PreflightFinding",
    "ProcessError",
    "Removal",
    "ReplacementError",
    "Report",
    "Restored",
    "Result",
    "RunStatus",
    "TerraformError",
    "ToolError",
    "UnconfirmedError",
    "User",
    "UserChange",
    "Users",
    "Verdict",
    "VerifyError",
    "__version__",
    "load",
]

# The modules that define the public names.
_MODULES = {
    "gpucluster.cloud.baked_images": ("BakedImage",),
    "gpucluster.cloud.clusters": ("CloudContents",),
    "gpucluster.cluster": ("Cluster",),
    "gpucluster.errors": (
        "AnsibleError",
        "CloudError",
        "DataGuardError",
        "EnvironmentFault",
        "Finding",
        "GpuClusterError",
        "InputError",
        "Interrupted",
        "LockedError",
        "OtherClusterError",
        "PartlyDone",
        "PreflightError",
        "PreflightFinding",
        "ProcessError",
        "ReplacementError",
        "TerraformError",
        "ToolError",
        "UnconfirmedError",
        "VerifyError",
    ),
    "gpucluster.events": ("Event", "EventKind"),
    "gpucluster.handover.iam": ("Policies",),
    "gpucluster.lifecycle.plan": ("Plan",),
    "gpucluster.lifecycle.repair": ("Fix",),
    "gpucluster.lifecycle.result": ("Result",),
    "gpucluster.operations.directory_records": (
        "Group",
        "GroupChange",
        "GroupRemoval",
        "ImportReport",
        "Imported",
        "Removal",
        "User",
        "UserChange",
    ),
    "gpucluster.operations.backup": ("Backup", "Restored"),
    "gpucluster.operations.container_images": ("ContainerImage", "ContainerImages", "ImageImport"),
    "gpucluster.operations.users": ("Groups", "Users"),
    "gpucluster.preflight": ("Report",),
    "gpucluster.spec": ("ClusterSpec", "load"),
    "gpucluster.terraform.plan": ("Change",),
    "gpucluster.verdict.verdict": ("CheckResult", "Verdict"),
    "gpucluster.workspace.run_log": ("RunStatus",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gpucluster' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
