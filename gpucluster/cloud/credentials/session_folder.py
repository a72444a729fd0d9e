"""A private folder with a session as an OCI configuration file, for Terraform's provider and its backend `oci`.

Both read a session from `.oci/config` in a home folder and from nowhere else, and take another home from a variable
(oracle/oci: utils.GetHomeFolder, `TF_HOME_OVERRIDE`; Terraform: backend/remote-state/oci/util.go, `OCI_HOME_OVERRIDE`).
They read the token's file for each request (oci-go-sdk: sessionTokenConfigurationProvider), so a renewed token reaches
a Terraform that runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from gpucluster.errors import EnvironmentFault
from gpucluster.oci.authentication import SESSION_PROFILE, TERRAFORM_AUTH
from gpucluster.paths import write_private

_NAME = "gpucluster-session-"
_kept: dict[tuple[tuple[str, str], ...], SessionFolder] = {}


class SessionFolder:
    """The folder, for its owner alone. It is removed when the object is, at the latest with this process.

    Raises:
        EnvironmentFault: it can't be made.
    """

    def __init__(self) -> None:
        parent = os.environ.get("XDG_RUNTIME_DIR") or None
        try:
            usable = parent if parent and os.access(parent, os.W_OK) else None
            self.path = Path(tempfile.mkdtemp(prefix=_NAME, dir=usable))  # 0700
            (self.path / ".oci").mkdir(mode=0o700)
        except OSError as error:
            raise EnvironmentFault(
                f"the folder of a session can't be made: {error.strerror}",
                where=str(error.filename or parent or tempfile.gettempdir()),
                hint="Set TMPDIR to a folder that you may write",
            ) from error
        self.key, self.token = self.path / ".oci" / "key.pem", self.path / ".oci" / "token"
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    @classmethod
    def of_profile(cls, config: Mapping[str, str]) -> SessionFolder:
        """One that refers to the key and the token of a profile, made once for it."""
        known = tuple(sorted(config.items()))
        if known not in _kept:
            folder = cls()
            folder.write_config(config)
            _kept[known] = folder
        return _kept[known]

    def write_config(self, entries: Mapping[str, str]) -> None:
        """Write the profile, whose name is `SESSION_PROFILE`."""
        lines = [f"[{SESSION_PROFILE}]", *(f"{name}={value}" for name, value in entries.items() if value)]
        write_private(self.path / ".oci" / "config", "\n".join(lines) + "\n")


def home_env(folder: Path) -> dict[str, str]:
    """The variables that make the provider and the backend find the configuration file."""
    return {"TF_HOME_OVERRIDE": str(folder), "OCI_HOME_OVERRIDE": str(folder)}


def session_env(folder: Path, region: str) -> dict[str, str]:
    """All variables of the provider for a session."""
    return {
        **home_env(folder),
        "OCI_AUTH": TERRAFORM_AUTH["oidc"],
        "OCI_CONFIG_FILE_PROFILE": SESSION_PROFILE,
        "OCI_REGION": region,
    }
