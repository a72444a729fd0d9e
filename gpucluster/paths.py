"""Paths: our own data, a cluster's state, the local cloud's home, the cache. And how a private file is written.

The autoscaler on the controller imports this module, too, and has fewer packages there: what only the operator's
machine needs is imported inside functions.
"""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpucluster.errors import EnvironmentFault

STATE_DIRECTORY = ".gpucluster"
_GITIGNORE = "# Written by gpucluster: keys, states and outputs of runs do not belong in a repository.\n*\n"


def _data(name: str) -> Path:
    """`terraform/`, `ansible/` and the lock file are beside the package in a checkout, and inside it in a wheel."""
    package = Path(__file__).resolve().parent
    # First inside: beside an installed package is ansible-core's own folder `ansible`.
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.exists():
            return candidate
    raise EnvironmentFault(
        f"{name} of gpucluster is missing",
        where=str(package),
        hint="Install gpucluster again: pip install --force-reinstall gpucluster",
    )


def import_root() -> Path:
    """The folder from which Python imports this package. A program that gets none of the caller's PYTHONPATH needs it,
    if the package is not installed for its Python."""
    return Path(__file__).resolve().parent.parent


def terraform_dir() -> Path:
    """The folder with the root `cluster/` and its `modules/`."""
    return _data("terraform")


def ansible_dir() -> Path:
    """The folder with the playbooks and `roles/`."""
    return _data("ansible")


def requirements_lock() -> Path:
    """The lock file of all Python packages that gpucluster installs."""
    return _data("requirements.lock")


def local_cloud_home() -> Path:
    """Where the local cloud stores everything: one per user of this machine, unless GPUCLUSTER_HOME names another.

    Every version looks here: this path must not change.
    """
    chosen = os.environ.get("GPUCLUSTER_HOME")
    if chosen:
        return Path(chosen).resolve()
    if os.geteuid() == 0:
        return Path("/var/lib/gpucluster")
    import platformdirs

    return platformdirs.user_data_path("gpucluster")


def cache_dir() -> Path:
    """Where downloads are stored; all of it can be deleted at any time."""
    import platformdirs

    return platformdirs.user_cache_path("gpucluster")


@dataclass(frozen=True)
class ClusterPaths:
    """The files of one cluster, all of them in `.gpucluster/` beside its cluster.yml.

    The folder is private (0700): it holds Terraform's state and a key pair.
    """

    root: Path

    @classmethod
    def of(cls, cluster_yml: Path) -> ClusterPaths:
        """The paths of the cluster that `cluster_yml` describes."""
        return cls(cluster_yml.resolve().parent / STATE_DIRECTORY)

    @property
    def price_list(self) -> Path:
        """Oracle's public price list, as it was last refreshed."""
        return self.root / "price-list.json"

    @property
    def earlier_price_lists(self) -> Path:
        """The lists before it, by their day: what something has cost is counted with the prices of its time."""
        return self.root / "price-lists"

    @property
    def lock(self) -> Path:
        """The lock of this cluster; it names its holder."""
        return self.root / "lock.json"

    @property
    def runs(self) -> Path:
        """The run log: one file a run."""
        return self.root / "runs"

    @property
    def interrupts(self) -> Path:
        """The programs that a run has told to stop; see `process.interrupt_once`."""
        return self.runs / "told-to-stop"

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
    def host_reports(self) -> Path:
        """The evidence against hosts that were reported to Oracle, for a support request."""
        return self.root / "host-reports"

    @property
    def backups(self) -> Path:
        """The backups that an upgrade of Kubernetes makes before it begins."""
        return self.root / "backups"

    @property
    def ssh(self) -> Path:
        """Keys, known hosts and the ssh configuration."""
        return self.root / "ssh"

    def create(self) -> None:
        """Make the private folders.

        Raises:
            EnvironmentFault: they can't be made, or can't be written.
        """
        for folder in (self.root, self.runs, self.ansible, self.ssh):
            make_private(folder)


def make_private(folder: Path) -> None:
    """Make a folder that only its owner may enter, unless it is there.

    Raises:
        EnvironmentFault: it can't be made, or can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        _keep_out_of_git(folder)
    except OSError as error:
        raise EnvironmentFault(
            f"can't make the folder: {error.strerror}", where=str(folder), hint=_advice(error, folder)
        ) from error


def _keep_out_of_git(folder: Path) -> None:
    """Give the `.gpucluster` that a folder is, or is in, a `.gitignore`: `git add` must take no key and no state."""
    root = next((each for each in (folder, *folder.parents) if each.name == STATE_DIRECTORY), None)
    if root is not None and not (root / ".gitignore").exists():
        write_private(root / ".gitignore", _GITIGNORE)


def fault_of(error: OSError) -> EnvironmentFault | None:
    """The fault of this machine behind an unexpected error; None if it may be a fault of ours."""
    if error.errno not in _OF_THIS_MACHINE:
        return None
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else Path()
    where = str(path) if error.filename else ""
    return EnvironmentFault(
        f"a file can't be read or written: {error.strerror}", where=where, hint=_advice(error, path)
    )


# Full disks, missing rights, and files or folders that were exchanged or removed behind our back.
_OF_THIS_MACHINE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EIO)
)


def _advice(error: OSError, path: Path) -> str:
    """What to do about a folder or file that can't be written."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "Free some space and run the same command again"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"Make it readable and writable for you, and the folder {path.parent}"
        case errno.EEXIST | errno.ENOTDIR:
            return f"A file is where the folder belongs. Move it away: mv {path} {path}.old"
    return "Remove the cause, then run the same command again"


def read_saved(path: Path) -> str:
    """The text of a file that gpucluster has written. Bytes that are not UTF-8 are replaced: its reader finds that a
    damaged file has another form, which each reader has to handle anyway.

    Raises:
        OSError: it can't be read.
    """
    return path.read_bytes().decode("utf-8", errors="replace")


def write_private(path: Path, text: str) -> None:
    """`write_whole`, for a file that only its owner may read."""
    write_whole(path, text, mode=0o600)


def write_whole(path: Path, text: str, *, mode: int) -> None:
    """Write a file whole or not at all, with this mode whatever the umask is. Folders that it makes are the owner's.

    Raises:
        EnvironmentFault: the disk is full or the folder can't be written; an existing file is unchanged.
    """
    try:
        for folder in reversed([path.parent, *path.parent.parents]):
            if not folder.exists():  # `.gpucluster` itself may have been deleted during a run
                folder.mkdir(exist_ok=True, mode=0o700)
                if folder.name == STATE_DIRECTORY:
                    _keep_out_of_git(folder)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentFault(f"can't write: {error.strerror}", where=str(path), hint=_advice(error, path)) from error
