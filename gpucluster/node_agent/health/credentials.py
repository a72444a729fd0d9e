"""Who wrote a text: munge's proof that a text was written by a user of a host that has the cluster's key.

munge itself refuses a credential that is used a second time on the same host, or that is older than five minutes.
"""

from __future__ import annotations

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused

_SECONDS = 5.0


def seal(text: str) -> str:
    """A credential with this text, of the user who runs this.

    Raises:
        Failed: munge does not run here.
    """
    result = programs.call(["munge"], text, seconds=_SECONDS)
    if result.returncode != 0:
        raise Failed(f"munge: {result.stderr.strip()[-200:]}", "Run: systemctl status munge")
    return result.stdout


def open_sealed(credential: str) -> tuple[int, str]:
    """The uid of who wrote a credential, and the text in it.

    Raises:
        Refused: it is not one, or it is too old, or it was used before.
        Failed: munge does not run here.
    """
    result = programs.call(["unmunge", "--keys=STATUS,UID"], credential, seconds=_SECONDS)
    if result.returncode == programs.MISSING:
        raise Failed(f"unmunge: {result.stderr.strip()[-200:]}", "Run: systemctl status munge")
    known, _, text = result.stdout.partition("\n\n")
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in known.splitlines())}
    if result.returncode != 0:
        raise Refused(f"munge refuses the credential: {(result.stderr.strip() or fields.get('STATUS', ''))[-200:]}")
    try:
        # `root (0)`; the number alone if the host knows no name for it.
        return int(fields["UID"].rpartition("(")[2].rstrip(")")), text
    except (KeyError, ValueError):
        raise Failed(f"the output of unmunge can't be read: {known[:200]!r}") from None
