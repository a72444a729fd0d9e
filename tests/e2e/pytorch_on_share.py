"""Debian's PyTorch on the nodes of a local cloud: unpacked on the share, and found from there by every node.

The packages are real, for processors only. What hosts have already is not fetched again. To install them on each
node would take minutes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from gpucluster.localcloud.image import package_mirror
from gpucluster.localcloud.image.contents import DEBIAN_13
from tests.e2e.site_harness import Site

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
    """Let these nodes have PyTorch: a third of a minute."""
    (home,) = (site.home / "exports").glob("*/*/alice")
    with tempfile.TemporaryDirectory(prefix="gpucluster-torch-") as scratch:
        status = Path(scratch) / "status"
        status.write_text(site.plain("ssh", "--", "cat /var/lib/dpkg/status").stdout)
        mirror = package_mirror.find(_SUITE, Path(scratch))
        argv = [
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--include=python3-torch"),
            '--aptopt=Acquire::Languages "none"',
            *(f"--aptopt={option}" for option in mirror.apt_options),
            *([f"--keyring={mirror.keyring}"] if mirror.keyring else []),
            *(f"--dpkgopt=path-exclude=/usr/{folder}/*" for folder in ("include", "share/doc")),
            f'--setup-hook=cp {status} "$1"/var/lib/dpkg/status',
            *(_SUITE.name, str(home.parent / _PLACE), *mirror.lines(_SUITE)),
        ]
        done = subprocess.run(
            argv, env={**os.environ, "TMPDIR": scratch}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    for node in nodes:
        found = site.plain("ssh", node, "--", "sudo", "bash", "-c", f"'{_quoted(_ON_NODE)}'")
        assert found.returncode == 0, found.stdout + found.stderr


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")
