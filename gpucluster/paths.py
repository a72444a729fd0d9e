"""Where things lie (our own data, a cluster's state, the local cloud's home), and how a private file is written."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpucluster.errors import EnvironmentFault

STATE_DIRECTORY = ".gpucluster"


def _data_dir(name: str) -> Path:
    """`terraform/` and `ansible/` stand beside the package in a checkout and inside it in a wheel."""
    package = Path(__file__).resolve().parent
    # First inside: beside an installed package stands ansible-core's own folder `ansible`.
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise EnvironmentFault(
        f"the {name} files of gpucluster are missing",
        where=str(package),
        hint="Install gpucluster again: pip install --force-reinstall gpucluster",
    )


def terraform_dir() -> Path:
    """The folder with the root `cluster/` and its `modules/`."""
    return _data_dir("terraform")


def ansible_dir() -> Path:
    """The folder with the playbooks and `roles/`."""
    return _data_dir("ansible")


def local_cloud_home() -> Path:
    """Where the local cloud keeps everything: one per user of this machine, unless GPUCLUSTER_HOME names another."""
    chosen = os.environ.get("GPUCLUSTER_HOME")
    if chosen:
        return Path(chosen).resolve()
    if os.geteuid() == 0:
        return Path("/var/lib/gpucluster")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "gpucluster"


def cache_dir() -> Path:
    """Where what was downloaded is kept; all of it can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpucluster"


@dataclass(frozen=True)
class ClusterPaths:
    """What belongs to one cluster, all of it in `.gpucluster/` beside its cluster.yml.

    The folder is private (0700): Terraform's state and a key pair lie in it.
    """

    root: Path

    @classmethod
    def of(cls, cluster_yml: Path) -> ClusterPaths:
        """The paths of the cluster that `cluster_yml` describes."""
        return cls(cluster_yml.resolve().parent / STATE_DIRECTORY)

    @property
    def lock(self) -> Path:
        """The lock of this cluster; it names its holder."""
        return self.root / "lock.json"

    @property
    def runs(self) -> Path:
        """The journal: one file a run."""
        return self.root / "runs"

    @property
    def terraform(self) -> Path:
        """The working copy of our Terraform folder."""
        return self.root / "terraform"

    @property
    def terraform_state(self) -> Path:
        """The state of the default (local) backend."""
        return self.root / "terraform.tfstate"

    @property
    def ansible(self) -> Path:
        """Inventory and artifacts of ansible-runner."""
        return self.root / "ansible"

    @property
    def ssh(self) -> Path:
        """Keys, known hosts and the ssh configuration."""
        return self.root / "ssh"

    def create(self) -> None:
        """Make the private folders."""
        for folder in (self.root, self.runs, self.ansible, self.ssh):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.chmod(0o700)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all.

    Raises:
        EnvironmentFault: the disk is full or the folder can't be written; the old file is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        hint = "Free some space and run the same command again" if error.errno == errno.ENOSPC else ""
        raise EnvironmentFault(f"can't write: {error.strerror}", where=str(path), hint=hint) from error
