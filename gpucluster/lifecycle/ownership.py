"""Is the cluster in the cloud the one of this folder? Asked before a command changes or removes something.

What decides is in `handover.ownership`; here the state, the cloud and this machine's files are read for it
(docs/adr/0072-cluster-identity.md).
"""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gpucluster import __version__, formats, handover
from gpucluster.cloud import clusters
from gpucluster.cloud.clusters import Sighting
from gpucluster.cloud.lock_tag import carrier
from gpucluster.cloud.providers import CloudProvider
from gpucluster.errors import CloudError, EnvironmentFault, OtherClusterError
from gpucluster.events import Sink, info, warn
from gpucluster.handover import ownership
from gpucluster.handover.ownership import FolderFacts
from gpucluster.lifecycle.run_lock import RunLock
from gpucluster.oci import tags
from gpucluster.oci.run_lock import Holder
from gpucluster.oci.states import GONE
from gpucluster.paths import ClusterPaths
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.runner import Terraform
from gpucluster.terraform.state import StateContents, on_this_machine
from gpucluster.text import printable
from gpucluster.waiting import wait_until
from gpucluster.workspace.saved_state import SavedIdentity, SavedRelease, SavedState

# OCI's limit for the value of a tag.
_LONGEST_TAG = 256
# Seconds until a network that was just made is in the listings of the cloud, which may lag.
_LISTED_TIMEOUT, _LISTED_INTERVAL = 60.0, 1.0
# Seconds until a run that has begun a cluster of this name a moment later has seen ours, and removed its own one. What
# it waits for is the launch of its controller.
_REMOVAL_TIMEOUT = 300.0
_UPGRADES = "docs/how-to/upgrade-gpucluster.md"
_NOT_LISTED = "the cloud does not list what this run has made: runs of other machines are not kept out"


class Ownership:
    """Says which cluster a folder works on, and refuses to work on another one.

    Args:
        terraform: makes a Terraform that can read the state.
        lock: is taken by the first `require` of a run.
        remote: whether cluster.yml has the state in a remote backend.
        named: the identity that the operator has named for this command; empty if they have named none.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        paths: ClusterPaths,
        saved: SavedState,
        cloud: CloudProvider,
        terraform: Callable[[], Terraform],
        on_event: Sink,
        lock: RunLock,
        remote: bool = False,
        named: str = "",
    ) -> None:
        self._spec = spec
        self._paths = paths
        self._saved = saved
        self._cloud = cloud
        self._terraform = terraform
        self._on_event = on_event
        self._lock = lock
        self._remote = remote
        self._named = named
        self._proven = False
        self._is_new = False
        self._is_visible = False
        self._has_hosts = False
        self._id = ""
        self._origin = ""
        self._compared = ""

    @property
    def id(self) -> str:
        """The identity of the cluster that was proven, or claimed; empty for one that has none yet."""
        return self._id

    @property
    def origin(self) -> str:
        """Who made it, and where; empty if that is not known."""
        return self._origin

    def require_name(self) -> None:
        """Refuse a folder whose local state, if it has one, is that of another cluster, or of a newer release. Asks no
        service.

        Raises:
            OtherClusterError: with both names.
            NewerReleaseError: this release can't read it.
        """
        release, file = self._saved.release, str(self._saved.release_file)
        formats.require_known(release.format, what="this cluster's folder", where=file, release=release.version)
        saved = self._saved.identity
        if self._remote and saved is not None and saved.name != self._spec.name:
            self._saved.forget_hosts()  # a cache of another cluster: the state is asked
        contents = None if self._remote else on_this_machine(self._paths)
        if contents is not None:
            self._require_name(contents)

    def outputs(self) -> Mapping[str, Any]:
        """Terraform's outputs; empty without a state. Those of a cluster that was destroyed have no hosts.

        Raises:
            OtherClusterError: they are of another cluster than cluster.yml names.
            TerraformError: the state can't be read.
        """
        outputs = self._terraform().outputs()
        if outputs.get("cluster"):
            name = handover.Identity.parse(outputs).name
            where = "" if self._remote else str(self._paths.terraform_state)
            folder = FolderFacts(self._spec.name, str(self._spec.file), known=("cluster",), state=where)
            ownership.require_name(folder, {name} - {""})
        return outputs

    def require(self, *, strict: bool = False, state: bool = True, only_look: bool = False) -> None:
        """Refuse to go on if the cloud has a cluster of this name that is not known to be the one of this folder.

        Args:
            strict: see `handover.ownership.identity`.
            only_look: the run shows what it would change. Another one must not hold the cluster nevertheless.
            state: read Terraform's state. Without it, what this machine has saved is enough where it fits.

        Raises:
            OtherClusterError: with the facts, and how to name that cluster.
            NewerReleaseError: a newer release has written the state.
            LockedError: within a run: that of another machine or folder holds the cluster.
            GpuClusterError: the state can't be read, or the cloud refused.
        """
        if self._proven:
            return
        self.require_name()
        if not state and self._saved_fits():
            self._compare_releases(self._saved.release.version)
            return
        contents = self._contents()
        self._require_name(contents)
        folder = self._folder(contents)
        sightings = self._sightings()
        self._id = ownership.identity(folder, sightings, named=self._named, strict=strict)
        self._lock.take(sightings, only_look=only_look)
        self._is_new = not contents.entries and not sightings
        self._is_visible = carrier(sightings) is not None
        self._has_hosts = any(each.kind == "instance" and each.state not in GONE for each in sightings)
        known = handover.Identity.parse(contents.outputs)
        self._compare_releases(known.release)
        if known.release and not only_look:
            found = SavedRelease(int(contents.outputs["identity"]["contract_version"]), known.release)
            with suppress(EnvironmentFault):  # a cache: another machine may have applied it since
                self._saved.release = found
        saved = self._saved_here()
        if known.id and known.id == self._id:
            self._origin = known.origin
        elif saved is not None and saved.id == self._id:
            self._origin = saved.origin
        else:
            origins = (each.origin for each in sightings if each.identity == self._id)
            self._origin = next(filter(None, origins), "")
        self._proven = state

    def _compare_releases(self, applied: str) -> None:
        """Announce that another release has applied the cluster last.

        Args:
            applied: which one; empty if it is not known, as for a cluster that does not exist.
        """
        if applied == self._compared or not applied:
            return
        self._compared = applied
        if formats.is_older(__version__, than=applied):
            text = (
                f"gpucluster {applied} has applied this cluster last, and this is {__version__}: an apply would take "
            )
            warn(self._on_event, "cluster", f"{text}its programs and settings back ({_UPGRADES})")
        elif formats.is_older(applied):
            text = f"gpucluster {applied} has applied this cluster last, and this is {__version__}"
            info(self._on_event, "cluster", f"{text}: `gpucluster apply` upgrades it ({_UPGRADES})")

    @property
    def is_visible(self) -> bool:
        """Whether the cloud has a resource of the cluster whose tag can name the run that holds it."""
        return self._is_visible

    @property
    def has_hosts(self) -> bool:
        """Whether the cloud had hosts of the cluster when this run began."""
        return self._has_hosts

    def lock_carrier(self) -> str:
        """The OCID of the network whose tag names the run that holds the cluster; empty if the cloud lists none.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        found = carrier(self._sightings())
        return found.id if found is not None and found.kind == "vcn" else ""

    def hold(self) -> None:
        """Hold the cluster that this run has just begun to make: others see it from now on.

        Raises:
            OtherClusterError: another run has begun a cluster of this name earlier.
            LockedError: another run was faster.
            CloudError: the cloud refused, or can't be reached.
        """
        if self._is_visible:
            return
        sightings = wait_until(self._visible_sightings, _LISTED_TIMEOUT, _LISTED_INTERVAL)
        if not sightings:
            warn(self._on_event, "cluster", _NOT_LISTED)
            return
        self._require_first(sightings)
        self._lock.take(sightings)
        self._is_visible = True

    def hold_again(self) -> None:
        """Hold the cluster also where this run has replaced the controller that had the lock.

        Raises:
            LockedError: another run was faster.
            CloudError: the cloud refused, or can't be reached.
        """
        if self._spec.network.vcn_id is None:
            return
        sightings = wait_until(self._visible_sightings, _LISTED_TIMEOUT, _LISTED_INTERVAL)
        if sightings:
            self._lock.follow(sightings)
        else:
            warn(self._on_event, "cluster", _NOT_LISTED)

    def await_removal_by_others(self) -> bool:
        """Wait until runs that have begun a cluster of this name later, and had not seen ours, have removed it again.
        Returns whether nothing of them stands any more.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        text = "another run has begun a cluster of this name later; waiting until it has removed it again"
        info(self._on_event, "cluster", text)
        return wait_until(lambda: not ownership.others(self._sightings(), self._id), _REMOVAL_TIMEOUT, _LISTED_INTERVAL)

    def require_first(self) -> None:
        """Refuse to go on if another cluster of this name was begun earlier than the one of this run.

        Raises:
            OtherClusterError: with the facts of that cluster.
            CloudError: the cloud refused, or can't be reached.
        """
        self._require_first(self._sightings())

    def _require_first(self, sightings: tuple[Sighting, ...]) -> None:
        if not ownership.is_first(sightings, self._id):
            raise ownership.taken(self._folder(self._contents()), sightings, self._id)

    def _visible_sightings(self) -> tuple[Sighting, ...]:
        sightings = self._sightings()
        own = [each for each in sightings if not self._id or each.identity == self._id]
        return sightings if carrier(own) is not None else ()

    def unlock(self, lock_id: str) -> Holder:
        """Remove the lock of a run that does not run any more. Returns its holder.

        Raises:
            OtherClusterError: the cluster is not known to be the one of this folder.
            InputError: no run holds it, or another one.
            CloudError: the cloud refused, or can't be reached.
        """
        self.require(strict=True)
        return self._lock.remove(self._sightings(), lock_id)

    def forget(self) -> None:
        """Ask again from now on: what was found holds for one run."""
        self._proven, self._id, self._origin = False, "", ""

    def claim(self, *, save: bool) -> None:
        """Give the cluster an identity if it has none, after `require`.

        Args:
            save: keep it on this machine: a run may be killed before Terraform has written its state.
        """
        if not self._id:
            self._id = secrets.token_hex(8)
            # Who has built what is there already is not known.
            self._origin = origin(self._paths) if self._is_new else ""
        if save:
            self.save()

    def save(self) -> None:
        """Let later runs of this folder know the identity."""
        if self._id:
            self._saved.identity = SavedIdentity(self._spec.name, self._id, self._origin)

    def _saved_here(self) -> SavedIdentity | None:
        saved = self._saved.identity
        return saved if saved is not None and saved.name == self._spec.name else None

    def _saved_fits(self) -> bool:
        """Whether the cloud has nothing under this name but the cluster that this machine has worked on. A cloud that
        does not answer does not block a host whose key this machine knows."""
        saved = self._saved_here()
        if saved is None or self._named:
            return False
        try:
            ownership.identity(self._folder(StateContents({}), saved.id), self._sightings(), strict=True)
        except OtherClusterError:
            return False
        except CloudError as error:
            if not self._saved.hosts():
                raise
            warn(self._on_event, "cluster", f"whose cluster it is was not compared with the cloud: {error.what}")
        self._id, self._origin = saved.id, saved.origin
        return True

    def _contents(self) -> StateContents:
        local = None if self._remote else on_this_machine(self._paths)
        return self._terraform().contents(damaged_is_empty=True) if local is None else local

    def _require_name(self, contents: StateContents) -> None:
        handover.Identity.parse(contents.outputs)  # what a newer release has written is not looked at
        outputs = [contents.outputs.get(name) for name in ("identity", "cluster")]
        names = {str(output.get("name") or "") for output in outputs if isinstance(output, Mapping)}
        tagged = {tags.cluster(entry.tags) for entry in contents.entries}
        where = "" if self._remote else str(self._paths.terraform_state)
        folder = FolderFacts(self._spec.name, str(self._spec.file), known=contents.ids, state=where)
        ownership.require_name(folder, names - {""} or tagged - {""})

    def _folder(self, contents: StateContents, own: str = "") -> FolderFacts:
        known = handover.Identity.parse(contents.outputs)
        of_entries = {tags.identity(entry.tags) for entry in contents.entries} - {""}
        saved = self._saved_here()
        ids = [
            own,
            # Without resources it may be what a first apply under another name has left.
            known.id if contents.entries or known.name == self._spec.name else "",
            next(iter(of_entries)) if len(of_entries) == 1 else "",
            saved.id if saved else "",
        ]
        network = self._spec.network
        return FolderFacts(
            self._spec.name,
            str(self._spec.file),
            "" if network.vcn_id else str(network.vcn_cidr),
            next(filter(None, ids), ""),
            contents.ids,
            str(self._paths.terraform_state) if not self._remote else "",
        )

    def _sightings(self) -> tuple[Sighting, ...]:
        """What the cloud has of clusters with this name, without what cluster.yml names and gpucluster did not make."""
        if not self._cloud.in_use():
            return ()
        self._cloud.start_if_used()
        kept = {self._spec.network.vcn_id, *self._spec.storage.existing_file_systems.values()}
        sightings = clusters.sightings(self._cloud.access())
        return tuple(each for each in sightings if each.cluster == self._spec.name and each.id not in kept)


def origin(paths: ClusterPaths) -> str:
    """Who works here, and where, for operators who find the cluster in the cloud."""
    user = "unknown"
    with suppress(OSError, KeyError):  # a container without an entry for its user
        user = getpass.getuser()
    text = printable(f"{user}@{socket.gethostname()}:{paths.root.resolve().parent}")
    return text.encode("ascii", "replace").decode()[:_LONGEST_TAG]
