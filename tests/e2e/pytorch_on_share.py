"""Debian's PyTorch on the nodes of a local cloud: unpacked on the share, and found from there by every node.

The packages are real, for processors only. What hosts have already is not fetched again. To install them on each
node would take minutes. What was unpacked once is kept in the cache of tests, for hosts with the same packages.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpucluster import paths
from gpucluster.localcloud.image import package_mirror
from gpucluster.localcloud.image.contents import DEBIAN_13
from tests.e2e.site_harness import Site
from tests.waiting import PATIENCE_S

_SUITE = DEBIAN_13.suite
_PLACE = "torch"
_ON_NODE = f"""
set -e
lib=/mnt/home/{_PLACE}/usr/lib
find $lib -name '*.so.*' -printf '%h\\n' | sort -u > /etc/ld.so.conf.d/zz-torch.conf
ldconfig
site=$(python3 -c 'import site; print(site.getsitepackages()[0])')
mkdir -p $site
echo $lib/python3/dist-packages > $site/torch.pth
"""


def install(site: Site, *nodes: str) -> None:
    """Let these nodes have PyTorch: a third of a minute, and some seconds when it is in the cache."""
    (home,) = (site.home / "exports").glob("*/*/alice")
    installed = site.root(nodes[0], "dpkg-query --show | sort")
    words = "\n".join((*_options(), _SUITE.name, installed))
    kept = paths.cache_dir() / "tests" / f"torch-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
    if not kept.is_dir():
        for older in kept.parent.glob("torch-*"):
            shutil.rmtree(older, ignore_errors=True)
        _unpack(site, nodes[0], kept)
    subprocess.run(["cp", "--archive", "--reflink=auto", str(kept), str(home.parent / _PLACE)], check=True)
    for node in nodes:
        site.root(node, _ON_NODE)


def _options() -> list[str]:
    return [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--include=python3-torch"),
        '--aptopt=Acquire::Languages "none"',
        *(f"--dpkgopt=path-exclude=/usr/{folder}/*" for folder in ("include", "share/doc")),
    ]


def _unpack(site: Site, node: str, kept: Path) -> None:
    """Unpack the packages that a node lacks into a folder, which appears when it is complete."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Beside it, so that it can be renamed, and with a name of its own: another suite may do the same.
    with tempfile.TemporaryDirectory(prefix="unpacking-torch-", dir=kept.parent) as scratch:
        status, tree = Path(scratch) / "status", Path(scratch) / "tree"
        status.write_text(site.root(node, "cat /var/lib/dpkg/status") + "\n")
        mirror = package_mirror.find(_SUITE, Path(scratch))
        argv = [
            *_options(),
            *(f"--aptopt={option}" for option in mirror.apt_options),
            *([f"--keyring={mirror.keyring}"] if mirror.keyring else []),
            f'--setup-hook=cp {status} "$1"/var/lib/dpkg/status',
            *(_SUITE.name, str(tree), *mirror.lines(_SUITE)),
        ]
        done = subprocess.run(
            argv,
            env={**os.environ, "TMPDIR": scratch},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        if not kept.is_dir():
            tree.rename(kept)
