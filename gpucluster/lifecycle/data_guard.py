"""The guard of users' files: no file system of a cluster is deleted before its content was checked.

It trusts no file of this machine and no empty state. It finds the file systems that exist, in Terraform's state and in
the cloud by their tag, and looks at each through a host that answers. docs/adr/0024-no-file-is-lost.md has the reasons.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gpucluster import process
from gpucluster.artifacts import agent_archive
from gpucluster.cloud.file_systems import FileSystem, FileSystems
from gpucluster.cloud.tagged_resources import TaggedResource
from gpucluster.errors import DataGuardError, GpuClusterError
from gpucluster.node_agent import bounded
from gpucluster.node_agent.interpreter import PYTHON_IN_SHELL
from gpucluster.oci.tags import UsersFiles
from gpucluster.ssh import SshClient
from gpucluster.text import count
from gpucluster.workspace.run import Run
from gpucluster.workspace.saved_state import SavedHost

#: What to do about a file system that would be deleted.
DELETE_DATA_HINT = "Copy what is needed, then pass --delete-data to delete the file system with all files in it"
# The agent comes on standard input: on a host that was never configured, none is installed.
_RUN_AGENT = f'file=$(mktemp) && trap "rm -f $file" EXIT && cat >"$file" && sudo -n {PYTHON_IN_SHELL} -I "$file"'
# Seconds for one look: a share may have very many files, and a host that was never configured installs an NFS client.
_TIMEOUT = 1200.0
_WORKERS = 16
# ssh's own status: the host was not reached.
_UNREACHED = 255


@dataclass(frozen=True)
class UserFiles:
    """The files of users in a file system: their number by owner.

    Args:
        complete: False if there are more than were counted.
    """

    owners: Mapping[str, int]
    complete: bool = True


class HostFinder(Protocol):
    """Finds the hosts of a cluster, the controller first; ssh reaches them by their names afterwards."""

    def __call__(self, *, refresh: bool = False) -> Sequence[SavedHost]:
        """As `lifecycle.locate` does."""


class ShareLook:
    """Looks at a share through the hosts of a cluster.

    Args:
        hosts: those with a controller; `nodes`: those of a cluster whose controller does not exist any more.
        ssh_client: makes the client of the started cloud.
    """

    def __init__(
        self, hosts: HostFinder, nodes: Callable[[], Sequence[SavedHost]], ssh_client: Callable[[], SshClient]
    ) -> None:
        self._hosts = hosts
        self._nodes = nodes
        self._ssh_client = ssh_client

    def __call__(self, sources: Sequence[str], *, every_file: bool = False) -> UserFiles | str:
        """The files on a share; or why no host can tell.

        Args:
            sources: the ways to the share, such as "10.0.1.2:/home".
            every_file: count files of root and of new homes, too.
        """
        if not sources:
            return "no host can mount it, because it has no export"
        last_hosts: tuple[SavedHost, ...] = ()
        reasons: list[str] = []
        ways: Sequence[Callable[[], Sequence[SavedHost]]]
        ways = (self._hosts, partial(self._hosts, refresh=True), self._nodes)
        for way in ways:
            try:
                present = tuple(way())
            except GpuClusterError as error:
                reasons.append(error.what)
                continue
            if not present or present == last_hosts:
                continue
            last_hosts = present
            answer = self._ask(present, (*(["--all"] if every_file else []), *sources))
            if isinstance(answer, UserFiles):
                return answer
            reasons.append(answer)
        return "; ".join(dict.fromkeys(reasons)) or "no host of the cluster is left to ask"

    def _ask(self, hosts: Sequence[SavedHost], words: Sequence[str]) -> UserFiles | str:
        """The answer of the first of the hosts; of another one only if that can't tell."""
        answer = self._ask_host(hosts[0].name, words)
        if isinstance(answer, UserFiles):
            return answer
        reasons = [answer]
        with ThreadPoolExecutor(max_workers=_WORKERS) as workers:
            for other in workers.map(lambda host: self._ask_host(host.name, words, direct=True), hosts[1:]):
                if isinstance(other, UserFiles):
                    return other
                reasons.append(other)
        more = f", and {count(len(reasons) - 1, 'other host')} can't tell either" if reasons[1:] else ""
        return f"{reasons[0]}{more}"

    def _ask_host(self, name: str, words: Sequence[str], *, direct: bool = False) -> UserFiles | str:
        """Ask one host, through the controller; with `direct`, also past one that does not answer."""
        program, command = agent_archive.of_node(), f"{_RUN_AGENT} home-files {shlex.join(words)}"
        client = self._ssh_client()
        argvs = [client.argv(name, [command]), *([client.argv(name, [command], direct=True)] if direct else [])]
        reason = ""
        for argv in argvs:
            try:
                result = process.run(argv, input=program, check=False, timeout=_TIMEOUT)
            except GpuClusterError as error:
                reason = f"{name}: {error.what}"
                continue
            if result.returncode != _UNREACHED:
                return _answer(name, result)
            reason = f"{name} can't be reached: {_last(result.stderr)}"
        return reason


class ShareInspection(Protocol):
    """Looks at a share; see `ShareLook`."""

    def __call__(self, sources: Sequence[str], *, every_file: bool = False) -> UserFiles | str:
        """The files on it; or why no host can tell."""


class DataGuard:
    """Protects users' files in the file systems of a cluster.

    Args:
        file_systems: makes the client of the started cloud.
    """

    def __init__(self, file_systems: Callable[[], FileSystems], look: ShareInspection) -> None:
        self._file_systems = file_systems
        self._look = look

    def release(self, known: Collection[str], run: Run, *, delete_data: bool) -> frozenset[str]:
        """The OCIDs of the file systems that may be deleted: all that the cluster has.

        Args:
            known: the OCIDs of those in Terraform's state.
            delete_data: the operator allows it, whatever is in them.

        Raises:
            DataGuardError: there are users' files or snapshots, or no host can tell.
            CloudError: the cloud refused, or can't be reached.
        """
        with run.phase("check for users' files"):
            systems = self._file_systems()
            file_systems = systems.find(known)
            if not delete_data:
                for file_system in file_systems:
                    self._require_empty(systems, file_system)
            return frozenset(file_system.id for file_system in file_systems)

    def _require_empty(self, systems: FileSystems, file_system: FileSystem) -> None:
        if file_system.snapshots:
            names = ", ".join(file_system.snapshots)
            which = count(len(file_system.snapshots), "snapshot")
            raise refusal(file_system, f"has {which}, which OCI would delete with it: {names}")
        # Nothing but users and administrators writes into a further share.
        look = partial(self._look, file_system.sources, every_file=not file_system.has_homes)
        files = look()
        if isinstance(files, str):
            if not known_to_be_empty(file_system):
                raise refusal(file_system, f"can't be looked into for users' files: {files}")
            return
        if files.owners:
            if not file_system.writable:
                systems.unseal(file_system.id)  # a destroy that was killed has left it read-only
            raise _full(file_system, files)
        with _unsealed_after_failure(systems, file_system.id):
            # Users may be at work. Between this look and the end of the hosts no user writes any more.
            systems.seal(file_system.id)
            files = look()
            if isinstance(files, str):
                raise refusal(file_system, f"can't be looked into a second time: {files}")
            if files.owners:
                raise _full(file_system, files)
            systems.note(file_system.id, UsersFiles.EMPTY)


def known_to_be_empty(file_system: FileSystem) -> bool:
    """Whether the tags of the file system show that there are no files of users, where no host can be asked. Pure.

    It does if no run has ever let users reach it, or if a destroy has looked and no host could write since then.
    """
    if file_system.files == UsersFiles.EMPTY:
        return not file_system.writable
    return file_system.files == UsersFiles.UNUSED


def require_state_released(volumes: Sequence[TaggedResource], *, delete_data: bool) -> None:
    """Refuse to delete the volumes with the state of a controller, unless the operator allows it.

    Raises:
        DataGuardError: with the name of the first one. Nothing was changed.
    """
    if volumes and not delete_data:
        raise DataGuardError(
            f"the volume {volumes[0].name} holds the controller's state: users, accounting, the queue and keys",
            where=volumes[0].id,
            hint="Make a backup if you need it (`gpucluster backup`). --delete-data deletes the volume, and the home "
            "directories with it",
        )


def refusal(file_system: FileSystem, why: str) -> DataGuardError:
    """The error for a file system that must not be deleted."""
    return DataGuardError(f"the file system {file_system.name} {why}", where=file_system.id, hint=DELETE_DATA_HINT)


def _full(file_system: FileSystem, user_files: UserFiles) -> DataGuardError:
    each = ", ".join(f"{number} of {owner}" for owner, number in sorted(user_files.owners.items()))
    files = count(sum(user_files.owners.values()), "file")
    return refusal(file_system, f"holds {'' if user_files.complete else 'at least '}{files} of users: {each}")


@contextmanager
def _unsealed_after_failure(systems: FileSystems, ocid: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        systems.unseal(ocid)
        raise


def _answer(name: str, result: process.Completed) -> UserFiles | str:
    """What the program on a host has printed."""
    try:
        answer = bounded.loads(result.stdout)
        if "error" in answer:
            return f"{name}: {answer['error']}"
        owners = {str(owner): int(number) for owner, number in answer["owners"].items()}
        return UserFiles(owners, bool(answer["complete"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"{name}: {_last(result.stderr) or f'the look ended with status {result.returncode}'}"


def _last(text: str) -> str:
    """The last line of a program's standard error."""
    return text.strip().rpartition("\n")[2] or "no reason was given"
