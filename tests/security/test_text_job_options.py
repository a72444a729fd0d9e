"""Hostile values in each option of a job: refused, or one value of the script, for each template and launcher.

The options are those that templates and launchers declare, so that a new one is in it. The real bash reads the scripts.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry, shell
from gpucluster.jobs.launchers.kubernetes import KUBERNETES
from gpucluster.jobs.model import Job
from gpucluster.jobs.render import render
from tests.jobs.test_render import _script
from tests.security.test_text_languages import HOSTILE, TEMPLATES
from tests.waiting import PATIENCE_S

#: Of what a scheduler reads in comments of a script.
_DIRECTIVES = ("#SBATCH", "#$", "#PBS")
#: For Kubernetes a script is a text in an object: `yaml` writes that, and takes a minute to read all of them.
_LAUNCHERS = sorted(name for name, each in registry.launchers().items() if each.scheduler is not KUBERNETES)
VALUES = (
    *HOSTILE,
    *TEMPLATES,
    "a\n#SBATCH --uid=0",
    "a\ntouch pwn\n",
    "--uid=0",
    "a --uid=0",
    "a\tb",
    "a\x1b[2J",
    "a#b",
)


def _jobs(launcher: str) -> Iterator[tuple[str, str, Job, Job]]:
    """Each option of each template with each value that it takes: its name, the value, the job, and the same job
    without it."""
    by = registry.launchers()[launcher]
    tried: set[object] = set()
    for template in registry.templates():
        options = choose.options(template, by) if launcher in template.launchers else ()
        for option in (each for each in options if each not in tried):
            tried.add(option)
            usual = choose.describe(template, by, {}, nodes=2, shape=None)
            for value in VALUES:
                try:
                    job = choose.describe(template, by, {option.name: value}, nodes=2, shape=None)
                    yield option.name, value, job, usual
                except InputError:
                    continue


def _head(script: str) -> list[str]:
    """What stands before the first command of a script."""
    return list(itertools.takewhile(lambda line: not line or line.startswith("#"), script.splitlines()))


def _directives(script: str) -> list[str]:
    return [line for line in _head(script) if line.startswith(_DIRECTIVES)]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", _LAUNCHERS)
def test_each_value_stays_a_value(launcher: str, tmp_path: Path) -> None:
    checks: dict[str, str] = {}
    for name, value, job, usual in _jobs(launcher):
        try:
            script = _script(render(job))
        except InputError:
            continue
        # One directive more is that of this option, and none has a second option of the scheduler.
        directives = _directives(script)
        assert len(directives) <= len(_directives(_script(render(usual)))) + 1, (name, value, directives)
        assert not [line for line in directives if "-uid" in line], (name, value, directives)
        assert script.splitlines()[len(_head(script))] == "set -euo pipefail", (name, value)
        given = shell.quoted(job.values[name])
        if f"\n{name}={given}\n" in script:
            wanted = value if isinstance(job.values[name], str) else given
            checks[f"{name}={given}\nprintf '%s\\0' \"${{{name}}}\""] = wanted
    assert len(checks) > len(VALUES)
    done = subprocess.run(
        ["bash", "-c", "\n".join(checks)], cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == list(checks.values())
    assert list(tmp_path.iterdir()) == []
