"""The shell steps of the pipelines in docs/how-to/pipelines, as each CI system runs them.

GitHub: a file for each step, with `bash --noprofile --norc -eo pipefail` (its documentation of `shell: bash`). GitLab:
`before_script` and `script` in one shell with `set -eo pipefail` (gitlab-runner: shells/bash.go). OCI DevOps: a shell
for each step; `failImmediatelyOnError` is `-e`, and there is no `pipefail`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.documents import parse
from tests.waiting import PATIENCE_S

FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "pipelines"
SYSTEMS = ("github", "gitlab", "oci-devops")


@dataclass(frozen=True)
class Step:
    """One shell, and the variables that the file gives it. `name` is empty where the system has one for a whole job."""

    name: str
    script: str
    flags: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def document(name: str) -> dict[str, Any]:
    read = parse((FOLDER / name).read_text())
    assert isinstance(read, dict)
    return read


def steps(system: str, job: str) -> list[Step]:
    """The shell steps of a job: `plan`, `apply` or `drift`."""
    if system == "github":
        flags = ("--noprofile", "--norc", "-eo", "pipefail")
        return [Step(each["name"], each["run"], flags, each.get("env", {})) for each in _github(job) if "run" in each]
    if system == "gitlab":
        read = document("gitlab.yml")
        of = {**read[read[job]["extends"]], **read[job]}
        return [Step("", "\n".join((*of["before_script"], *of["script"])), ("-eo", "pipefail"))]
    read = document(f"oci-devops-{job}.yaml")
    assert read["failImmediatelyOnError"]
    return [Step(each["name"], each["command"], ("-e",), read["env"]["variables"]) for each in read["steps"]]


def _github(job: str) -> list[dict[str, Any]]:
    return list(document("github.yml")["jobs"][job]["steps"])


def run(step: Step, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a step in a folder. `${{ ... }}` of its variables must be among `env`."""
    known = {name: value for name, value in step.env.items() if "${{" not in str(value)}
    missing = sorted(set(step.env) - set(known) - set(env))
    assert not missing, f"a test has to set {missing}"
    command = ["bash", *step.flags, "-c", step.script]
    surroundings = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **known, **env}
    return subprocess.run(
        command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S
    )  # fmt: skip
