"""`gpucluster-agent versions`: the versions of Slurm, the container runtimes, NVIDIA's driver and others on this host.

It prints one JSON object: {"system": "debian-12", "installed": [{"product", "version", "package"}], "denied": [...]}.
The package is that of the distribution; it is empty for what a project has published itself, or what was built from its
source. What is not installed is left out. `denied` are kernel modules that can't be loaded. It needs no rights, and
judges nothing: `gpucluster.advisories` does.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed

#: The packages of each product, the first that is installed counts. On Debian `slurm` is another program.
_DEB = {
    "slurm": ("slurm-smd", "slurmctld", "slurmd", "slurm-client"),
    "enroot": ("enroot",),
    "nvidia-container-toolkit": ("nvidia-container-toolkit-base", "nvidia-container-toolkit"),
    "containerd": ("containerd.io", "containerd"),
    "runc": ("runc",),
    "kubernetes": ("kubelet",),
}
_RPM = {**_DEB, "slurm": ("slurm",)}
#: Packages that only the project publishes.
_OF_PROJECTS = frozenset(
    {"slurm-smd", "enroot", "nvidia-container-toolkit-base", "nvidia-container-toolkit", "containerd.io", "kubelet"}
)
#: Programs that the roles install from releases, and what they print with --version. Docker's package of containerd
#: brings a runc.
_PROGRAMS = (
    ("containerd", "/opt/gpucluster/nerdctl/bin/containerd", r"\bv(\d\S*)"),
    ("containerd", "/opt/gpucluster/kubernetes-runtime/bin/containerd", r"\bv(\d\S*)"),
    ("runc", "/opt/gpucluster/nerdctl/bin/runc", r"runc version (\d\S*)"),
    ("runc", "/opt/gpucluster/kubernetes-runtime/bin/runc", r"runc version (\d\S*)"),
    ("runc", "/usr/bin/runc", r"runc version (\d\S*)"),
    ("kubernetes", "/usr/local/bin/kubelet", r"Kubernetes v(\d\S*)"),
)
_DPKG_STATUS = "var/lib/dpkg/status"
#: Names the archive of which the packages of Slurm were built; empty, or not there, with those of the distribution.
_BUILT_SLURM = "etc/gpucluster/slurm-packages"
_PYXIS = "usr/local/lib/slurm/spank_pyxis.so"
#: What the plugin writes into the log when it starts. The file has its version in this text.
_PYXIS_VERSION = re.compile(rb"pyxis: version v(\d[0-9A-Za-z.~-]*)")
#: Of the role base.
_DENIED = "etc/modprobe.d/gpucluster-denied.conf"
_SECONDS = 10.0


class Installed(NamedTuple):
    """One version on this host; see the module."""

    product: str
    version: str
    package: str = ""


def system(os_release: str) -> str:
    """Name and major version of the distribution, as in its os-release: debian-12."""
    values = {}
    for line in os_release.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            values[name] = "".join(shlex.split(value)[:1])
    return f"{values.get('ID', 'unknown')}-{values.get('VERSION_ID', '').partition('.')[0]}"


def installed(root: Path) -> list[Installed]:
    """Everything that is known here.

    Args:
        root: the folder with the host's tree.
    """
    packages = list(_packages(root))
    return [*packages, *_programs(root, {each.product for each in packages}), *_files(root)]


def _packages(root: Path) -> Iterator[Installed]:
    status = _text(root / _DPKG_STATUS)
    have = _of_dpkg(status) if status else _of_rpm()
    built = bool(_text(root / _BUILT_SLURM))
    for product, names in (_DEB if status else _RPM).items():
        name = next((each for each in names if each in have), None)
        if name is not None:
            own = name in _OF_PROJECTS or (product == "slurm" and built)
            yield Installed(product, have[name], "" if own else name)


def _of_dpkg(status: str) -> dict[str, str]:
    rows = re.findall(
        r"^Package: (\S+)\nStatus: \S+ \S+ installed\n(?:(?!Version: ).+\n)*Version: (\S+)$", status, re.MULTILINE
    )
    return dict(rows)


def _of_rpm() -> dict[str, str]:
    names = [name for each in _RPM.values() for name in each]
    lines = _printed(["rpm", "--query", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n", *names]).splitlines()
    rows = [line.split(" ") for line in lines]
    return {row[0]: row[1] for row in rows if len(row) == 2}  # noqa: PLR2004 - "package NAME is not installed"


def _programs(root: Path, packaged: Collection[str]) -> Iterator[Installed]:
    for product, place, pattern in _PROGRAMS:
        program = root / place.lstrip("/")
        if _is_file(program) and not (place.startswith("/usr/bin/") and product in packaged):
            match = re.search(pattern, _printed([str(program), "--version"]))
            yield Installed(product, match.group(1) if match else "unknown")


def _files(root: Path) -> Iterator[Installed]:
    pyxis = root / _PYXIS
    if _is_file(pyxis):
        match = _PYXIS_VERSION.search(pyxis.read_bytes())
        yield Installed("pyxis", match.group(1).decode() if match else "unknown")
    driver = _text(root / "sys/module/nvidia/version")
    if driver:
        yield Installed("nvidia-driver", driver)
    # Debian's release does not show the version that it is built from: 6.1.0-18-amd64 is 6.1.76.
    debian = re.search(r" Debian (\d\S*)", _text(root / "proc/version"))
    release = _text(root / "proc/sys/kernel/osrelease")
    if release:
        yield Installed("kernel", debian.group(1) if debian else release, "linux")


def denied(root: Path) -> list[str]:
    """The kernel modules that can't be loaded here. A container has the kernel of its machine, and denies nothing."""
    if (root / "run/systemd/container").exists():
        return []
    names = re.findall(r"^install (\S+) /bin/false$", _text(root / _DENIED), re.MULTILINE)
    loaded = {line.split(" ", 1)[0] for line in _text(root / "proc/modules").splitlines()}
    return [name for name in names if name not in loaded]


def _printed(argv: Sequence[str]) -> str:
    """What a program prints; empty if it is not there, or does not end in time."""
    try:
        return programs.call(argv, seconds=_SECONDS).stdout
    except (Failed, OSError):
        return ""


def _is_file(file: Path) -> bool:
    """Whether it is one, as far as who runs this may see it."""
    try:
        return file.is_file()
    except OSError:
        return False


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def described(root: Path = Path("/")) -> dict[str, Any]:
    """What the command prints.

    Args:
        root: the folder with the host's tree.
    """
    products = [each._asdict() for each in installed(root)]
    return {"system": system(_text(root / "etc/os-release")), "installed": products, "denied": denied(root)}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent versions", description="Print the versions of this host.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the folder with the host's tree, for tests")
    sys.stdout.write(json.dumps(described(parser.parse_args(argv).root)) + "\n")
    return 0
