"""The agent and the Ansible modules on the oldest Python of hosts.

What vermin reports of the versions that they need is a part of `make check-style`.
The agent's tests run on a real CPython 3.9, the one of Debian 11 (Oracle Linux 9 has the same). Its packages are
unpacked into the cache, not installed. Not proved here: the libraries around it, such as an older openssl.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.errors import GpuClusterError
from gpucluster.localcloud.image import package_mirror
from gpucluster.localcloud.image.suites import SUITES
from gpucluster.paths import ansible_dir, cache_dir
from tests.image_home import image_home
from tests.waiting import PATIENCE_S

HERE = Path(__file__).resolve()
CHECKOUT = HERE.parents[2]
MODULES = tuple(ansible_dir() / name for name in ("library", "module_utils", "action_plugins", "lookup_plugins"))
SUITE = "bullseye"
# Hundreds of tests, each of which has its own limit; and other workers may just make this Python.
pytestmark = pytest.mark.timeout(20 * PATIENCE_S)
# This Python can't make what GPUCLUSTER_TEST_KUBERNETES asks for.
_OF_THIS_RUN = ("PYTEST", "PYTHON", "GPUCLUSTER_TEST")
# pip judges conditions such as `python_version < "3.11"` by its own Python: what they name is written out.
# It does not compare a package's own bound with this version, either.
REQUIREMENTS = [
    *("exceptiongroup", "hypothesis<6.142", "iniconfig<2.2", "pytest<8.5", "pytest-timeout", "tomli"),
    "typing-extensions",
]


@pytest.fixture(scope="module")
def python() -> list[str]:
    """The old Python with pytest, as the start of a command."""
    place = cache_dir() / "tests" / f"python-{SUITE}"
    place.parent.mkdir(parents=True, exist_ok=True)
    # Tests of several workers begin at the same time.
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            _unpack_interpreter(place / "root")
            _install_packages(place / "packages")
            (place / "complete").touch()
    return ["env", f"PYTHONPATH={place / 'packages'}:{CHECKOUT}", str(place / "root" / "usr" / "bin" / "python3.9")]


def _unpack_interpreter(root: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    try:
        mirror = package_mirror.find(SUITES[SUITE], image_home() / "images")
    except GpuClusterError as error:
        pytest.skip(str(error))
    options = [f"--aptopt={option}" for option in mirror.apt_options]
    options += [f"--keyring={mirror.keyring}"] if mirror.keyring else []
    argv = ["mmdebstrap", "--variant=extract", "--include=python3.9", *options, SUITE, str(root)]
    done = subprocess.run(
        [*argv, f"deb {mirror.uri} {SUITE} main"], capture_output=True, text=True, timeout=10 * PATIENCE_S, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err:"))]
        pytest.skip(f"{mirror.uri} does not give Debian's {SUITE}: {' '.join(said)[-300:]}")


def _install_packages(target: Path) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"--target={target}"]
    argv += ["--python-version=3.9", "--implementation=cp", "--only-binary=:all:"]
    done = subprocess.run([*argv, *REQUIREMENTS], capture_output=True, text=True, timeout=10 * PATIENCE_S, check=False)
    if done.returncode != 0:
        pytest.skip(f"no package index has pytest for Python 3.9: {done.stderr.strip()[-300:]}")


#: Parts of the agent's tests that take about the same time, so that several workers can share them. The last one has
#: what no other has. Examples of hypothesis are fewer here (conftest.py): values are no matter of a version.
PARTS: dict[str, tuple[str, ...]] = {
    "checks": ("controller/backup", "node_agent/checks"),
    "exporter": ("node_agent/exporter", "node_agent/record"),
    "health": ("controller/health", "controller/images", "controller/monitor"),
    "controller": ("controller/facts", "controller/jobs", "controller/kubernetes", "controller/users"),
    "watch": ("node_agent/watch", "node_agent/nccl", "node_agent/mig", "node_agent/kubernetes"),
    "others": (),
}


@pytest.mark.containers
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.xdist_group(f"oldest-python-{part}")) for part in PARTS]
)
def test_the_agent_s_tests_pass(part: str, python: list[str], tmp_path: Path) -> None:
    tests = HERE.parents[1]
    folders = [str(tests / name) for name in PARTS[part]]
    elsewhere = [f"--ignore={tests / name}" for names in PARTS.values() for name in names]
    what = folders or [str(tests / "node_agent"), str(tests / "controller"), *elsewhere]
    done = subprocess.run(
        [
            # Without the project's options: pytest-xdist, which some of them are for, is not there.
            *(*python, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=-q --import-mode=importlib"),
            "--strict-markers",
            *(f"--basetemp={tmp_path / 'base'}", "-m", "not containers and not slurm", f"--ignore={HERE}"),
            *what,
        ],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(_OF_THIS_RUN)},
    )  # fmt: skip
    assert done.returncode == 0, _reason(done.stdout + done.stderr)
    assert " passed" in done.stdout or "[100%]" in done.stdout


def _reason(output: str) -> str:
    """Which tests failed, and then why: some readers see the first line only."""
    lines = output.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR ", "E  "))]
    return "\n".join([*failed[-20:], *lines[-60:]])


@pytest.mark.containers
def test_the_modules_can_be_compiled(python: list[str]) -> None:
    files = [str(file) for folder in MODULES for file in sorted(folder.glob("*.py"))]
    compile_all = "import sys; [compile(open(file).read(), file, 'exec') for file in sys.argv[1:]]; print(sys.version)"
    done = subprocess.run([*python, "-c", compile_all, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3.9.")
