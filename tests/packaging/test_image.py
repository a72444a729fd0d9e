"""The image of the Containerfile: what it is made of; and, where a base is named, the image itself.

`make test-image BASE=IMAGE` builds it. It needs podman and the package indexes of Debian and Python, which no other
test needs, so `make test` reads the file alone.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.pipeline_steps import SYSTEMS, steps

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text()
BASE = os.environ.get("GPUCLUSTER_TEST_IMAGE_BASE", "")
#: Options of `podman build` that reach the package indexes from this machine, such as `--network host`.
OPTIONS = shlex.split(os.environ.get("GPUCLUSTER_TEST_IMAGE_OPTIONS", ""))
PACKAGE_OF = {"ssh-agent": "openssh-client", "ssh-add": "openssh-client", "git": "git", "jq": "jq", "curl": "curl"}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", TEXT)
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, " ".join(rest.split())) for name, rest in lines]


def test_it_does_not_run_as_root_and_lets_a_system_start_a_shell() -> None:
    final = [name for name, _ in instructions()]
    last = instructions()[len(final) - 1 - final[::-1].index("FROM") :]
    [user] = [value for name, value in last if name == "USER"]
    assert int(user) >= 1000, "a number, so that Kubernetes can compare it"
    assert "ENTRYPOINT" not in final
    assert "ADD" not in final, "nothing comes from a URL"
    assert [value for name, value in last if name == "COPY"] == ["--from=build /opt/gpucluster /opt/gpucluster"]


def test_each_package_of_python_is_locked() -> None:
    runs = " && ".join(value for name, value in instructions() if name == "RUN")
    installs = re.findall(r"pip install ((?:(?! && | \|\| ).)*)", runs)
    assert len(installs) == 2
    for install in installs:
        assert "--no-deps" in install
        assert "--require-hashes" in install or install.endswith(" .")


def test_it_has_the_programs_that_the_pipelines_start() -> None:
    used = {
        program
        for system in SYSTEMS
        for job in ("plan", "apply", "drift")
        for step in steps(system, job)
        for program in PACKAGE_OF
        if re.search(rf"(^|[\s(|]){program}\s", step.script)
    }
    assert used == set(PACKAGE_OF)
    installed = [value for name, value in instructions() if name == "RUN"][-1].split()
    assert {PACKAGE_OF[program] for program in used} <= set(installed)


def test_only_what_is_named_gets_into_the_build() -> None:
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    assert ignored[0] == "*"
    named = {line[1:] for line in ignored if line.startswith("!")}
    assert {"ansible", "gpucluster", "terraform", "pyproject.toml", "requirements.lock", "tools/lock.py"} <= named
    assert "**/.gpucluster" in ignored, "keys and states"


# --- the image itself -----

built = pytest.mark.skipif(not BASE, reason="make test-image BASE=IMAGE builds it")


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    name = f"localhost/gpucluster-test-image:{os.getpid()}"
    command = ["podman", "build", "--build-arg", f"BASE={BASE}", "--tag", name, *OPTIONS, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    yield name
    subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=True)


def run(image: str, *words: str, folder: Path | None = None) -> str:
    mount = ["--volume", f"{folder}:/work"] if folder else []
    # The limits of this process: podman asks for larger ones, which not every machine permits.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = ["--ulimit", f"nofile={soft}:{hard}"]
    processes = ["--ulimit", "nproc=4096:4096"]
    limits = [*files, *processes, "--network", "none", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    done = subprocess.run(
        ["podman", "run", "--rm", *limits, *mount, image, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@built
def test_the_image_runs_the_tool_without_root_and_without_privileges(image: str, tmp_path: Path) -> None:
    assert run(image, "id", "-u").strip() == "10001"
    assert "Usage: gpucluster" in run(image)
    assert "jq" in run(
        image, "sh", "-c", "git --version && curl --version && jq --version && ssh -V 2>&1 && ssh-add -h; true"
    )
    (tmp_path / "cluster.yml").write_text((ROOT / "inventories" / "local" / "cluster.yml").read_text())
    tmp_path.chmod(0o755)
    assert "valid" in run(image, "gpucluster", "validate", folder=tmp_path)
    assert "gpucluster" in run(image, "gpucluster", "--version")
    owned = run(
        image, "find", "/opt/gpucluster", "-xdev", "(", "-writable", "-o", "-user", "10001", ")", "-not", "-type", "l"
    )
    assert owned == "", "what runs can't change itself"
