"""Whether what the cloud has under a cluster's name is the cluster that a folder works on.

Two operators may choose the same name in one compartment. So a cluster has a random identity besides its name: in the
tags of its resources and in Terraform's state. Before a command changes something, the two are compared here. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gpucluster.cloud.clusters import Sighting
from gpucluster.errors import OtherClusterError
from gpucluster.oci.states import GONE
from gpucluster.text import count, printable, some

_HOSTS_SHOWN = 5


@dataclass(frozen=True)
class FolderFacts:
    """What a folder knows of its cluster.

    Args:
        name: the cluster's name in cluster.yml.
        file: cluster.yml.
        address_range: of the network that cluster.yml asks for; empty for an existing network.
        id: the identity in the state, or else the one that this machine has saved; empty if there is none.
        known: the OCIDs in Terraform's state.
        state: where that is.
    """

    name: str
    file: str
    address_range: str = ""
    id: str = ""
    known: Collection[str] = ()
    state: str = ""

    @property
    def has_state(self) -> bool:
        """Whether the state knows any resource."""
        return bool(self.known)


def require_name(folder: FolderFacts, names: Collection[str]) -> None:
    """Refuse a state with resources of another cluster than cluster.yml names: it was renamed, or the state is in the
    wrong folder.

    Args:
        names: of the clusters that the state names.

    Raises:
        OtherClusterError: with both names.
    """
    others = sorted(set(names) - {folder.name})
    if others and folder.has_state:
        raise OtherClusterError(
            f"this folder's state is of the cluster {', '.join(others)}, and cluster.yml names {folder.name}",
            where=folder.state or folder.file,
            hint=f"A cluster keeps its name: write `name: {others[0]}` again. For another cluster, use another folder",
        )


def identity(folder: FolderFacts, sightings: Iterable[Sighting], *, named: str = "", strict: bool = False) -> str:
    """The identity of the cluster that a command may change; empty if it has none yet.

    Args:
        sightings: what the cloud has under this name.
        named: the identity that the operator has named with `--cluster-id`. A cluster without one has the OCID of its
            controller in its place.
        strict: with an empty state, also refuse what has neither hosts nor an identity: the next apply may continue
            it, and nothing else may touch it.

    Raises:
        OtherClusterError: the cloud has another cluster of this name, or the named one is not there.
    """
    present = [each for each in sightings if each.state not in GONE]
    in_state = {each.identity for each in present if each.id in folder.known and each.identity}
    own = folder.id or (next(iter(in_state)) if len(in_state) == 1 else "")
    if named:
        return _named(folder, present, own, named)
    ours = [each for each in present if each.id in folder.known or (own and each.identity == own)]
    if any(each.identity and each.identity != own for each in present):
        raise taken(folder, present, own)
    unproven = bool(present) and not ours and (bool(own) or not folder.has_state)
    if unproven and (strict or any(each.kind == "instance" for each in present)):
        raise taken(folder, present, own)
    return own


def _named(folder: FolderFacts, present: Sequence[Sighting], own: str, named: str) -> str:
    in_state = any(each.identity == named and each.id in folder.known for each in present)
    # What a machine has only saved may be of a cluster that was destroyed elsewhere: who names one knows better.
    if own and named != own and folder.has_state and not in_state:
        raise OtherClusterError(
            f"this folder's cluster {folder.name} has the identity {own}, and not {printable(named)}",
            where=folder.state or folder.file,
            hint="For another cluster, use a folder of its own with its cluster.yml",
        )
    ids = {each.identity for each in present if each.identity}
    if ids == {named} or (not ids and own == named):
        return named
    if not ids and any(each.id == named for each in present):
        return own
    what = f"the cloud has no cluster {folder.name} with the identity {printable(named)}"
    raise OtherClusterError(
        "\n".join([what, *facts(folder, present)]),
        hint="See the clusters and their identities: gpucluster list",
        cluster_id=_label(present),
    )


def is_first(sightings: Iterable[Sighting], own: str) -> bool:
    """Whether no other cluster of this name was begun before ours. Two first applies at once make a network each, then
    look: the later one sees both.

    Args:
        sightings: what the cloud has under this name, our network or controller included.
        own: our identity.
    """
    standing = [each for each in sightings if each.state not in GONE and each.identity and each.carries_lock]
    first = min(standing, key=lambda each: (each.created, each.id), default=None)
    return first is None or first.identity == own


def others(sightings: Iterable[Sighting], own: str) -> list[Sighting]:
    """What stands of clusters of this name with another identity than ours."""
    return [each for each in sightings if each.state not in GONE and each.identity not in ("", own)]


def taken(folder: FolderFacts, present: Sequence[Sighting], own: str) -> OtherClusterError:
    """The error for a cluster of this name that is another one, or may be."""
    label = _label(present)
    if own:
        why = f"this folder's cluster has the identity {own}"
    elif folder.has_state:
        why = "this folder's state does not know it"
    else:
        why = "this folder has no state of it"
    what = f"the cloud has a cluster {folder.name} that is not known to be yours: {why}"
    knowingly = (
        f"If you mean that cluster, name its identity: --cluster-id {label}. Where its state is lost, begin with "
        f"gpucluster state recover --cluster-id {label}"
        if label
        else "Several clusters have this name: use another compartment for one of them"
    )
    return OtherClusterError(
        "\n".join([what, *facts(folder, present)]),
        hint=f"This name is taken: choose another `name` in {folder.file}. {knowingly}",
        cluster_id="" if own else label,
    )


def facts(folder: FolderFacts, present: Sequence[Sighting]) -> list[str]:
    """What is known of a cluster in the cloud, in lines, beside the values of cluster.yml."""
    if not present:
        return []
    ids = sorted({each.identity for each in present if each.identity})
    ranges = sorted({each.address_range for each in present if each.address_range})
    first = min((each for each in present if each.created), key=lambda each: each.created, default=None)
    creators = sorted({each.creator for each in present if each.creator})
    origins = sorted({each.origin for each in present if each.origin})
    hosts = sorted(each.name for each in present if each.kind == "instance")
    others = len(present) - len(hosts)
    rows = {
        "identity": ", ".join(ids) or "none",
        "address range": ", ".join(ranges) or "of an existing network",
        "in cluster.yml": folder.address_range or "an existing network",
        "created": f"{first.created[:19].replace('T', ' ')} UTC" if first else "not known",
        "by": ", ".join(creators),
        "from": ", ".join(origins),
        "hosts": some(hosts, _HOSTS_SHOWN) or "none",
        "also": f"{count(others, 'network or file system', 'networks and file systems')}" if others else "",
    }
    return [f"  {name:<15}{printable(value)}" for name, value in rows.items() if value]


def _label(present: Sequence[Sighting]) -> str:
    """What `--cluster-id` takes for the one cluster that these belong to; empty if they are of several."""
    ids = sorted({each.identity for each in present if each.identity})
    if ids:
        return ids[0] if len(ids) == 1 else ""
    controllers = [each.id for each in present if each.controller]
    others = sorted(each.id for each in present)
    return controllers[0] if len(controllers) == 1 else next(iter(others), "") if not controllers else ""
