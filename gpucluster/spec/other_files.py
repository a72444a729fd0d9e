"""Files of other tools that people give to gpucluster: what they are, and what to do with them.

Sources: pcluster's ClusterSchema and ImageBuilderSchema (aws-parallelcluster 3), the INI file of its release 2, the
type Blueprint and the deployment files of the Cluster Toolkit, the examples of Magic Castle, and variables.tf,
schema.yaml and queues.conf of oci-hpc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_INIT = "`gpucluster init` writes a cluster file; docs/reference/cluster-yml.md lists its keys"
_OTHER_CLOUD = (
    "`gpucluster init --cloud oci` writes a file for a cluster in OCI; docs/how-to/migrate-from-other-tools.md states "
    "which of our keys answers which of theirs"
)
_STACK = "Convert it: gpucluster migrate orm FILE"


@dataclass(frozen=True)
class OtherFile:
    """What a file is, and the way from it to a cluster file."""

    kind: str
    hint: str = _INIT
    has_variables: bool = False
    """Whether `migrate orm` reads it."""

    @property
    def message(self) -> str:
        """The sentence of the error."""
        return f"this is {self.kind}, not of gpucluster"


_PARALLEL_CLUSTER = OtherFile("a file of AWS ParallelCluster", _OTHER_CLOUD)
_TOOLKIT = OtherFile("a file of Google Cluster Toolkit", _OTHER_CLOUD)
_MAGIC_CASTLE = OtherFile("a file of Magic Castle", _OTHER_CLOUD)
_VARIABLES = OtherFile("a file with variables of the marketplace's HPC stack (oci-hpc)", _STACK, has_variables=True)
_QUEUES = OtherFile(
    "queues.conf of the marketplace's HPC stack (oci-hpc)",
    "Convert the stack's variables: gpucluster migrate orm FILE. Then add a pool for each further instance type",
)
_TERRAFORM = OtherFile("a file of Terraform")

#: By keys that such a file has at its top level; the first that fits counts.
_BY_KEYS = (
    (frozenset({"HeadNode", "Scheduling"}), _PARALLEL_CLUSTER),
    (
        frozenset({"Build", "Image"}),
        OtherFile("a file of AWS ParallelCluster (for pcluster build-image)", _OTHER_CLOUD),
    ),
    (frozenset({"blueprint_name", "deployment_groups"}), _TOOLKIT),
    (frozenset({"vars", "terraform_backend_defaults"}), _TOOLKIT),
    (frozenset({"targetCompartment"}), _VARIABLES),
    (frozenset({"queues"}), _QUEUES),
    (frozenset({"apiVersion", "kind"}), OtherFile("a file of Kubernetes")),
    (frozenset({"services"}), OtherFile("a file of Docker Compose")),
    (frozenset({"resources", "run"}), OtherFile("a file of SkyPilot")),
)
#: By a line that such a file has, where it is not YAML: HCL, an INI file, or a template of YAML.
_BY_LINE = (
    (re.compile(r"^\s*source\s*=\s*\"[^\"\n]*magic_castle[^\"\n]*\"", re.MULTILINE), _MAGIC_CASTLE),
    (re.compile(r"^\s*(targetCompartment|(cluster_network|instance_pool)_shape)\s*=", re.MULTILINE), _VARIABLES),
    (re.compile(r"^HeadNode:\s", re.MULTILINE), _PARALLEL_CLUSTER),
    (re.compile(r"^(blueprint_name|deployment_groups):", re.MULTILINE), _TOOLKIT),
    (re.compile(r"^\[(global|cluster [\w-]+|queue [\w-]+)\]\s*$", re.MULTILINE), _PARALLEL_CLUSTER),
    (
        re.compile(
            r"^\s*(terraform|locals|(module|variable|provider|output|resource)\s+\"[^\"\n]+\".*)\s*\{", re.MULTILINE
        ),
        _TERRAFORM,
    ),
)


def by_keys(data: Mapping[str, Any], unknown: Iterable[str]) -> OtherFile | None:
    """What a file is whose data was read; None if it may be a cluster file.

    Args:
        unknown: its keys at the top level that a cluster file does not have.
    """
    names = set(unknown)
    settings = data.get("vars")
    if names == {"vars"} and isinstance(settings, Mapping) and "deployment_name" in settings:
        return _TOOLKIT
    # What `oci resource-manager stack get` prints, and what the API answers.
    outer = data.get("data", data)
    inner = outer.get("variables") if isinstance(outer, Mapping) else None
    if isinstance(inner, Mapping) and "targetCompartment" in inner:
        return _VARIABLES
    return next((other for keys, other in _BY_KEYS if keys <= names), None)


def by_lines(text: str) -> OtherFile | None:
    """What a file is that is not YAML; None if nothing in it tells."""
    return next((other for pattern, other in _BY_LINE if pattern.search(text)), None)
