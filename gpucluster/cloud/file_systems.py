"""The file systems of a cluster in OCI's File Storage: what may be in them, and who may still write into them.

What is known of users' files is a tag of the file system itself (`oci.tags.FILES`), so that every machine knows it, and
no file is trusted that may be of another cluster, or of last year.
"""

from __future__ import annotations

import http
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpucluster.cloud.client import CloudAccess, all_pages, model, refusals, unless_refused
from gpucluster.oci import tags
from gpucluster.oci.states import GONE
from gpucluster.waiting import wait_until

_READ_ONLY, _READ_WRITE = "READ_ONLY", "READ_WRITE"
_POLL, _TIMEOUT = 0.5, 120.0


@dataclass(frozen=True)
class FileSystem:
    """A file system of a cluster.

    Args:
        sources: under which addresses and paths hosts can mount it, such as "10.0.1.2:/home".
        writable: whether a host may write through one of them.
        files: what is known of users' files; None if its tags do not state it.
        snapshots: the names of its snapshots. OCI deletes them together with it.
        has_homes: whether it is the home share: it has exactly that name.
    """

    id: str
    name: str
    sources: tuple[str, ...]
    writable: bool
    files: tags.UsersFiles | None
    snapshots: tuple[str, ...]
    has_homes: bool


class FileSystems:
    """Finds the file systems of a cluster. Never deletes one.

    Args:
        cluster: the name of the cluster.
        keep: OCIDs of file systems that cluster.yml names. They belong to others, whatever tags they have.
    """

    def __init__(self, access: CloudAccess, cluster: str, *, keep: AbstractSet[str] = frozenset()) -> None:
        self._access = access
        self._cluster = cluster
        self._keep = keep

    def find(self, known: Collection[str] = ()) -> tuple[FileSystem, ...]:
        """The file systems that exist and have the cluster's tag, or are known otherwise.

        Args:
            known: OCIDs, such as those in Terraform's state.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("looking for the file systems of the cluster"):
            by_id = {each.id: each for each in self._listed() if tags.of_cluster(each.freeform_tags, self._cluster)}
            for ocid in known:
                if ocid not in by_id and (each := self._get(ocid)) is not None:
                    by_id[ocid] = each
            return tuple(
                self._described(each)
                for ocid, each in sorted(by_id.items())
                if (ocid in known or ocid not in self._keep) and each.lifecycle_state not in GONE
            )

    def note(self, ocid: str, files: tags.UsersFiles) -> None:
        """Write down what is known of users' files. Does nothing for a file system without the cluster's tag.

        Args:
            ocid: may be empty: there is none.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        with refusals("noting whether users' files may be in the file system"):
            present = self._get(ocid) if ocid else None
            if present is None or not tags.of_cluster(present.freeform_tags, self._cluster):
                return
            if present.freeform_tags.get(tags.FILES) != files:
                changed = {**present.freeform_tags, tags.FILES: str(files)}
                details = model("file_storage", "UpdateFileSystemDetails", freeform_tags=changed)
                self._client().update_file_system(ocid, details)

    def seal(self, ocid: str) -> None:
        """Let hosts only read from now on, those included that have it mounted.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        self._set_access(ocid, _READ_ONLY)

    def unseal(self, ocid: str) -> None:
        """Let hosts write again.

        Raises:
            CloudError: the cloud refused, or can't be reached.
        """
        self._set_access(ocid, _READ_WRITE)

    def _set_access(self, ocid: str, access: str) -> None:
        with refusals("changing who may write into the file system"):
            for export in self._exports(ocid):
                if all(option.access == access for option in export.export_options):
                    continue
                options = list(export.export_options)
                for option in options:
                    option.access = access
                details = model("file_storage", "UpdateExportDetails", export_options=options)
                self._client().update_export(export.id, details)
                wait_until(partial(self._has_access, export.id, access), _TIMEOUT, _POLL)

    def _has_access(self, export_id: str, access: str) -> bool:
        return all(option.access == access for option in self._client().get_export(export_id).data.export_options)

    def _listed(self) -> list[Any]:
        call, compartment = self._client().list_file_systems, self._access.compartment_id
        return [each for domain in self._domains() for each in all_pages(call, compartment, domain)]

    def _domains(self) -> Sequence[str]:
        identity = self._access.client("identity", "IdentityClient")
        return [domain.name for domain in identity.list_availability_domains(self._access.compartment_id).data]

    def _get(self, ocid: str) -> Any:
        """The file system; None if it does not exist any more."""
        answer = unless_refused(lambda: self._client().get_file_system(ocid), http.HTTPStatus.NOT_FOUND)
        return None if answer is None or answer.data.lifecycle_state in GONE else answer.data

    def _described(self, file_system: Any) -> FileSystem:
        exports = self._exports(file_system.id)
        snapshots = all_pages(self._client().list_snapshots, file_system_id=file_system.id)
        return FileSystem(
            file_system.id,
            file_system.display_name,
            tuple(f"{address}:{export.path}" for export in exports for address in self._addresses(export)),
            any(option.access == _READ_WRITE for export in exports for option in export.export_options),
            tags.users_files(file_system.freeform_tags),
            tuple(sorted(each.name for each in snapshots if each.lifecycle_state not in GONE)),
            file_system.display_name == f"{self._cluster}-home",
        )

    def _exports(self, ocid: str) -> list[Any]:
        listed = all_pages(self._client().list_exports, file_system_id=ocid)
        return [self._client().get_export(each.id).data for each in listed if each.lifecycle_state not in GONE]

    def _addresses(self, export: Any) -> list[str]:
        """The addresses of the mount targets that offer an export."""
        call, compartment = self._client().list_mount_targets, self._access.compartment_id
        targets = [
            target
            for domain in self._domains()
            for target in all_pages(call, compartment, domain, export_set_id=export.export_set_id)
            if target.lifecycle_state not in GONE
        ]
        network = self._access.client("core", "VirtualNetworkClient")
        return [network.get_private_ip(ocid).data.ip_address for target in targets for ocid in target.private_ip_ids]

    def _client(self) -> Any:
        return self._access.client("file_storage", "FileStorageClient")
