"""Rules between the keys of a cluster.yml: one module for each part of the file.

A rule sees valid values only, so that one error is reported once and hides no other. Each module has `check`, which
adds the errors that it finds, and `RULES`, the same rules as text for the reference page. images.py and nodes.py belong
to machines.py and pools.py: the rules of images and of single nodes. certificate_files.py reads files for backup.py,
directory.py and software.py. May import `spec.messages`, `spec.model` and what is below them, `shapes`,
`controller.rules`, `node_agent.rules` and the registry of checks of hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gpucluster.spec.model import ClusterSpec
from gpucluster.spec.rules import (
    accounts,
    backup,
    checks,
    cloud,
    containers,
    directory,
    elastic,
    existing_network,
    gpus,
    kubernetes,
    login,
    logs,
    machines,
    maintenance,
    monitoring,
    network,
    pools,
    slurm,
    software,
    ssh,
    state,
    storage,
    tags,
    users,
)
from gpucluster.spec.rules.context import RuleContext


class _Rules(Protocol):
    @property
    def RULES(self) -> tuple[str, ...]: ...  # noqa: N802

    def check(self, context: RuleContext) -> None: ...


_MODULES: tuple[_Rules, ...] = (
    cloud,
    tags,
    network,
    existing_network,
    ssh,
    machines,
    login,
    pools,
    gpus,
    elastic,
    storage,
    state,
    users,
    directory,
    kubernetes,
    slurm,
    accounts,
    checks,
    maintenance,
    monitoring,
    backup,
    logs,
    containers,
    software,
)


def check(context: RuleContext) -> None:
    """Add every error; afterwards `context` has the content of the files that cluster.yml names."""
    for module in _MODULES:
        module.check(context)


def warnings(spec: ClusterSpec) -> tuple[str, ...]:
    """What a valid file means that its author may not expect, with what to write instead."""
    return (*login.warnings(spec), *slurm.warnings(spec), *accounts.warnings(spec))


def documentation() -> Iterator[str]:
    """Every rule as one entry of a Markdown list, without its bullet."""
    for module in _MODULES:
        yield from module.RULES
