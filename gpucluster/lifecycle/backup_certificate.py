"""The certificate of backups on a schedule: a run that configures hosts needs a valid one.

The file is read by every command. One that looks at a cluster, or removes it, works with any certificate.
"""

from __future__ import annotations

from datetime import UTC, datetime

from gpucluster.errors import InputError
from gpucluster.spec import ClusterSpec, finding


def require_valid_certificate(spec: ClusterSpec) -> None:
    """Refuse a certificate that has expired.

    Raises:
        InputError: it has expired.
    """
    end = spec.backup.certificate_end
    if end is not None and end < datetime.now(UTC):
        hint = "Make a new one, and keep the old key as long as the old backups; docs/how-to/backup.md has the command"
        message = f"the certificate has expired on {end:%Y-%m-%d}"
        raise InputError(
            "the certificate of backups has expired",
            findings=[finding(spec, ("backup", "certificate"), message, hint)],
        )
