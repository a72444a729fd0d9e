"""The ssh key with which root joins new nodes.

It opens root's rights on every node that was joined with it, so only root can read it. The daemon gets the public half,
which it gives to the instances that it launches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpucluster import process
from gpucluster.controller.join_files import COMMENT
from gpucluster.errors import EnvironmentFault
from gpucluster.paths import write_private, write_whole

_READABLE = 0o644


def make(private: Path, public: Path) -> None:
    """Create the key unless it exists, and publish its public half.

    Args:
        private: its folder is created, for its owner only. `public`: its folder is root's, and any user may read it.

    Raises:
        GpuClusterError: the key can't be created, read or published.
    """
    if not private.exists():
        # ssh-keygen writes the file in place: a killed one would leave half a key.
        with tempfile.TemporaryDirectory(prefix="gpucluster-key-") as scratch:
            new = Path(scratch) / "key"
            process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", COMMENT, "-f", str(new)])
            write_private(private, new.read_text())
    write_whole(public, process.run(["ssh-keygen", "-y", "-f", str(private)]).stdout, mode=_READABLE)


def read(public: Path) -> str:
    """The public half.

    Raises:
        EnvironmentFault: it is not published.
    """
    try:
        return public.read_text()
    except OSError as error:
        raise EnvironmentFault(
            f"there is no key for nodes that have no baked image: {error.strerror}",
            where=str(public),
            hint="On the controller, run: systemctl status gpucluster-join",
        ) from error
