"""`terraform.lock.hcl` beside cluster.yml: the version and the checksums of Terraform's provider, kept in Git.

It is Terraform's own dependency lock file. `terraform init` writes one into the working copy, which is a cache: with
the checksums that the registry has signed, for all platforms. Kept beside cluster.yml, every later run, on any machine,
takes only this provider. The stand-in of the local cloud is a part of gpucluster and never gets into it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.paths import read_saved, write_whole

NAME = "terraform.lock.hcl"
# The name under which Terraform reads and writes it.
WORKING = ".terraform.lock.hcl"


def path_of(cluster_yml: Path) -> Path:
    """The kept lock of the cluster that `cluster_yml` describes."""
    return cluster_yml.resolve().parent / NAME


def keep(root: Path, file: Path) -> bool:
    """Keep what the last `terraform init` recorded. Returns whether the file changed.

    Args:
        root: the working copy of the root. `file`: the kept lock.

    Raises:
        EnvironmentFault: it can't be written.
        InputError: nothing was recorded yet.
    """
    try:
        text = read_saved(root / WORKING)
    except OSError as error:
        raise InputError(
            "Terraform has recorded no provider of this cluster on this machine yet",
            where=str(root / WORKING),
            hint="Run: gpucluster plan",
        ) from error
    if file.exists() and read_saved(file) == text:
        return False
    write_whole(file, text, mode=0o644)
    return True


def use(root: Path, file: Path) -> tuple[str, ...]:
    """Let the next `terraform init` take only the provider of a kept lock. Returns its further arguments; none without
    such a file.

    Raises:
        EnvironmentFault: the file can't be read.
    """
    if not file.exists():
        return ()
    try:
        shutil.copyfile(file, root / WORKING)
    except OSError as error:
        raise EnvironmentFault(
            f"can't copy the lock of the provider: {error.strerror}",
            where=str(file),
            hint="Look at the permissions of the file and at the space of its disk",
        ) from error
    return ("-lockfile=readonly",)
