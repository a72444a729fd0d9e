"""What the controller knows of the drift of its cluster, apart from hosts: by area its findings, or why there are none.

    {"slurm": {"findings": [...]}, "directory": {"error": "..."}}

An area that a cluster does not have is left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller.drift import directory, slurm
from gpucluster.controller.users.config import FILE, Config
from gpucluster.node_agent.facts.__main__ import at_once

SLURM, DIRECTORY, ACCOUNTS = "slurm", "directory", "accounts"
# Users of this host itself may submit jobs, such as the image's login user, whom the role slurm gives an association.
_PASSWD = Path("/etc/passwd")

Look = Callable[[], Mapping[str, Any]]


def look(file: Path = FILE) -> dict[str, Any]:
    """Look at everything at the same time."""
    looks: dict[str, Look] = {}
    if slurm.CONF.exists() and shutil.which("slurmctld"):
        looks[SLURM] = lambda: {"findings": slurm.findings()}
    # One that exists is not written by `cluster`, and its users are not read here.
    if file.exists() and Config.load(file).existing is None:
        looks[DIRECTORY] = lambda: _entries(Config.load(file))
        if Config.load(file).slurm is not None:
            looks[ACCOUNTS] = lambda: {"findings": _associations(Config.load(file))}
    found = at_once(looks)
    return {area: found[area] or {"error": found[f"{area}_error"]} for area in looks}


def _entries(config: Config) -> Any:
    return directory.of_entries(config, directory.state(config))


def _associations(config: Config) -> Any:
    local = {line.partition(":")[0] for line in _PASSWD.read_text(encoding="utf-8").splitlines()}
    return directory.of_associations(config, directory.state(config), local)
