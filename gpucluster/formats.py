"""The format in which a release stores what it knows of a cluster, and the refusal of a later one. Pure.

One number stands for all of it: the outputs and the variables of Terraform, and the files of `.gpucluster/`. It rises
when an older release would misread them, or would remove what it does not know. `handover.earlier_formats` reads the
older ones (docs/adr/0117-upgrade-and-releases.md).

    1    0.1.0
    2    a standby and the volume of the controller's state; images are variables of their own; the release is stored
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from gpucluster import __version__
from gpucluster.errors import NewerReleaseError

CLUSTER_FORMAT = 2
#: The release that has written the format 1, in which no release is stored.
RELEASE_OF_FORMAT_1 = "0.1.0"


def require_known(found: object, *, what: str, where: str = "", release: str = "", known: int = CLUSTER_FORMAT) -> None:
    """Refuse to go on with something that a newer release has written.

    Args:
        found: its format. Its reader refuses what is not a number.
        what: its name, as the subject of a sentence.
        where: its file, or its host.
        release: which release has written it; empty if that is not known.
        known: the newest format that this release reads.

    Raises:
        NewerReleaseError: with both formats, and what to install. Nothing was changed.
    """
    if not isinstance(found, int) or found <= known:
        return
    by = f"gpucluster {release}" if release else "a newer gpucluster"
    raise NewerReleaseError(
        f"{what} has the format {found}, which {by} has written; this gpucluster {__version__} reads formats up to "
        f"{known}. Nothing was changed",
        where=where,
        hint=f"Use gpucluster {release or 'of the last apply'} or a newer one here (docs/how-to/upgrade-gpucluster.md)",
    )


def is_older(release: str, than: str = __version__) -> bool:
    """Whether a release came before another one; False if one of the two is not a version."""
    try:
        return Version(release) < Version(than)
    except InvalidVersion:
        return False
